# SPDX-License-Identifier: Apache-2.0
"""Makes recovered servers independent of their checkpoints.

A recovered server's disk is an overlay of the checkpoint's disk, which is an overlay of the image's
mirror.  When the agent has fetched all of the checkpoint, its data is pulled into the overlay, by
QEMU if the server runs, else by qemu-img in a separate thread, so that running servers do not wait.
Then the mirror is the backing file, so the server can migrate, and has checkpoints.  An interrupted
pull starts again.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple
from typing import Protocol

from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_checkpoint.restore import offline_pull
from acstor_checkpoint.restore import recovered_disks
from acstor_common import errors
from acstor_common.disks import recovery_marker
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import backoff
from acstor_common.util import log_once
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 10.0
FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 1800.0
_ENDS_WITHIN_S: Final = 30.0


class PullOffline(Protocol):
    """Pulls data into an offline disk."""

    def __call__(self, disk: offline_pull.OfflineDisk, is_powered_off: Callable[[], bool]) -> None:
        """Pull all data, or raise Unusable."""


class _Tried(NamedTuple):
    again_s: float
    attempts: int


class PullLoop:
    """The loop that starts pulls.

    :param domains: servers whose disks are on checkpoints, or may lack data of one; their ``base``
        is the checkpoint
    :param rate_bytes_s: of QEMU, per disk; 0: no limit
    """

    def __init__(
        self,
        domains: domain_list.Domains,
        recovered: recovered_disks.RecoveredDisks,
        bases: recovered_disks.BackingImages,
        rate_bytes_s: int,
        ended: threading.Event,
        pull_offline: PullOffline,
        clock: clocks.Clock = time,
    ) -> None:
        self._domains, self._recovered, self._bases = domains, recovered, bases
        self._rate_bytes_s, self._ended = rate_bytes_s, ended
        self._pull_offline, self._clock = pull_offline, clock
        self._tried: dict[ids.ImageId, _Tried] = {}
        self._offline_thread: threading.Thread | None = None
        self._offline_instance: ids.ImageId | None = None
        self._faults = log_once.LogOnce(LOG)

    def run(self, check_interval_s: float = CHECK_INTERVAL_S) -> None:
        """Start due pulls periodically until ``ended`` is set."""
        while not self._ended.wait(check_interval_s):
            try:
                self.start_due_pulls()
            except Exception:
                LOG.exception("disks of recovered servers are not checked")
        self.wait_for_pull()

    def wait_for_pull(self) -> None:
        """Wait for the running offline pull, _ENDS_WITHIN_S at most."""
        if self._offline_thread is not None:
            self._offline_thread.join(_ENDS_WITHIN_S)

    def start_due_pulls(self) -> None:
        """Start all pulls that are due."""
        try:
            found = self._domains.list_servers()
        except errors.AcstorError as e:
            self._faults.log_warning(str(e))
            return
        self._faults.log_warning("")
        for instance in set(self._tried) - found.instances():
            del self._tried[instance]
            LOG.info("server %s: its disk no longer depends on a checkpoint", instance)
        for server in found.servers:
            if not self._ended.is_set():
                self._try(server)

    def _is_due(self, instance: ids.ImageId) -> bool:
        tried = self._tried.get(instance)
        return tried is None or self._clock.monotonic() >= tried.again_s

    def _try(self, server: domain_xml.Server) -> None:
        if self._is_pulling_offline() and server.instance == self._offline_instance:
            return
        with self._log_and_retry(server.instance):
            if not self._bases.is_backed_by_checkpoint(server.disk.path):
                self._end(server)
            elif self._is_due(server.instance) and self._recovered.is_complete(server.disk.base):
                self._pull(server)

    @contextlib.contextmanager
    def _log_and_retry(self, instance: ids.ImageId) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            is_known = isinstance(e, errors.AcstorError | OSError | ValueError)
            why = "server %s: its checkpoint was not copied into its disk: %s"
            LOG.warning(why, instance, e, exc_info=not is_known)
            self._pause(instance)

    def _pull(self, server: domain_xml.Server) -> None:
        checkpoint_id = server.disk.base
        self._recovered.check_server(checkpoint_id, server.instance)
        base = self._recovered.base_path(checkpoint_id)
        domain = self._domains.find_domain(server)
        if not domain.is_active():
            self._start_offline(server, base, domain)
            return
        offline_pull.remove_copy(server.disk.path)
        if recovery_marker.read(server.disk.path) != checkpoint_id:
            recovery_marker.write(server.disk.path, checkpoint_id)
        if domain.pull_blocks(base, self._rate_bytes_s):
            LOG.info(
                "server %s: copying checkpoint %s into its disk", server.instance, checkpoint_id
            )
            self._pause(server.instance)

    def _is_pulling_offline(self) -> bool:
        return self._offline_thread is not None and self._offline_thread.is_alive()

    def _start_offline(
        self, server: domain_xml.Server, base: str, domain: libvirt_domain.Domain
    ) -> None:
        if self._is_pulling_offline():
            return
        path, checkpoint_id = server.disk.path, server.disk.base
        shown, file = (
            self._bases.mounted_path(checkpoint_id),
            self._recovered.checkpoint_path(checkpoint_id),
        )

        def pull() -> None:
            with self._log_and_retry(server.instance):
                disk = offline_pull.OfflineDisk(path, base, shown, file)
                self._pull_offline(disk, lambda: not domain.is_active())
                recovery_marker.remove(path)

        self._offline_instance = server.instance
        self._offline_thread = supervision.start_once("offline pull", pull)

    def _end(self, server: domain_xml.Server) -> None:
        """Remove the marker if the file is complete; rebase an incomplete offline disk.

        If QEMU runs, the missing clusters are written on the next guest flush.
        """
        path, checkpoint_id = server.disk.path, server.disk.base
        self._recovered.check_server(checkpoint_id, server.instance)
        offline_pull.remove_copy(path)
        domain = self._domains.find_domain(server)
        is_active = domain.is_active()
        if self._recovered.is_copied_into(path, checkpoint_id):
            offline_pull.sync_file(path)
            recovery_marker.remove(path)
            LOG.info(
                "server %s: checkpoint %s was copied into its disk", server.instance, checkpoint_id
            )
        elif not is_active:
            shown, base = (
                self._bases.mounted_path(checkpoint_id),
                self._recovered.base_path(checkpoint_id),
            )
            offline_pull.rebase(path, shown, base)

    def _pause(self, instance: ids.ImageId) -> None:
        former = self._tried.get(instance)
        attempts = former.attempts if former else 0
        pause_s = backoff.pause_s(attempts, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._tried[instance] = _Tried(self._clock.monotonic() + pause_s, attempts + 1)
