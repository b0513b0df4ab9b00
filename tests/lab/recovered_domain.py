# SPDX-License-Identifier: Apache-2.0
"""A recovered server's domain: overlay, checkpoint file, and the image's mirror."""

import pathlib
import random
import threading
import uuid

import msgspec

from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.restore import offline_pull
from acstor_checkpoint.restore import pull_loop
from acstor_checkpoint.restore import recovered_disks
from acstor_common.disks import local_file
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_writer
from acstor_common.disks import recovery_marker
from acstor_common.formats import layout
from acstor_common.model import ids
from tests.fakes import manual_clock
from tests.lab import domain as domain_lab
from tests.lab import runs
from tests.lab.openstack import machine

CHUNK = 64 * domain_lab.KIB


class RecoveredDomain:
    """The domain, shut off, and its host's pull loop.

    :param changed: chunks in the checkpoint; every fifth one is zeros
    """

    def __init__(
        self,
        host: machine.Machine,
        folder: pathlib.Path,
        base: bytes,
        disk_bytes: int,
        changed: list[int],
        rate_bytes_s: int = 0,
    ) -> None:
        self.guest = domain_lab.Domain(host, folder, base, disk_bytes)
        self.base, self.changed = base, changed
        self.mirror_link = local_file.backing_of(str(self.guest.path))
        self.checkpoint_id = ids.parse_image_id(str(uuid.uuid4()))
        self._disks, shown = folder / "state" / "disks", folder / "mirror" / "disks"
        self._disks.mkdir(parents=True)
        shown.mkdir()
        self.data = bytearray(base.ljust(disk_bytes, b"\0"))
        self.shown = shown / f"{self.checkpoint_id}.qcow2"
        self.shown.write_bytes(self._file(disk_bytes))
        (self._disks / f"{self.checkpoint_id}.data").hardlink_to(self.shown)
        self.know(key="")
        self._rebase(self.shown)
        self.bases = recovered_disks.BackingImages(str(folder / "mirror"))
        self.now_s = 0.0
        self.pulling = self.made_pulling(domain_lab.uri(host), folder, rate_bytes_s)

    def made_pulling(self, uri: str, folder: pathlib.Path, rate_bytes_s: int) -> pull_loop.PullLoop:
        """Return a new pull loop, as after a restart."""
        self.ended = threading.Event()
        return pull_loop.PullLoop(
            domain_list.Domains(uri, self.bases.checkpoint_of),
            recovered_disks.RecoveredDisks(folder / "state"),
            self.bases,
            rate_bytes_s,
            self.ended,
            offline_pull.OfflinePull(self.ended),
            manual_clock.FunctionClock(lambda: self.now_s),
        )

    def look(self) -> None:
        """Start due pulls, and wait for a pull of a stopped server."""
        self.pulling.start_due_pulls()
        self.pulling.wait_for_pull()

    def know(self, key: str, instance_id: str = "") -> None:
        """Write the agent's record of the recovery; with a key, chunks are missing.

        :param instance_id: of the record's server; "": this one
        """
        path = self._disks / f"{self.checkpoint_id}.acrecovery"
        reported = {"version": 1, "instance_id": instance_id or self.guest.instance, "key": key}
        path.write_bytes(msgspec.json.encode(reported))

    def _file(self, disk_bytes: int) -> bytes:
        runs_ = [qcow2_writer.DiskRun(n * CHUNK, CHUNK, is_zero=not n % 5) for n in self.changed]
        plan = qcow2_writer.Plan(
            disk_bytes, CHUNK, layout.Codec.STORED, lambda: runs_, self.mirror_link or ""
        )
        for run in runs_:
            part = bytes(CHUNK) if run.is_zero else random.Random(run.at).randbytes(CHUNK)
            self.data[run.at : run.at + CHUNK] = part
        return b"".join(plan.iter_parts(lambda run: [self.data[run.at : run.at + run.length]]))

    def _rebase(self, path: pathlib.Path) -> None:
        command = ["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", path]
        runs.tool([*command, self.guest.path])

    def write(self, at: int, length: int, byte: int) -> None:
        """Write as the guest does, and record the expected content."""
        self.guest.write(at, length, byte)
        self.data[at : at + length] = bytes([byte]) * length

    def lies_on(self) -> str | None:
        """Return the disk's backing file."""
        return local_file.backing_of(str(self.guest.path))

    def is_ordinary(self) -> bool:
        """Return whether the disk's backing file is the mirror, as for any server."""
        return self.lies_on() == self.mirror_link

    def is_marked(self) -> bool:
        """Return whether the disk has a recovery marker, so that it may lack data."""
        return recovery_marker.read(str(self.guest.path)) is not None

    def content(self) -> bytes:
        """Return the disk's content; it must not be in use."""
        raw = self.guest.path.with_suffix(".content")
        convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw"]
        runs.tool([*convert, self.guest.path, raw])
        try:
            return raw.read_bytes()
        finally:
            raw.unlink()

    def own_bytes(self) -> int:
        """Return the number of bytes in the overlay itself."""
        with self.guest.path.open("rb") as file:
            local = local_file.LocalFile(file.fileno(), "disk")
            table = qcow2.Qcow2(local, may_have_backing=True)
            return sum(length for _, length, _ in table.iter_changes())
