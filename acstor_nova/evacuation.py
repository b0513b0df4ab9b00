# SPDX-License-Identifier: Apache-2.0
"""Gives evacuated servers the disk of their newest checkpoint.

Nova evacuates by a rebuild. Only the compute manager can tell it from a user's rebuild, which makes
an empty disk on purpose, so a hook there marks evacuations.

Without a usable checkpoint the evacuation fails, unless ``[acstor] recover = preferred`` allows a
disk from the image. A checkpoint that is only delayed is retried, and then the evacuation fails.

The agent shows a checkpoint as ``disks/<checkpoint id>.qcow2``, on the image's mirror; Nova's disk
is based on it. When all data is on this host, ``acstor-checkpointd`` copies it into Nova's disk,
which then is based on the mirror. Until then the server cannot move.
"""

import contextlib
import contextvars
import functools
import glob
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from oslo_concurrency import processutils

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.disks import recovery_marker
from acstor_common.wire import control_wire
from acstor_nova import decision_client
from acstor_nova import host_context
from acstor_nova import mirror_link
from acstor_nova import recovered_disk
from acstor_nova.snapshots import delta_snapshot

LOG = logging.getLogger(__name__)

DISK = "disk"
RECOVERED_FROM = "acstor_recovered_from"
"""Key in the server's metadata: the moment of the checkpoint."""
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


class Evacuated(NamedTuple):
    """A server that is being evacuated here, and the request's context."""

    instance_id: str
    context: Any


_under_way: contextvars.ContextVar[Evacuated | None] = contextvars.ContextVar(
    "evacuated", default=None
)
_disks_in_progress: set[str] = set()
"""Checkpoints of which disks are being made; no disk is based on them yet."""


@contextlib.contextmanager
def mark_evacuated(instance_id: str, context: Any) -> Iterator[None]:
    """Mark disks made in the block as those of an evacuated server."""
    former = _under_way.set(Evacuated(instance_id, context))
    try:
        yield
    finally:
        _under_way.reset(former)


