# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of a real libvirt's disk is the disk at one moment, while a guest writes to it."""

import contextlib
import random
import subprocess
import time

import pytest

pytest.importorskip("libvirt")

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import checkpoint_copies
from tests.lab import domain as domain_lab

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES = 24 * MIB
BASE = random.Random(18).randbytes(6 * MIB) + bytes(2 * MIB + 512)


class NoPace:
    def spend_bytes(self, count_bytes):
        pass


class Rig:
    """A domain, a vault, and the domain's last checkpoint."""

    def __init__(self, host, folder, *options, cache="none", disk_bytes=DISK_BYTES):
        self.guest = domain_lab.Domain(host, folder, BASE, disk_bytes, cache, *options)
        self.folder = folder
        mirrors = str(self.guest.mirrors)
        self.domains = domain_list.Domains(
            domain_lab.uri(host),
            lambda path: overlay.base_of(path, mirrors),
            domain_lab.run_dir(host),
        )
        self.seal = checkpoint_encryption.Seal(bytes(range(1, 33)))
        self.holder = checkpoint_copies.Holder()
        self.before, self.bitmap, self.taking = None, "", None

    @property
    def domain(self):
        (server,) = [
            s for s in self.domains.list_servers().servers if s.instance == self.guest.instance
        ]
        return self.domains.find_domain(server)

    def start(self):
        self.guest.domain.create()
        time.sleep(3.0)  # the firmware has found its disk

    def take(self, meanwhile=lambda moment: None, chunk_bytes=CHUNK):
        """Take a checkpoint, and return the disk that it represents."""
        bitmap = f"acstor-{random.randbytes(4).hex()}"
        context = (
            f"qemu:dirty-bitmap:{libvirt_domain.EXPORT_BITMAP}"
            if self.bitmap
            else nbd_client.ALLOCATION
        )
        with (
            self.domain.export_snapshot(bitmap, self.bitmap, self.folder) as moment,
            nbd_client.ExportedDisk(moment.export, context, 20.0) as disk,
        ):
            meanwhile(moment)
            self.taking = disk_capture.DiskCapture(
                disk, chunk_bytes, self.seal, self.holder, NoPace()
            )
            written = [
                e[:2] for e in disk.iter_extents() if self.bitmap and e.flags & nbd_client.DIRTY
            ]
            said = [change[:2] for change in overlay.allocated_ranges(str(self.guest.path))]
            seen = disk_capture.ChangedRanges(self.before, lambda: written, lambda: said)
            entries = list(self.taking.iter_entries(seen))
            self.before = checkpoint_manifest.Manifest.parse(self._built(entries), "it")
            meanwhile(moment)
        self.bitmap = bitmap
        return self.rebuilt()

    def _built(self, entries):
        subject = checkpoint_manifest.Subject(
            disk=self.guest.image,
            instance=self.guest.instance,
            project=self.guest.project,
            base=self.guest.image,
            os_hash=chunk_map.OsHash("sha512", bytes(64)),
            cut=self.taking.cut,
            taken_ms=1,
            consistency=checkpoint_manifest.Consistency.CRASH,
            number=1,
        )
        return checkpoint_manifest.build(subject, entries)

    def rebuilt(self):
        return checkpoint_copies.rebuilt(
            BASE, self.before, self.seal, self.holder.chunks.__getitem__
        )

    def shown(self, moment, path):
        """Copy the exported snapshot with qemu-img."""
        url = f"nbd+unix:///{moment.export.name}?socket={moment.export.path}"
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "raw", url, path], check=True)
        return path.read_bytes()


@pytest.fixture
def rig(host, tmp_path):
    made = []

    def make(*options, **others):
        made.append(Rig(host, tmp_path, *options, **others))
        return made[-1]

    yield make
    for each in made:
        each.guest.close()


def start_of(size_bytes=DISK_BYTES):
    return BASE[:size_bytes].ljust(size_bytes, b"\0")


@pytest.mark.parametrize(
    ("cache", "options"),
    [
        ("none", ()),
        ("writeback", ("-o", "cluster_size=16k")),
        ("directsync", ("-o", "extended_l2=on,cluster_size=128k")),
    ],
)
def test_checkpoint_equals_the_disk_at_one_moment_under_writes(rig, tmp_path, cache, options):
    """Each equals QEMU's export of that moment, and a prefix of the sequence of writes."""
    it = rig(*options, cache=cache)
    it.start()
    with domain_lab.Writer(it.guest, DISK_BYTES, seed=len(options)) as writer:
        for number in range(4):
            shown = []
            low = writer.done
            found = it.take(
                lambda moment, shown=shown: shown.append(it.shown(moment, tmp_path / "copy"))
            )
            high = len(writer.writes)
            assert shown == [found, found], number
            assert writer.first_match(start_of(), found, low, high) is not None, number
            assert it.taking.read_bytes < DISK_BYTES or number == 0
            time.sleep(0.3)
        assert writer.done > low


