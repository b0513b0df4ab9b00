# SPDX-License-Identifier: Apache-2.0
"""Statistics of failed or delayed checkpoints, by cause and by holder."""

import collections
import enum
import threading
from collections.abc import Collection
from collections.abc import Mapping
from typing import Final

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages


class FailureReason(enum.StrEnum):
    """Cause of a failure."""

    HOLDER = "holder"  # replaced, as for the next two
    HOLDER_SLOW = "holder_slow"
    HOLDER_LOST = "holder_lost"  # it lacks acknowledged chunks
    TOO_LARGE = "too_large"  # until the server is rebuilt
    SCRATCH_FULL = "scratch_full"  # the guest overwrote too much
    OVERWRITTEN = "overwritten"  # the same, without progress over parts
    HOST = "host"  # no threads, descriptors or route here
    REFUSED = "refused"  # by the decision service
    DECISION = "decision"  # the decision service does not answer
    OTHER = "other"


UNDESCRIBED: Final = "undescribed"  # reported for a server that libvirt has not described yet
_REASONS = (
    (holder_group.HolderSlow, FailureReason.HOLDER_SLOW),
    (holder_group.HolderLost, FailureReason.HOLDER_LOST),
    (holder_group.HolderFailed, FailureReason.HOLDER),
    (disk_capture.DiskTooLarge, FailureReason.TOO_LARGE),
    (scratch_files.ScratchFull, FailureReason.SCRATCH_FULL),
    (snapshot_window.Overwritten, FailureReason.OVERWRITTEN),
    (vault_client.HostFault, FailureReason.HOST),
    (errors.CheckpointRefused, FailureReason.REFUSED),
    (errors.DecisionUnreachable, FailureReason.DECISION),
)


def _reason(e: Exception) -> FailureReason:
    return next((reason for kind, reason in _REASONS if isinstance(e, kind)), FailureReason.OTHER)


class Failures:
    """Failures since the daemon's start; thread-safe.

    A server is listed until an attempt succeeds without delay, or until it leaves the host.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons = collections.Counter[FailureReason](dict.fromkeys(FailureReason, 0))
        self._holders = collections.Counter[tuple[ids.HostId, FailureReason]]()
        self._waits = collections.Counter[str]()
        self._failing: dict[ids.ImageId, messages.Failing] = {}

    def count_failure(self, instance: ids.ImageId, e: Exception) -> None:
        """Count a checkpoint of a server that failed with an error."""
        reason, holder = _reason(e), ""
        if isinstance(e, holder_group.HolderFailed):
            holder = e.holder
            self.note_holder(e)
        with self._lock:
            self._reasons[reason] += 1
            self._failing[instance] = messages.Failing(instance, reason, holder)

    def note_holder(self, e: holder_group.HolderFailed) -> None:
        """Count a failure of a holder, in a checkpoint or after it."""
        with self._lock:
            self._holders[e.holder, _reason(e)] += 1

    def note_success(self, instance: ids.ImageId) -> None:
        """Record a new checkpoint of a server."""
        with self._lock:
            self._failing.pop(instance, None)

    def note_wait(self, instance: ids.ImageId, holder: str) -> None:
        """Record that a checkpoint waited for one holder; "": none."""
        if holder:
            with self._lock:
                self._waits[holder] += 1
                self._failing[instance] = messages.Failing(
                    instance, FailureReason.HOLDER_SLOW, holder
                )

    def failing_servers(self, local: Collection[ids.ImageId] | None) -> list[messages.Failing]:
        """Return servers whose last attempt failed or was delayed.

        :param local: servers of this host; others are forgotten; None: unknown, forget none
        """
        with self._lock:
            if local is not None:
                self._failing = {
                    instance: what for instance, what in self._failing.items() if instance in local
                }
            return list(self._failing.values())

    def by_reason(self) -> Mapping[FailureReason, int]:
        """Return the number of failures by reason."""
        with self._lock:
            return dict(self._reasons)

    def waits_by_holder(self) -> Mapping[str, int]:
        """Return the number of delayed checkpoints and parts by holder."""
        with self._lock:
            return dict(self._waits)

    def by_holder(self) -> Mapping[tuple[ids.HostId, FailureReason], int]:
        """Return the number of failures by holder and reason."""
        with self._lock:
            return dict(self._holders)
