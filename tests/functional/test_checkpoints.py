# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from a real libvirt to real vaults: complete or absent under every failure."""

import random
import subprocess
import sys
import threading
import time

import msgspec
import pytest

pytest.importorskip("libvirt")

from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import offline_export
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture import take_checkpoint
from acstor_checkpoint.holders import holder_group
from acstor_common import errors
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from tests.lab import checkpoints
from tests.lab import domain as domain_lab
from tests.lab import runs

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES = 24 * MIB
BASE = random.Random(18).randbytes(6 * MIB) + bytes(2 * MIB + 512)
CRASH = checkpoint_manifest.Consistency.CRASH


@pytest.fixture
def guest(host, tmp_path):
    made = domain_lab.Domain(host, tmp_path, BASE, DISK_BYTES)
    yield made
    made.close()


@pytest.fixture
def lab(host, guest, tmp_path):
    with checkpoints.Lab(tmp_path / "lab", host, guest.mirrors, 3) as running:
        running.know(guest, CHUNK)
        yield running


@pytest.fixture
def owner(lab):
    return checkpoints.Host(lab.options)


def server_of(owner, guest):
    return next(s for s in owner.domains.list_servers().servers if s.instance == guest.instance)


def start(guest):
    guest.domain.create()
    time.sleep(3.0)  # the firmware has found its disk


def disk_of(guest, tmp_path):
    """Return the bytes of an idle disk."""
    copy = tmp_path / "copy"
    words = ["qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", guest.path, copy]
    subprocess.run(words, check=True)
    return copy.read_bytes()


def test_each_vault_holds_every_byte(owner, guest, lab, tmp_path):
    start(guest)
    guest.write(0, 3 * CHUNK, 1)
    guest.write(20 * MIB, CHUNK, 2)
    first = owner.taker.take_checkpoint(server_of(owner, guest))
    assert owner.rebuilt(first, BASE) == [disk_of(guest, tmp_path)] * 2
    assert (first.number, first.full_read_reason) == (1, take_checkpoint.FIRST)
    assert (first.changed_bytes, first.read_bytes) == (4 * CHUNK, 4 * CHUNK)
    assert first.consistency is CRASH and first.project == guest.project
    guest.write(CHUNK, CHUNK, 3)
    wanted = []
    for number in (2, 3, 4):
        newest = owner.taker.take_checkpoint(server_of(owner, guest))
        assert (newest.number, newest.full_read_reason) == (number, "")
        wanted.append(disk_of(guest, tmp_path))
        assert owner.rebuilt(newest, BASE) == [wanted[-1]] * 2
        assert newest.read_bytes == CHUNK
        guest.write(number * MIB, CHUNK, number)
    assert guest.bitmaps() == [owner.states.load(guest.instance).bitmap]
    assert guest.domain.listAllCheckpoints() == [] and list(owner.sockets.iterdir()) == []
    assert owner.rebuilt(owner.registered()[-2], BASE) == [wanted[-2]] * 2
    with pytest.raises(errors.ChunkMissing):  # the two newest stay
        owner.rebuilt(first, BASE)


def test_unregistered_checkpoint_does_not_count(owner, guest, tmp_path):
    start(guest)
    guest.write(0, 8 * CHUNK, 1)
    owner.refuses = True
    for _ in range(3):
        with pytest.raises(errors.Unusable, match="does not answer"):
            owner.taker.take_checkpoint(server_of(owner, guest))
    assert len(guest.bitmaps()) == 1 and owner.states.load(guest.instance).manifest == ""
    owner.refuses = False
    record = owner.taker.take_checkpoint(server_of(owner, guest))
    assert record.sent_bytes == 0 and record.full_read_reason == take_checkpoint.FIRST
    assert record.number == 4 and len(guest.bitmaps()) == 1
    assert owner.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2


def test_disk_rebuilt_on_another_image_since_the_listing_is_refused(owner, guest):
    """Nova rebuilt the server: its unwritten clusters would be read from the old image."""
    start(guest)
    listed = server_of(owner, guest)
    guest.domain.destroy()
    guest.rebuild(BASE, DISK_BYTES)
    start(guest)
    with pytest.raises(errors.Unusable, match=r"it is no longer based on image"):
        owner.taker.take_checkpoint(listed)
    assert owner.registered() == [] and not guest.is_busy()
    assert server_of(owner, guest).disk.base == guest.image != listed.disk.base


def test_dead_vault_is_replaced_and_the_new_one_gets_every_chunk(owner, guest, lab, tmp_path):
    start(guest)
    guest.write(0, 8 * CHUNK, 1)
    owner.taker.take_checkpoint(server_of(owner, guest))
    guest.write(4 * MIB, CHUNK, 2)
    lab.vaults["h2"].kill()
    with pytest.raises(holder_group.HolderFailed, match="h2"):
        owner.taker.take_checkpoint(server_of(owner, guest))
    assert not guest.is_busy()
    record = owner.taker.take_checkpoint(server_of(owner, guest))
    assert [holder.host for holder in record.holders] == ["h1", "h3"]
    assert record.full_read_reason == ""
    assert owner.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2


