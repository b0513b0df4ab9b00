# SPDX-License-Identifier: Apache-2.0
"""Nova's disks on checkpoints: creates them, waits for the checkpoint, deletes it when unused.

The agent shows a checkpoint as ``disks/<checkpoint id>.qcow2``, on the image's mirror; Nova's disk
is based on it, until ``acstor-checkpointd`` has copied all data; before, the server cannot move.
"""

import functools
import glob
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

from oslo_concurrency import processutils

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.disks import recovery_marker
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import control_wire
from acstor_nova import decision_client
from acstor_nova import host_context
from acstor_nova import mirror_link
from acstor_nova.evacuation import recovered_disk

LOG = logging.getLogger(__name__)

CREATE_S = 60
_LOST = frozenset(
    {
        "ChunkInvalid",
        "ChunkLost",
        "ChunkMissing",
        "CheckpointFormatError",
        "NotAuthenticated",
        "NumberInUse",
        "RemoteProtocolError",
        "Unusable",
        "ValueError",
    }
)
"""Refusals that mean that a checkpoint is unusable; others may be temporary."""
_disks_in_progress: set[str] = set()
"""Checkpoints of which disks are being made; no disk is based on them yet."""


def create_newest(
    host: host_context.HostContext,
    instance_id: str,
    context: Any,
    path: str,
    size_bytes: int,
) -> str:
    """Create the disk of a server's newest usable checkpoint; return when that was taken."""
    own = host.nova.conf.acstor
    asked = decision_client.DecisionClient(own.decision_url, own.ca_file, context.auth_token or "")
    failure: errors.AcstorError = errors.Unusable("checkpoints", "the server has none")
    for checkpoint in asked.newest_checkpoints(instance_id):
        try:
            recovery = asked.checkpoint_recovery(checkpoint.checkpoint_id)
            base = _base(host, context, recovery.image_id)
            create = functools.partial(_create_disk, host, recovery, base, path, size_bytes)
            _with_retries(host, f"checkpoint {checkpoint.checkpoint_id}", create)
        except errors.AgentRefused as e:
            if is_delayed(e):
                raise
            # this one is unusable; an older one may be usable
            LOG.warning("checkpoint %s of %s: %s", checkpoint.checkpoint_id, checkpoint.taken_at, e)
            failure = e
        else:
            LOG.info("%s has the data of %s", path, checkpoint.taken_at)
            return checkpoint.taken_at
    raise failure


def is_delayed(e: errors.AcstorError) -> bool:
    """Return whether a checkpoint may become usable soon."""
    if isinstance(e, errors.AgentRefused):
        return e.kind not in _LOST
    return isinstance(e, errors.AgentUnreachable)


def _with_retries(host: host_context.HostContext, what: str, create: Callable[[], None]) -> None:
    """Create a disk; retry while its checkpoint, ``what``, is only delayed."""
    ends_s = time.monotonic() + host.timeouts.checkpoint_s
    while True:
        try:
            return create()
        except (errors.AgentUnreachable, errors.AgentRefused) as e:
            if not is_delayed(e) or time.monotonic() > ends_s:
                raise
            LOG.warning("%s is requested again: %s", what, e)
        time.sleep(host.timeouts.checkpoint_retry_s)


def _base(host: host_context.HostContext, context: Any, image_id: str) -> str:
    """Return an image's path in Nova's image cache; link its mirror if missing."""
    base = host.base_path(image_id)
    what = f"image {image_id}"
    if why := host.why_unreadable(base):
        raise errors.Unusable(what, str(why))
    if not os.path.exists(base):
        os.makedirs(os.path.dirname(base), exist_ok=True)
        try:
            host.link_image(context, image_id, base)
        except host_context.NotEligibleError as e:
            if e.reason is not control_wire.Fallback.NOT_ACTIVE:
                raise errors.Unusable(what, f"it cannot be mirrored here: {e}") from e
            # An inactive image is allowed: the server was made while it was active.
            mirror_link.make_link(host.mirror_path(image_id), base)
    return base