def test_increment_reads_only_written_chunks(rig):
    it = rig()
    it.start()
    for at in range(0, 8 * MIB, 2 * MIB):
        it.guest.write(at, 64 * KIB, 7)
    it.take()
    assert it.taking.read_bytes == 4 * CHUNK and len(it.before) == 4
    it.guest.write(2 * MIB + 4096, 4096, 8)
    it.guest.write(20 * MIB - 512, 1024, 9)
    wanted = it.take()
    assert it.taking.read_bytes == 3 * CHUNK and len(it.before) == 6
    assert wanted[20 * MIB - 512 : 20 * MIB + 512] == bytes([9]) * 1024
    assert wanted[2 * MIB + 4096 : 2 * MIB + 8192] == bytes([8]) * 4096


def test_unflushed_write_is_captured_after_its_flush(rig):
    """Unflushed tables in QEMU's memory are not read; a later checkpoint has their clusters."""
    it = rig()
    it.guest.domain.createWithFlags(domain_lab.libvirt.VIR_DOMAIN_START_PAUSED)
    it.guest.write(3 * MIB, CHUNK, 5, how="")
    before = it.take()
    assert before == start_of()  # without a flush the write is not durable
    it.guest.io("flush")
    wanted = bytearray(before)
    wanted[3 * MIB : 3 * MIB + CHUNK] = bytes([5]) * CHUNK
    assert it.take() == wanted


def test_discarded_and_zeroed_ranges_read_as_zeros(rig):
    it = rig()
    it.start()
    it.guest.write(0, 4 * CHUNK, 1)
    it.take()
    it.guest.io(f"discard {CHUNK} {CHUNK}")
    it.guest.io(f"write -z -f {2 * CHUNK} {CHUNK}")
    it.guest.io(f"discard {40 * CHUNK} {CHUNK}")
    it.guest.io("flush")
    found = it.take()
    assert (
        found[:CHUNK] == bytes([1]) * CHUNK and found[3 * CHUNK : 4 * CHUNK] == bytes([1]) * CHUNK
    )
    assert found[CHUNK : 3 * CHUNK] == bytes(2 * CHUNK)
    assert found[40 * CHUNK : 41 * CHUNK] == bytes(CHUNK)


@pytest.mark.parametrize("end", ["destroy", "reboot"])
def test_bitmap_survives_a_stop_of_the_guest(rig, end):
    it = rig()
    it.start()
    it.guest.write(0, CHUNK, 1)
    it.take()
    it.guest.write(9 * CHUNK, CHUNK, 2)
    if end == "destroy":
        it.guest.domain.destroy()
        it.start()
    else:
        it.guest.domain.reset()
    it.guest.write(11 * CHUNK, CHUNK, 3)
    found = it.take()
    assert it.taking.read_bytes == 2 * CHUNK
    assert found[9 * CHUNK] == 2 and found[11 * CHUNK] == 3