def test_vault_that_lost_a_chunk_gets_it_again(owner, guest, lab, tmp_path):
    start(guest)
    for number in range(8):
        guest.write(number * MIB, CHUNK, number + 1)
    owner.taker.take_checkpoint(server_of(owner, guest))
    chunks = [path for path in lab.vaults["h1"].folder.rglob("*") if path.is_file()]
    smallest = sorted(chunks, key=lambda path: path.stat().st_size)[:3]
    for path in smallest:
        path.unlink()
    lab.vaults["h1"].kill()
    lab.vaults["h1"].start()
    record = owner.taker.take_checkpoint(server_of(owner, guest))
    assert owner.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2
    assert record.read_bytes <= 3 * CHUNK


@pytest.mark.parametrize("may_lack_chunks", [False, True])
def test_vault_without_acknowledged_chunks_is_replaced_before_any_read(
    owner, guest, lab, tmp_path, monkeypatch, may_lack_chunks
):
    """Unless this host had it drop them: then the same vault gets all of them again."""
    limits = holder_group.HolderLimits(lost_chunks=4)
    monkeypatch.setattr(owner.taker, "_settings", owner.taker._settings._replace(holders=limits))
    start(guest)
    for number in range(8):
        guest.write(number * CHUNK, CHUNK, number + 1)
    owner.taker.take_checkpoint(server_of(owner, guest))
    state = owner.states.load(guest.instance)
    state.may_lack_chunks = may_lack_chunks
    owner.states.save(guest.instance, state)
    for path in lab.vaults["h1"].folder.rglob("[0-9a-f]" * 64):
        path.unlink()
    read, seen = nbd_client.ExportedDisk.read_into, []
    monkeypatch.setattr(
        nbd_client.ExportedDisk, "read_into", lambda *words: seen.append(1) or read(*words)
    )
    if not may_lack_chunks:
        with pytest.raises(holder_group.HolderLost, match=r"h1 .* 8 chunks that it acknowledged"):
            owner.taker.take_checkpoint(server_of(owner, guest))
        assert seen == [] and owner.places.avoided == ["h1"] and owner.places.costly == ["h1"]
    record = owner.taker.take_checkpoint(server_of(owner, guest))
    chosen = ["h1", "h2"] if may_lack_chunks else ["h2", "h3"]
    assert [holder.host for holder in record.holders] == chosen
    assert record.read_bytes == 8 * CHUNK and not owner.states.load(guest.instance).may_lack_chunks
    assert owner.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2


def test_killed_daemon_leaves_no_checkpoint_and_its_successor_takes_one(guest, lab, tmp_path):
    start(guest)
    guest.write(0, 10 * MIB, 1)
    lab.options.rate_bytes_s = MIB
    options = tmp_path / "options.json"
    options.write_bytes(msgspec.json.encode(lab.options))
    argv = [sys.executable, "-m", "tests.lab.checkpoints", options]
    process = subprocess.Popen(argv, stderr=(tmp_path / "log").open("wb"))
    try:
        runs.wait_for(guest.is_busy, 30.0, "the checkpoint", (tmp_path / "log").read_text)
        time.sleep(2.0)
    finally:
        process.kill()
        process.wait()
    assert guest.is_busy()
    guest.write(12 * MIB, MIB, 2)
    lab.options.rate_bytes_s = 0
    after = checkpoints.Host(lab.options)
    assert after.registered() == []
    taker = after.daemon()
    assert taker.run_turn() and taker.run_turn()  # it ends the job, and takes one
    (record,) = after.registered()
    assert record.number == 2 and not guest.is_busy() and len(guest.bitmaps()) == 1
    assert after.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2
    assert list(after.sockets.iterdir()) == []


@pytest.mark.expect_log("its next checkpoint is a full one")
def test_backup_job_of_a_killed_daemon_without_state_is_ended(owner, guest):
    start(guest)
    owner.taker.take_checkpoint(server_of(owner, guest))
    domain = owner.domains.find_domain(server_of(owner, guest))
    cut = domain.export_snapshot("acstor-cut", "", owner.sockets)
    cut.__enter__()  # and nothing ends it
    (state_folder,) = (owner.folder / "state").iterdir()
    (state_folder / "state.json").write_text("{")
    assert guest.is_busy()
    assert (
        owner.taker.take_checkpoint(server_of(owner, guest)).full_read_reason
        == take_checkpoint.FIRST
    )
    assert not guest.is_busy()


