# SPDX-License-Identifier: Apache-2.0
"""Recovered servers on a real libvirt become ordinary ones under every fault."""

import contextlib
import os
import random
import time
import uuid

import pytest

pytest.importorskip("libvirt")

import libvirt

from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.restore import offline_pull
from acstor_checkpoint.restore import pull_loop
from acstor_common import errors
from acstor_common.model import geometry
from tests.lab import domain as domain_lab
from tests.lab import recovered_domain
from tests.lab import runs

MIB, CHUNK = geometry.MIB, geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES = 96 * MIB
BASE = random.Random(18).randbytes(40 * MIB)
CHANGED = [0, 1, 3, 5, 100, *range(300, 320), 639, 640, 1000, DISK_BYTES // CHUNK - 1]
SLOW_BYTES_S = MIB // 2
DEADLINE_S = 60.0
QEMU_10 = 10_000_000


@pytest.fixture
def rig(host, tmp_path):
    made = []

    def make(changed=CHANGED, rate_bytes_s=0):
        it = recovered_domain.RecoveredDomain(
            host, tmp_path, BASE, DISK_BYTES, list(changed), rate_bytes_s
        )
        made.append(it)
        return it

    yield make
    for it in made:
        it.ended.set()
        it.guest.close()


def start(it):
    it.guest.domain.create()
    time.sleep(2.0)  # the firmware has found its disk


def until_ordinary(it):
    runs.wait_for(it.is_ordinary, DEADLINE_S, "the disk on the mirror", str)


def ends_as_it_should(it, more_chunks=0):
    until_ordinary(it)
    with contextlib.suppress(libvirt.libvirtError):
        it.guest.domain.destroy()
    it.now_s += pull_loop.LONGEST_PAUSE_S
    it.look()
    assert not it.is_marked()
    assert it.is_ordinary() and it.content() == it.data
    assert it.own_bytes() <= (len(it.changed) + more_chunks) * CHUNK
    it.shown.unlink()  # no disk uses it as its backing file
    assert it.content() == it.data
    runs.tool(["qemu-img", "check", "-q", it.guest.path])
    assert os.listdir(it.guest.path.parent).count(f"disk{offline_pull.COPY_ENDING}") == 0


def test_running_server_is_rebased_to_the_mirror_with_its_checkpoint_data(rig, tmp_path):
    it = rig()
    start(it)
    it.write(3 * CHUNK + 512, 1024, 7)
    it.look()
    it.write(310 * CHUNK, 3 * CHUNK, 9)
    it.write(700 * CHUNK, CHUNK, 11)
    until_ordinary(it)
    served = domain_list.Domains(
        domain_lab.uri(it.guest.host), it.bases.image_of, domain_lab.run_dir(it.guest.host)
    )
    assert not [one for one in served.list_servers().servers if one.instance == it.guest.instance]
    it.write(0, 512, 13)  # and flush
    it.look()
    assert not it.is_marked()
    [server] = [one for one in served.list_servers().servers if one.instance == it.guest.instance]
    assert server.disk.base == it.guest.image
    with served.find_domain(server).export_snapshot("acstor-one", "", tmp_path):
        assert "acstor-one" in it.guest.bitmaps()  # checkpoints work as usual
    ends_as_it_should(it, more_chunks=1)


def test_server_is_pulled_only_after_its_checkpoint_is_restored(rig):
    it = rig()
    start(it)
    it.know(key="ab" * 32)
    it.look()
    assert it.guest.domain.blockJobInfo("vda") == {}
    it.know(key="")
    it.look()
    ends_as_it_should(it)


@pytest.mark.expect_log("it does not belong to server")
def test_disk_on_the_checkpoint_of_another_server_is_not_pulled(rig):
    """A QEMU wrote the name into its header; root must not read another tenant's data for it."""
    it = rig()
    it.know(key="", instance_id=str(uuid.UUID(int=5)))
    before = it.guest.path.read_bytes()
    it.look()
    assert it.guest.path.read_bytes() == before and not it.is_marked()
    start(it)
    it.now_s += pull_loop.LONGEST_PAUSE_S
    it.look()
    assert it.guest.domain.blockJobInfo("vda") == {} and not it.is_marked()


@pytest.mark.parametrize("end", ["killed", "aborted", "stopped"])
@pytest.mark.allow_log("")
def test_interrupted_pull_is_started_again(rig, end):
    it = rig(range(100, 164), SLOW_BYTES_S)
    start(it)
    it.look()
    runs.wait_for(
        lambda: it.guest.domain.blockJobInfo("vda").get("cur", 0) > 102 * CHUNK,
        DEADLINE_S,
        "some of it",
        str,
    )
    it.write(150 * CHUNK + 512, 512, 5)
    if end == "aborted":  # as Nova does before it takes a snapshot
        it.guest.domain.blockJobAbort("vda")
    else:
        it.guest.kill() if end == "killed" else it.guest.domain.destroy()
        start(it)
    assert not it.is_ordinary()
    it.look()
    assert it.guest.domain.blockJobInfo("vda") == {}  # it waits first
    it.pulling._rate_bytes_s = 0
    it.now_s += pull_loop.FIRST_PAUSE_S
    it.look()
    ends_as_it_should(it)


@pytest.mark.allow_log("")
def test_kill_of_qemu_before_its_tables_are_written_loses_no_data(rig):
    it = rig()
    start(it)
    it.look()
    until_ordinary(it)
    it.guest.kill()
    has_tables = it.content() == it.data
    if it.guest.domain.connect().getVersion() < QEMU_10:
        assert not has_tables, "QEMU has written its tables: this test sees nothing"
    assert it.is_marked()
    it.now_s += pull_loop.LONGEST_PAUSE_S
    it.look()
    assert it.lies_on() == (it.mirror_link if has_tables else str(it.shown))
    assert it.content() == it.data
    start(it)
    it.now_s += pull_loop.LONGEST_PAUSE_S
    it.look()
    until_ordinary(it)
    it.write(0, 512, 1)
    it.now_s += pull_loop.LONGEST_PAUSE_S
    it.look()
    assert not it.is_marked()
    it.guest.kill()
    ends_as_it_should(it)


def test_stopped_server_is_rebased_to_the_mirror_with_its_checkpoint_data(rig):
    it = rig()
    start(it)
    it.write(3 * CHUNK + 512, 1024, 7)
    it.guest.domain.destroy()
    it.guest.path.chmod(0o640)
    it.look()
    assert it.is_ordinary() and it.guest.path.stat().st_mode & 0o777 == 0o640
    start(it)
    it.write(5 * CHUNK, 512, 3)
    ends_as_it_should(it)


def before_program(monkeypatch, program, what):
    """Run ``what`` before the pull runs a program."""
    done = offline_pull.OfflinePull._run

    def run(self, argv, *more):
        if argv[0] == program:
            what()
        done(self, argv, *more)

    monkeypatch.setattr(offline_pull.OfflinePull, "_run", run)


def meanwhile(monkeypatch, it, what):
    """Run ``what`` while the copy is made."""
    before_program(monkeypatch, "sync", what)
    it.look()
    monkeypatch.undo()
    assert not it.is_ordinary()
    assert not it.guest.path.with_name(f"disk{offline_pull.COPY_ENDING}").exists()


@pytest.mark.expect_log("was not copied into its disk")
def test_server_started_during_an_offline_pull_keeps_its_disk(rig, monkeypatch):
    it = rig()
    meanwhile(monkeypatch, it, lambda: start(it))
    it.write(5 * CHUNK, 512, 3)
    it.now_s += pull_loop.FIRST_PAUSE_S
    it.look()
    ends_as_it_should(it)


@pytest.mark.expect_log("was not copied into its disk")
def test_write_during_an_offline_pull_is_not_lost(rig, monkeypatch):
    it = rig()

    def write():
        command = f"write -P 9 {7 * CHUNK} {CHUNK}"
        runs.tool(["qemu-io", "-f", "qcow2", "-c", command, it.guest.path])
        it.data[7 * CHUNK : 8 * CHUNK] = bytes([9]) * CHUNK

    meanwhile(monkeypatch, it, write)
    it.now_s += pull_loop.FIRST_PAUSE_S
    it.look()
    ends_as_it_should(it, more_chunks=1)


def test_lock_of_a_disk_and_a_running_server_exclude_each_other(rig):
    it = rig()
    with offline_pull._locked(str(it.guest.path)):
        with pytest.raises(libvirt.libvirtError, match="lock"):
            it.guest.domain.create()
    start(it)
    with pytest.raises(errors.Unusable, match="it is in use"):
        with offline_pull._locked(str(it.guest.path)):
            pass


@pytest.mark.expect_log("must stay free")
def test_copy_without_enough_space_is_not_made(rig):
    it = rig()
    it.pulling._pull_offline = offline_pull.OfflinePull(it.ended, spare_bytes=1 << 60)
    before = overlay.stamp(str(it.guest.path))
    it.look()
    assert not it.is_ordinary() and overlay.stamp(str(it.guest.path)) == before


@pytest.mark.expect_log("No such file|not open|does not exist")
def test_folder_moved_by_nova_during_a_pull_is_no_fault(rig, monkeypatch):
    it = rig()
    folder = it.guest.path.parent
    moved = folder.with_name(f"{folder.name}_resize")
    before_program(monkeypatch, "qemu-img", lambda: os.rename(folder, moved))
    it.look()
    os.rename(moved, folder)
    assert not it.is_ordinary()