def test_crash_of_qemu_loses_the_bitmap(rig):
    it = rig()
    it.start()
    it.guest.write(0, CHUNK, 1)
    it.take()
    it.guest.write(9 * CHUNK, CHUNK, 2)
    it.guest.kill()
    it.start()
    with pytest.raises(libvirt_domain.BitmapLost):
        it.take()
    lost, it.bitmap, it.before = it.bitmap, "", None
    found = it.take()
    assert found[0] == 1 and found[9 * CHUNK] == 2
    it.domain.remove_bitmap(lost)
    assert it.guest.bitmaps() == [it.bitmap]
    it.domain.remove_bitmap(lost)  # removing a missing bitmap is no error


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("size_bytes", [DISK_BYTES + 5 * CHUNK // 2, DISK_BYTES - 7 * CHUNK // 2])
def test_disk_may_be_resized_between_checkpoints(rig, is_running, size_bytes):
    it = rig(disk_bytes=DISK_BYTES - 512)
    it.start()
    it.guest.write(DISK_BYTES - 2 * CHUNK, 2 * CHUNK - 512, 1)
    it.take()
    if is_running:
        if size_bytes < DISK_BYTES:
            pytest.skip("QEMU makes no disk smaller while a guest has it")
        flags = domain_lab.libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES
        it.guest.domain.blockResize("vda", size_bytes, flags)
    else:
        it.guest.domain.destroy()
        command = ["qemu-img", "resize", "-q", "--shrink", it.guest.path, str(size_bytes)]
        subprocess.run(command, check=True)
        it.start()
    it.guest.write(size_bytes - CHUNK, CHUNK, 2)
    wanted = bytearray(start_of(DISK_BYTES - 512))
    wanted[DISK_BYTES - 2 * CHUNK :] = bytes([1]) * (2 * CHUNK - 512)
    wanted = wanted[:size_bytes].ljust(size_bytes, b"\0")
    wanted[size_bytes - CHUNK :] = bytes([2]) * CHUNK
    assert it.take() == wanted


def test_live_snapshot_of_nova_aborts_the_running_checkpoint_only(rig, tmp_path):
    """Nova first aborts the disk's block job, which is ours."""
    it = rig()
    it.start()
    it.guest.write(0, CHUNK, 1)
    it.take()
    it.guest.write(CHUNK, CHUNK, 2)

    def snapshot(_moment):
        with contextlib.suppress(domain_lab.libvirt.libvirtError):
            it.guest.domain.blockJobAbort("vda")

    before = it.before
    with pytest.raises(errors.Unusable):
        it.take(snapshot)
    assert not it.guest.is_busy() and it.before is before
    found = it.take()
    assert found[CHUNK] == 2 and it.taking.read_bytes == CHUNK
    assert it.guest.domain.listAllCheckpoints() == []


def test_clean_up_ends_the_export_of_a_killed_daemon(rig):
    it = rig()
    it.start()
    moment = it.domain.export_snapshot("acstor-cut", "", it.folder)
    moment.__enter__()
    assert it.guest.is_busy()
    it.domain.clean_up(["acstor-cut"], it.folder, may_be_frozen=False)
    assert not it.guest.is_busy() and list(it.folder.glob("acstor-*")) == []
    assert it.domain.remove_bitmap("acstor-cut")
    assert it.guest.bitmaps() == []
    with pytest.raises(ValueError, match="not one of acstor's"):
        it.domain.remove_bitmap("backup-tool")


def test_clean_up_leaves_a_foreign_backup_job_alone(rig):
    it = rig()
    it.start()
    socket, scratch = it.folder / "other.sock", it.folder / "other.scratch"
    it.guest.domain.backupBegin(
        libvirt_domain._backup_xml("vda", "", libvirt_domain.SnapshotFiles(socket, scratch)), None
    )
    it.domain.clean_up(["acstor-cut"], it.folder, may_be_frozen=False)
    assert it.guest.is_busy()
    it.guest.domain.abortJob()


def test_server_can_be_deleted_while_a_checkpoint_is_taken(rig):
    it = rig()
    it.start()

    def delete(_moment):
        if it.guest.domain.isActive():
            it.guest.domain.destroy()
            flags = domain_lab.libvirt
            it.guest.domain.undefineFlags(
                flags.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | flags.VIR_DOMAIN_UNDEFINE_NVRAM
            )

    with pytest.raises(errors.Unusable):
        it.take(delete)
    assert it.domains.list_servers().servers == []
    assert list(it.folder.glob("acstor-*")) == []


def test_list_servers_returns_only_nova_servers_on_mirrors(rig):
    it = rig()
    (server,) = it.domains.list_servers().servers
    assert server.instance == it.guest.instance and server.project == it.guest.project
    assert server.disk == ("vda", str(it.guest.path), it.guest.image)
    assert server.extra_specs == {"acstor:checkpoint_interval_s": "120"}
    assert not server.has_agent
    elsewhere = domain_list.Domains(domain_lab.uri(it.guest.host), lambda path: None)
    assert elsewhere.list_servers().servers == []


def test_base_of_returns_the_image_id_only_for_a_disk_on_the_mirror(rig):
    it = rig()
    assert overlay.base_of(str(it.guest.path), "/elsewhere") is None
    assert overlay.base_of(str(it.folder / "none"), str(it.guest.mirrors)) is None
    assert overlay.base_of(str(it.guest.path), str(it.guest.mirrors)) == ids.ImageId(it.guest.image)
