# SPDX-License-Identifier: Apache-2.0
"""A server whose host is dead gets the disk that its last checkpoint has, instead of its image.

Nova evacuates by building a server anew.  Only its compute manager knows that this is no rebuild
that a user has asked for, which gives an empty disk on purpose; so it is noted there, for the time
of the call.

The rule: what a server wrote is not given up in silence.  Where a checkpoint cannot be used the
server gets an empty disk only if the operator says so (``[acstor] recover = preferred``).  One that
is only late is no such checkpoint: it is asked for again, and then the evacuation fails.

A disk that was made of a checkpoint is a qcow2 file of the agent, ``disks/<checkpoint id>.qcow2``.
Nova's own disk lies on it, and it lies on the image's mirror, as the agent is told.  When all of it
is on this host ``acstor-checkpointd`` copies what it has into Nova's disk, which then lies on the
mirror itself: until then the server is not moved.
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
from acstor_common.formats import local_file
from acstor_common.formats import recovery_marker
from acstor_common.wire import control_wire
from acstor_nova import decision_client
from acstor_nova import imagebackend
from acstor_nova import mirror_link
from acstor_nova import recovered_disk
from acstor_nova.snapshots import delta_snapshot

LOG = logging.getLogger(__name__)

DISK = "disk"
RECOVERED_FROM = "acstor_recovered_from"
"""Of the server's metadata: the moment that its disk comes from."""
CREATE_S = 60
LATE_S = 180.0
"""So long a checkpoint is asked for again that could not be had in time."""
ASK_AGAIN_S = 5.0
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
"""Kinds of refusals that say of a checkpoint that it cannot be had; others pass, or are mended."""


class Evacuated(NamedTuple):
    """A server that is being evacuated here, and Nova's context of the one who asked for it."""

    instance_id: str
    context: Any


_under_way: contextvars.ContextVar[Evacuated | None] = contextvars.ContextVar(
    "evacuated", default=None
)
_laying: set[str] = set()
"""Checkpoints that disks are being made of: nothing lies on those yet."""


@contextlib.contextmanager
def mark_evacuated(instance_id: str, context: Any) -> Iterator[None]:
    """Let the disks that are made in the block be those of a server that is evacuated."""
    former = _under_way.set(Evacuated(instance_id, context))
    try:
        yield
    finally:
        _under_way.reset(former)


class RecoveringBase:
    """Stands before :class:`imagebackend.MirrorBase`, for disks that are made of checkpoints."""

    host: imagebackend.HostContext
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
        """Make the disk; that of an evacuated server of its newest checkpoint."""
        checkpoint_id = mirror_link.checkpoint_in(filename)
        if checkpoint_id:  # what a disk that was made before lies on
            if os.path.lexists(self.path):
                return  # nothing is to be fetched; who starts it waits for the agent
            raise self.host.seams.cannot_start(recovered_disk.move_refusal_text(checkpoint_id))
        evacuated = _under_way.get()
        if evacuated is None or not self._is_lost(evacuated, kwargs.get("image_id")):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]
        elif not self._recover(evacuated, size or 0):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]

    def _is_lost(self, evacuated: Evacuated, image_id: str | None) -> bool:
        """Say whether this is the root disk of the evacuated server, and not here."""
        if image_id is None or os.path.basename(self.path) != DISK or os.path.lexists(self.path):
            return False
        return getattr(self._instance, "uuid", None) == evacuated.instance_id

    def _recover(self, evacuated: Evacuated, size_bytes: int) -> bool:
        """Make the disk of a checkpoint; say whether that was done."""
        own = self.host.seams.conf.acstor
        if not own.decision_url:
            return False
        try:
            taken_at = _lay_newest(self.host, evacuated, self.path, size_bytes)
        except errors.AcstorError as e:
            why = f"instance {evacuated.instance_id} cannot be given the disk that it had: {e}"
            if own.recover == "required" or _is_late(e):
                raise self.host.seams.cannot_start(why) from e
            LOG.warning("%s; starting from its image, since [acstor] recover is preferred", why)
            return False
        with contextlib.suppress(AttributeError, TypeError):
            self._instance.metadata = {**self._instance.metadata, RECOVERED_FROM: taken_at}
        return True

    def direct_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """Make a snapshot; of a disk that may lack some of its checkpoint only on that.

        What a guest that runs has is in the memory of its QEMU, whatever its file lacks.
        """
        if not delta_snapshot.is_of_running_guest():
            recovered_disk.rebase_disk(self.host, self.path)
        return super().direct_snapshot(*args, **kwargs)  # type: ignore[misc]

    def libvirt_info(self, *args: Any, **kwargs: Any) -> Any:
        """Return libvirt's view of the disk; waits for the checkpoint under it, if there is one."""
        info = super().libvirt_info(*args, **kwargs)  # type: ignore[misc]
        if os.path.basename(self.path) in imagebackend.ROOT_DISKS:
            recovered_disk.rebase_disk(self.host, self.path)
            base = local_file.backing_of(self.path)
            if base is not None and (checkpoint_id := mirror_link.checkpoint_of(base)):
                _wait_for_image(
                    self.host, wait_for_checkpoint(self.host, checkpoint_id, base), base
                )
                self._settle(info)  # type: ignore[attr-defined]
        return info