def test_server_deleted_during_its_checkpoint_gets_none(owner, guest):
    start(guest)
    guest.write(0, 12 * MIB, 1)  # more than the buffer in memory
    owner.places.client_of = before_first_put(owner.places.client_of, lambda: delete(guest))
    with pytest.raises(errors.AcstorError):
        owner.taker.take_checkpoint(server_of(owner, guest))
    assert owner.registered() == [] and list(owner.sockets.iterdir()) == []
    assert owner.domains.list_servers().servers == []


def delete(guest):
    """Delete a guest as Nova does it."""
    flags = domain_lab.libvirt
    guest.domain.destroy()
    guest.domain.undefineFlags(
        flags.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | flags.VIR_DOMAIN_UNDEFINE_NVRAM
    )


def before_first_put(client, work):
    """Return a client factory that runs ``work`` before the first put."""
    lock, left = threading.Lock(), [work]

    def made(holder):
        made_client = client(holder)
        put = made_client.put

        def put_later(*words):
            with lock:
                while left:
                    left.pop()()
            return put(*words)

        made_client.put = put_later
        return made_client

    return made


def test_checkpoint_of_a_stopped_server_equals_its_disk(owner, guest, tmp_path):
    start(guest)
    guest.write(0, 2 * CHUNK, 1)
    owner.taker.take_checkpoint(server_of(owner, guest))
    guest.write(3 * MIB, CHUNK, 2)
    guest.domain.destroy()
    off = owner.taker.take_checkpoint(server_of(owner, guest))
    assert (off.read_bytes, off.full_read_reason) == (CHUNK, "")
    assert owner.rebuilt(off, BASE) == [disk_of(guest, tmp_path)] * 2
    start(guest)
    guest.write(5 * MIB, CHUNK, 3)
    on = owner.taker.take_checkpoint(server_of(owner, guest))
    assert on.read_bytes == 2 * CHUNK and on.full_read_reason == ""
    assert owner.rebuilt(on, BASE) == [disk_of(guest, tmp_path)] * 2
    guest.kill()
    crashed = owner.taker.take_checkpoint(server_of(owner, guest))
    assert crashed.full_read_reason == take_checkpoint.NO_BITMAP
    assert owner.rebuilt(crashed, BASE) == [disk_of(guest, tmp_path)] * 2


def test_server_started_during_its_checkpoint_is_not_blocked(owner, guest):
    start(guest)
    guest.write(0, 2 * CHUNK, 1)
    guest.domain.destroy()
    register, owner.places.client_of = owner.registered, start_first(guest, owner.places.client_of)
    with pytest.raises(offline_export.DiskChanged):
        owner.taker.take_checkpoint(server_of(owner, guest))
    assert register() == []
    assert owner.taker.take_checkpoint(server_of(owner, guest)).number == 2


def start_first(guest, client):
    lock = threading.Lock()  # vaults get requests concurrently

    def made(holder):
        made_client = client(holder)
        put = made_client.put

        def begin(*words):
            with lock:
                if not guest.domain.isActive():
                    guest.domain.create()
            return put(*words)

        made_client.put = begin
        return made_client

    return made


@pytest.mark.expect_log("missing or broken bitmap")
@pytest.mark.expect_log("a manifest is rejected")
@pytest.mark.expect_log("its next checkpoint is a full one")
def test_full_read_after_a_loss_is_recorded_with_its_reason(owner, guest, tmp_path):
    start(guest)
    guest.write(0, 2 * CHUNK, 1)
    first = owner.taker.take_checkpoint(server_of(owner, guest))
    guest.kill()
    start(guest)
    lost = owner.taker.take_checkpoint(server_of(owner, guest))
    assert (
        lost.full_read_reason == take_checkpoint.NO_BITMAP and lost.vault_disk == first.vault_disk
    )
    assert lost.sent_bytes == 0
    (state_folder,) = (tmp_path / "lab" / "state").iterdir()
    for path in state_folder.glob("*.manifest"):
        path.write_bytes(path.read_bytes()[:-1])
    damaged = owner.taker.take_checkpoint(server_of(owner, guest))
    assert damaged.full_read_reason == take_checkpoint.MANIFEST_LOST
    (state_folder / "state.json").write_text("{")
    anew = owner.taker.take_checkpoint(server_of(owner, guest))
    assert anew.full_read_reason == take_checkpoint.FIRST and anew.vault_disk != first.vault_disk
    assert owner.rebuilt(anew, BASE) == [disk_of(guest, tmp_path)] * 2


def test_checkpoint_numbers_continue_after_a_change_of_the_image(owner, guest, lab):
    start(guest)
    guest.write(0, 2 * CHUNK, 1)
    first = owner.taker.take_checkpoint(server_of(owner, guest))
    lab.know(guest, 2 * CHUNK)
    anew = checkpoints.Host(lab.options)
    second = anew.taker.take_checkpoint(server_of(anew, guest))
    assert second.full_read_reason == take_checkpoint.IMAGE_CHANGED
    assert second.vault_disk != first.vault_disk and second.number == first.number + 1 == 2