class RecoveringBase:
    """Base before :class:`imagebackend.MirrorBase`, for disks of checkpoints."""

    host: host_context.HostContext
    path: str

    def __init__(self, instance: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(instance, *args, **kwargs)  # type: ignore[call-arg]
        self._instance = instance

    def cache(
        self,
        fetch_func: Callable[..., None],
        filename: str,
        size: int | None = None,
        safe: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Make the disk; for an evacuated server, of its newest checkpoint."""
        checkpoint_id = mirror_link.checkpoint_in(filename)
        if checkpoint_id:  # base of an existing disk
            if os.path.lexists(self.path):
                return  # nothing to fetch; the start waits for the agent
            raise self.host.nova.cannot_start(recovered_disk.move_refusal_text(checkpoint_id))
        evacuated = _under_way.get()
        if evacuated is None or not self._is_lost(evacuated, kwargs.get("image_id")):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]
        elif not self._recover(evacuated, size or 0):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]

    def _is_lost(self, evacuated: Evacuated, image_id: str | None) -> bool:
        if image_id is None or os.path.basename(self.path) != DISK or os.path.lexists(self.path):
            return False
        return getattr(self._instance, "uuid", None) == evacuated.instance_id

    def _recover(self, evacuated: Evacuated, size_bytes: int) -> bool:
        own = self.host.nova.conf.acstor
        if not own.decision_url:
            return False
        try:
            taken_at = _create_newest(self.host, evacuated, self.path, size_bytes)
        except errors.AcstorError as e:
            why = f"instance {evacuated.instance_id} cannot be given the disk that it had: {e}"
            if own.recover == "required" or _is_delayed(e):
                raise self.host.nova.cannot_start(why) from e
            LOG.warning("%s; starting from its image, since [acstor] recover is preferred", why)
            return False
        with contextlib.suppress(AttributeError, TypeError):
            self._instance.metadata = {**self._instance.metadata, RECOVERED_FROM: taken_at}
        return True

    def direct_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """Make a snapshot, after restoring the checkpoint as base of an incomplete disk.

        The QEMU of a running guest still has the checkpoint open.
        """
        if not delta_snapshot.is_of_running_guest():
            recovered_disk.rebase_disk(self.host, self.path)
        return super().direct_snapshot(*args, **kwargs)  # type: ignore[misc]

    def libvirt_info(self, *args: Any, **kwargs: Any) -> Any:
        """Return libvirt's configuration of the disk, after waiting for its checkpoint."""
        info = super().libvirt_info(*args, **kwargs)  # type: ignore[misc]
        if os.path.basename(self.path) in host_context.ROOT_DISKS:
            recovered_disk.rebase_disk(self.host, self.path)
            base = local_file.backing_of(self.path)
            if base is not None and (checkpoint_id := mirror_link.checkpoint_of(base)):
                _wait_for_image(
                    self.host, wait_for_checkpoint(self.host, checkpoint_id, base), base
                )
                self._settle(info)  # type: ignore[attr-defined]
        return info


def _create_newest(
    host: host_context.HostContext, evacuated: Evacuated, path: str, size_bytes: int
) -> str:
    own = host.nova.conf.acstor
    asked = decision_client.DecisionClient(
        own.decision_url, own.ca_file, evacuated.context.auth_token or ""
    )
    failure: errors.AcstorError = errors.Unusable("checkpoints", "it has none")
    for one in asked.newest_checkpoints(evacuated.instance_id):
        try:
            recovery = asked.checkpoint_recovery(one.checkpoint_id)
            base = _base(host, evacuated.context, recovery.image_id)
            _create_with_retries(host, recovery, base, path, size_bytes)
        except errors.AgentRefused as e:
            if _is_delayed(e):
                raise
            # this one is unusable; an older one may be usable
            LOG.warning("checkpoint %s of %s: %s", one.checkpoint_id, one.taken_at, e)
            failure = e
        else:
            LOG.info("%s is as it was at %s", path, one.taken_at)
            return one.taken_at
    raise failure


def _is_delayed(e: errors.AcstorError) -> bool:
    if isinstance(e, errors.AgentRefused):
        return e.kind not in _LOST
    return isinstance(e, errors.AgentUnreachable)


def _create_with_retries(
    host: host_context.HostContext,
    recovery: decision_client.Recovery,
    base: str,
    path: str,
    size_bytes: int,
) -> None:
    ends_s = time.monotonic() + host.timeouts.checkpoint_s
    while True:
        try:
            return _create_disk(host, recovery, base, path, size_bytes)
        except (errors.AgentUnreachable, errors.AgentRefused) as e:
            if not _is_delayed(e) or time.monotonic() > ends_s:
                raise
            LOG.warning("checkpoint %s is requested again: %s", recovery.checkpoint_id, e)
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
    recovery: decision_client.Recovery,
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
            raise errors.Unusable(path, f"it cannot be made: {e}") from e
    finally:
        _disks_in_progress.discard(recovery.checkpoint_id)


def wait_for_checkpoint(host: host_context.HostContext, checkpoint_id: str, path: str) -> str:
    """Wait until a checkpoint's disk can be read; return the image beneath it.

    :raises Exception: Nova's: it is not on this host, or the agent does not answer in time
    """
    ends_s = time.monotonic() + host.timeouts.agent_start_s
    while True:
        try:
            known = {one["checkpoint_id"]: one for one in host.agent.list_recovered()}
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


def _wait_for_image(host: host_context.HostContext, image_id: str, path: str) -> None:
    """Wait until the image beneath a checkpoint can be read; restore a missing link."""
    base = host.base_path(image_id)
    if not os.path.lexists(base) and local_file.backing_of(path) == base:
        LOG.info("%s is not there; it is made again", base)
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
        for told in host.agent.list_recovered():
            if not _is_used(host, told["checkpoint_id"], told["instance_id"], instance_ids):
                host.agent.drop_disk(told["checkpoint_id"])
                LOG.info("the disk of checkpoint %s was deleted", told["checkpoint_id"])
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


def wrap_rebuild(stock: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap Nova's rebuild so that it marks evacuations; ``is_ours``: acstor is in use."""

    @functools.wraps(stock)
    def rebuild(self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("evacuate") or not is_ours():
            return stock(self, context, instance, *args, **kwargs)
        with mark_evacuated(instance.uuid, context):
            return stock(self, context, instance, *args, **kwargs)

    return rebuild