def _create_disk(
    host: host_context.HostContext,
    recovery: checkpoint_messages.RecoveryData,
    base: str,
    path: str,
    size_bytes: int,
) -> None:
    _disks_in_progress.add(recovery.checkpoint_id)
    try:
        size_bytes = max(size_bytes, host.agent.attach_checkpoint(recovery, base, size_bytes))
        wanted = mirror_link.checkpoint_path(
            host.nova.conf.acstor.mount_point, recovery.checkpoint_id
        )
        create = ("qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", wanted)
        try:
            processutils.execute(*create, path, str(size_bytes), timeout=CREATE_S)
        except (processutils.ProcessExecutionError, OSError) as e:
            raise errors.Unusable(path, f"it cannot be created: {e}") from e
    finally:
        _disks_in_progress.discard(recovery.checkpoint_id)


def wait_for_checkpoint(host: host_context.HostContext, checkpoint_id: str, path: str) -> str:
    """Wait until a checkpoint's disk can be read; return the image beneath it.

    :raises Exception: Nova's: it is not on this host, or the agent does not answer in time
    """
    ends_s = time.monotonic() + host.timeouts.agent_start_s
    while True:
        try:
            known = {
                recovered["checkpoint_id"]: recovered for recovered in host.agent.list_recovered()
            }
            if checkpoint_id not in known:
                raise host.nova.cannot_start(recovered_disk.move_refusal_text(checkpoint_id))
            os.stat(path)
        except (errors.AgentUnreachable, errors.AgentRefused, OSError) as e:
            if time.monotonic() > ends_s:
                why = f"checkpoint {checkpoint_id} cannot be read: {e}. Is acstor-agent running?"
                raise host.nova.cannot_start(why) from e
            LOG.info("waiting for the disk of checkpoint %s: %s", checkpoint_id, e)
        else:
            return str(known[checkpoint_id]["image_id"])
        time.sleep(host_context.ASK_AGAIN_S)


def wait_for_image(host: host_context.HostContext, image_id: str, path: str) -> None:
    """Wait until the image beneath a checkpoint can be read; restore a missing link."""
    base = host.base_path(image_id)
    if not os.path.lexists(base) and local_file.backing_of(path) == base:
        LOG.info("%s is missing; recreating it", base)
        os.makedirs(os.path.dirname(base), exist_ok=True)
        mirror_link.make_link(host.mirror_path(image_id), base)
    if mirror_link.image_of(base) == image_id:
        try:
            host.wait_until_readable(image_id)
        except errors.AcstorError as e:
            raise host.nova.cannot_start(str(e)) from e


def drop_unused(host: host_context.HostContext, instance_ids: Collection[str]) -> None:
    """Delete disks of checkpoints that no disk uses; ``instance_ids``: of this host."""
    try:
        for recovered in host.agent.list_recovered():
            if not _is_used(
                host, recovered["checkpoint_id"], recovered["instance_id"], instance_ids
            ):
                host.agent.drop_disk(recovered["checkpoint_id"])
                LOG.info("the disk of checkpoint %s was deleted", recovered["checkpoint_id"])
    except (errors.AgentUnreachable, errors.AgentRefused) as e:
        LOG.info("disks of checkpoints are not checked now: %s", e)


def _is_used(
    host: host_context.HostContext,
    checkpoint_id: str,
    instance_id: str,
    instance_ids: Collection[str],
) -> bool:
    """Return whether a disk is based on a checkpoint, even during a resize.

    A disk that is missing or unreadable counts as based on it, since it has the only data.
    """
    if checkpoint_id in _disks_in_progress:
        return True
    folder = glob.escape(os.path.join(host.nova.conf.instances_path, instance_id))
    found = [
        path for name in sorted(host_context.ROOT_DISKS) for path in glob.glob(f"{folder}*/{name}")
    ]
    if not found:
        return instance_id in instance_ids
    return any(_is_based_on(path, checkpoint_id) for path in found)


def _is_based_on(disk: str, checkpoint_id: str) -> bool:
    try:
        with open(disk, "rb") as file:
            file.read(1)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    base = local_file.backing_of(disk)
    if base is not None and mirror_link.checkpoint_of(base) == checkpoint_id:
        return True
    try:
        return recovery_marker.read(disk) == checkpoint_id
    except (OSError, ValueError):
        return True