def test_read_rate_is_limited(lab, guest):
    start(guest)
    guest.write(0, 4 * MIB, 1)
    lab.options.rate_bytes_s = 2 * MIB
    owner = checkpoints.Host(lab.options)
    began_s = time.monotonic()
    owner.taker.take_checkpoint(server_of(owner, guest))
    assert time.monotonic() - began_s > 1.7


def test_long_checkpoint_is_taken_in_parts(lab, guest, tmp_path):
    start(guest)
    guest.write(0, 16 * MIB, 1)
    lab.options.rate_bytes_s, lab.options.longest_s = 8 * MIB, 0.2
    owner = checkpoints.Host(lab.options)
    for part in range(5):
        try:
            record = owner.taker.take_checkpoint(server_of(owner, guest))
            break
        except snapshot_window.PartialCapture:
            assert owner.registered() == [] and not guest.is_busy()
            guest.write(part * MIB, CHUNK, part + 2)
    assert part > 0 and record.full_read_reason == take_checkpoint.FIRST
    assert owner.rebuilt(record, BASE) == [disk_of(guest, tmp_path)] * 2
    assert len(guest.bitmaps()) == 1


def stuck(owner, guest):
    """Read parts while the guest rewrites its whole disk between them."""
    for part in range(snapshot_window.MAX_STALLED_PARTS + 1):
        with pytest.raises(snapshot_window.PartialCapture):
            owner.taker.take_checkpoint(server_of(owner, guest))
        guest.write(0, 16 * MIB, part + 2)


@pytest.fixture
def slow_owner(lab):
    lab.options.rate_bytes_s, lab.options.longest_s = 12 * MIB, 0.2
    return checkpoints.Host(lab.options)


@pytest.mark.expect_log("writes faster than its disk is read")
def test_checkpoint_completes_for_a_guest_that_writes_faster_than_reads(
    slow_owner, guest, tmp_path
):
    start(guest)
    guest.write(0, 16 * MIB, 1)
    stuck(slow_owner, guest)
    wanted = disk_of(guest, tmp_path)
    first = before_first_put(slow_owner.places.client_of, lambda: guest.write(0, 16 * MIB, 9))
    slow_owner.places.client_of = first
    record = slow_owner.taker.take_checkpoint(server_of(slow_owner, guest))
    assert slow_owner.rebuilt(record, BASE) == [wanted] * 2
    assert slow_owner.states.load(guest.instance).stalled_parts == 0


@pytest.mark.expect_log("writes faster than its disk is read")
def test_abort_of_a_long_capture_is_followed_by_partial_ones(slow_owner, guest):
    start(guest)
    guest.write(0, 16 * MIB, 1)
    stuck(slow_owner, guest)
    client = slow_owner.places.client_of
    slow_owner.places.client_of = before_first_put(client, guest.domain.abortJob)
    with pytest.raises(errors.Unusable):
        slow_owner.taker.take_checkpoint(server_of(slow_owner, guest))
    slow_owner.places.client_of = client
    assert not guest.is_busy() and slow_owner.registered() == []
    with pytest.raises(snapshot_window.PartialCapture):
        slow_owner.taker.take_checkpoint(server_of(slow_owner, guest))


@pytest.mark.expect_log("writes faster than its disk is read")
def test_long_capture_is_bounded_in_time(slow_owner, guest):
    slow_owner.options.most_s = 0.5
    slow_owner = checkpoints.Host(slow_owner.options)
    start(guest)
    guest.write(0, 16 * MIB, 1)
    stuck(slow_owner, guest)
    with pytest.raises(snapshot_window.PartialCapture):
        slow_owner.taker.take_checkpoint(server_of(slow_owner, guest))
    assert not guest.is_busy() and slow_owner.states.load(guest.instance).stalled_parts <= 1


def test_stopped_server_without_a_bitmap_is_captured_in_one_part(lab, guest):
    start(guest)
    guest.write(0, 6 * MIB, 1)
    guest.domain.destroy()
    lab.options.rate_bytes_s, lab.options.longest_s = 8 * MIB, 0.2
    owner = checkpoints.Host(lab.options)
    assert owner.taker.take_checkpoint(server_of(owner, guest)).read_bytes >= 6 * MIB


def test_stopping_daemon_aborts_the_running_checkpoint(lab, guest):
    start(guest)
    guest.write(0, 4 * MIB, 1)
    lab.options.rate_bytes_s = 1 * MIB
    owner = checkpoints.Host(lab.options)
    owner.ended.set()
    with pytest.raises(errors.Unusable, match="the daemon stops"):
        owner.taker.take_checkpoint(server_of(owner, guest))
    assert not guest.is_busy()
