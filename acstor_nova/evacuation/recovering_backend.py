# SPDX-License-Identifier: Apache-2.0
"""Gives evacuated servers the disk of their newest checkpoint.

Nova evacuates by a rebuild. Only the compute manager can tell it from a user's rebuild, which makes
an empty disk on purpose, so a hook there marks evacuations.

Without a usable checkpoint the evacuation fails, unless ``[acstor] recover = preferred`` allows a
disk from the image; a delayed checkpoint is retried, and then the evacuation fails.
"""

import contextlib
import contextvars
import functools
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_nova import host_context
from acstor_nova import mirror_link
from acstor_nova.evacuation import checkpoint_disk
from acstor_nova.evacuation import recovered_disk
from acstor_nova.snapshots import delta_snapshot

LOG = logging.getLogger(__name__)

RECOVERED_FROM = "acstor_recovered_from"
"""Key in the server's metadata: the moment of the checkpoint."""


class Evacuated(NamedTuple):
    """A server that is being evacuated here, and the request's context."""

    instance_id: str
    context: Any


_evacuated: contextvars.ContextVar[Evacuated | None] = contextvars.ContextVar(
    "evacuated", default=None
)


@contextlib.contextmanager
def mark_evacuated(instance_id: str, context: Any) -> Iterator[None]:
    """Mark disks made in the block as those of an evacuated server."""
    former = _evacuated.set(Evacuated(instance_id, context))
    try:
        yield
    finally:
        _evacuated.reset(former)


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
        evacuated = _evacuated.get()
        if evacuated is None or not self._is_lost(evacuated, kwargs.get("image_id")):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]
        elif not self._recover(evacuated, size or 0):
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)  # type: ignore[misc]

    def _is_lost(self, evacuated: Evacuated, image_id: str | None) -> bool:
        if (
            image_id is None
            or os.path.basename(self.path) != recovered_disk.DISK
            or os.path.lexists(self.path)
        ):
            return False
        return getattr(self._instance, "uuid", None) == evacuated.instance_id

    def _recover(self, evacuated: Evacuated, size_bytes: int) -> bool:
        own = self.host.nova.conf.acstor
        if not own.decision_url:
            return False
        try:
            taken_at = checkpoint_disk.create_newest(
                self.host, evacuated.instance_id, evacuated.context, self.path, size_bytes
            )
        except errors.AcstorError as e:
            why = f"instance {evacuated.instance_id} cannot be recovered from a checkpoint: {e}"
            if own.recover == "required" or checkpoint_disk.is_delayed(e):
                raise self.host.nova.cannot_start(why) from e
            LOG.warning("%s; starting from its image, since [acstor] recover is preferred", why)
            return False
        with contextlib.suppress(AttributeError, TypeError):
            self._instance.metadata = {**self._instance.metadata, RECOVERED_FROM: taken_at}
        return True

    def direct_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """Make a snapshot; first restore the checkpoint as base, unless a guest has it open."""
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
                checkpoint_disk.wait_for_image(
                    self.host,
                    checkpoint_disk.wait_for_checkpoint(self.host, checkpoint_id, base),
                    base,
                )
                self._settle(info)  # type: ignore[attr-defined]
        return info


def wrap_rebuild(stock: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap Nova's rebuild so that it marks evacuations; ``is_ours``: acstor is in use."""

    @functools.wraps(stock)
    def rebuild(self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("evacuate") or not is_ours():
            return stock(self, context, instance, *args, **kwargs)
        with mark_evacuated(instance.uuid, context):
            return stock(self, context, instance, *args, **kwargs)

    return rebuild