def _lay_newest(
    host: imagebackend.HostContext, evacuated: Evacuated, path: str, size_bytes: int
) -> str:
    """Lay a disk on the newest checkpoint that can be had; return the moment it is of.

    :raises errors.AcstorError: there is none
    """
    own = host.seams.conf.acstor
    asked = decision_client.DecisionClient(
        own.decision_url, own.ca_file, evacuated.context.auth_token or ""
    )
    failure: errors.AcstorError = errors.Unusable("checkpoints", "it has none")
    for one in asked.newest_checkpoints(evacuated.instance_id):
        try:
            recovery = asked.checkpoint_recovery(one.checkpoint_id)
            base = _base(host, evacuated.context, recovery.image_id)
            _lay_in_time(host, recovery, base, path, size_bytes)
        except errors.AgentRefused as e:
            if _is_late(e):
                raise
            # this one cannot be had; an older one may be
            LOG.warning("checkpoint %s of %s: %s", one.checkpoint_id, one.taken_at, e)
            failure = e
        else:
            LOG.info("%s is as it was at %s", path, one.taken_at)
            return one.taken_at
    raise failure


def _is_late(e: errors.AcstorError) -> bool:
    """Say whether a checkpoint could not be had now, and may be had later."""
    if isinstance(e, errors.AgentRefused):
        return e.kind not in _LOST
    return isinstance(e, errors.AgentUnreachable)


def _lay_in_time(
    host: imagebackend.HostContext,
    recovery: decision_client.Recovery,
    base: str,
    path: str,
    size_bytes: int,
) -> None:
    """Lay a disk on a checkpoint; while that is only late, ask for the same again.

    :raises errors.AcstorError: it cannot be had, or not within LATE_S
    """
    ends_s = time.monotonic() + LATE_S
    while True:
        try:
            return _lay(host, recovery, base, path, size_bytes)
        except (errors.AgentUnreachable, errors.AgentRefused) as e:
            if not _is_late(e) or time.monotonic() > ends_s:
                raise
            LOG.warning("checkpoint %s is requested again: %s", recovery.checkpoint_id, e)
        time.sleep(ASK_AGAIN_S)


def _base(host: imagebackend.HostContext, context: Any, image_id: str) -> str:
    """Return the path of an image in Nova's image cache; a link to its mirror is made now.

    :raises errors.Unusable: it cannot be
    """
    base = host.base_path(image_id)
    what = f"image {image_id}"
    if why := host.why_unreadable(base):
        raise errors.Unusable(what, str(why))
    if not os.path.exists(base):
        os.makedirs(os.path.dirname(base), exist_ok=True)
        try:
            host.link_image(context, image_id, base)
        except imagebackend.NotEligibleError as e:
            if e.reason is not control_wire.Fallback.NOT_ACTIVE:
                raise errors.Unusable(what, f"it cannot be mirrored here: {e}") from e
            # Nobody gets a new server of it; this one had the image when it was active.
            mirror_link.make_link(host.mirror_path(image_id), base)
    return base


def _lay(
    host: imagebackend.HostContext,
    recovery: decision_client.Recovery,
    base: str,
    path: str,
    size_bytes: int,
) -> None:
    _laying.add(recovery.checkpoint_id)
    try:
        size_bytes = max(size_bytes, host.agent.attach_checkpoint(recovery, base, size_bytes))
        wanted = mirror_link.checkpoint_path(
            host.seams.conf.acstor.mount_point, recovery.checkpoint_id
        )
        create = ("qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", wanted)
        try:
            processutils.execute(*create, path, str(size_bytes), timeout=CREATE_S)
        except (processutils.ProcessExecutionError, OSError) as e:
            raise errors.Unusable(path, f"it cannot be made: {e}") from e
    finally:
        _laying.discard(recovery.checkpoint_id)


def wait_for_checkpoint(host: imagebackend.HostContext, checkpoint_id: str, path: str) -> str:
    """Wait until what a disk lies on can be read; return the image that this lies on.

    :raises Exception: Nova's; it is not on this host, or the agent does not answer in time
    """
    ends_s = time.monotonic() + imagebackend.AGENT_WAIT_S
    while True:
        try:
            known = {one["checkpoint_id"]: one for one in host.agent.list_recovered()}
            if checkpoint_id not in known:
                raise host.seams.cannot_start(recovered_disk.move_refusal_text(checkpoint_id))
            os.stat(path)
        except (errors.AgentUnreachable, errors.AgentRefused, OSError) as e:
            if time.monotonic() > ends_s:
                why = f"checkpoint {checkpoint_id} cannot be read: {e}. Is acstor-agent running?"
                raise host.seams.cannot_start(why) from e
            LOG.info("waiting for the disk of checkpoint %s: %s", checkpoint_id, e)
        else:
            return str(known[checkpoint_id]["image_id"])
        time.sleep(imagebackend.ASK_AGAIN_S)


def _wait_for_image(host: imagebackend.HostContext, image_id: str, path: str) -> None:
    """Wait until the image beneath a checkpoint can be read; a link that is gone is made again.

    :raises Exception: Nova's; it cannot
    """
    base = host.base_path(image_id)
    if not os.path.lexists(base) and local_file.backing_of(path) == base:
        LOG.info("%s is not there; it is made again", base)
        os.makedirs(os.path.dirname(base), exist_ok=True)
        mirror_link.make_link(host.mirror_path(image_id), base)
    if mirror_link.image_of(base) == image_id:
        try:
            host.wait_until_readable(image_id)
        except errors.AcstorError as e:
            raise host.seams.cannot_start(str(e)) from e


def drop_unused(host: imagebackend.HostContext, here: Collection[str]) -> None:
    """Have the agent delete disks of checkpoints that no disk of Nova lies on any more.

    :param here: instances that Nova says are on this host
    """
    try:
        for told in host.agent.list_recovered():
            if not _is_used(host, told["checkpoint_id"], told["instance_id"], here):
                host.agent.drop_disk(told["checkpoint_id"])
                LOG.info("the disk of checkpoint %s was deleted", told["checkpoint_id"])
    except (errors.AgentUnreachable, errors.AgentRefused) as e:
        LOG.info("disks of checkpoints are not checked now: %s", e)


def _is_used(
    host: imagebackend.HostContext, checkpoint_id: str, instance_id: str, here: Collection[str]
) -> bool:
    """Say whether a disk lies on it: also one that waits for a resize to be confirmed.

    Nobody else has what a guest wrote there.  So a disk that is not to be seen where Nova says that
    its instance is, or that cannot be read, is taken for one that lies on it.
    """
    if checkpoint_id in _laying:
        return True
    folder = glob.escape(os.path.join(host.seams.conf.instances_path, instance_id))
    found = [
        path for name in sorted(imagebackend.ROOT_DISKS) for path in glob.glob(f"{folder}*/{name}")
    ]
    if not found:
        return instance_id in here
    return any(_lies_on(path, checkpoint_id) for path in found)


def _lies_on(disk: str, checkpoint_id: str) -> bool:
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
    """Return Nova's way to build a server anew, which tells an evacuation from a rebuild.

    :param is_ours: says whether the disks of this host are made by acstor
    """

    @functools.wraps(stock)
    def rebuild(self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("evacuate") or not is_ours():
            return stock(self, context, instance, *args, **kwargs)
        with mark_evacuated(instance.uuid, context):
            return stock(self, context, instance, *args, **kwargs)

    return rebuild
