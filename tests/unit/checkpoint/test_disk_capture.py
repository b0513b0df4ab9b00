# SPDX-License-Identifier: Apache-2.0
"""Capture of a disk: all flushed data is read, sent once and acknowledged by all holders."""

import random
import threading
import time

import pytest

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import rate_limit
from acstor_checkpoint.holders import holder_group
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import checkpoint_copies
from tests.fakes import manual_clock

CHUNK = geometry.MIN_CHUNK_BYTES
ID = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
SEAL = checkpoint_encryption.Seal(bytes(range(1, 33)))
NO_PACE = rate_limit.RateLimit(0, threading.Event())


class Guest:
    """A disk in memory with a dirty bitmap and the flushed allocation."""

    def __init__(self, base, size_bytes):
        self.base, self.data = base, bytearray(base[:size_bytes].ljust(size_bytes, b"\0"))
        self.written, self.held, self.said = set(), set(), set()

    @property
    def size_bytes(self):
        return len(self.data)

    def read_into(self, view, at):
        view[:] = self.data[at : at + len(view)]

    def write(self, at, data):
        self.data[at : at + len(data)] = data
        sectors = range(at // 512, -(-(at + len(data)) // 512))
        self.written.update(sectors)
        self.held.update(sectors)

    def flush(self):
        self.said = set(self.held)

    def resize(self, size_bytes):
        self.data = self.data[:size_bytes].ljust(size_bytes, b"\0")
        for sectors in (self.written, self.held, self.said):
            sectors -= {sector for sector in sectors if sector * 512 >= size_bytes}


def ranges(sectors):
    return [(sector * 512, 512) for sector in sorted(sectors)]


def take(guest, holder, before, should_stop=lambda: False, **limits):
    taking = disk_capture.DiskCapture(guest, CHUNK, SEAL, holder, NO_PACE, should_stop, **limits)
    written = ranges(guest.written) if before else ()
    entries = list(
        taking.iter_entries(
            disk_capture.ChangedRanges(before, lambda: written, lambda: ranges(guest.said))
        )
    )
    guest.written.clear()
    subject = checkpoint_manifest.Subject(
        disk=ID,
        instance=ID,
        project="p",
        base=ID,
        os_hash=chunk_map.UNKNOWN_OS_HASH,
        cut=taking.cut,
        taken_ms=1,
        consistency=checkpoint_manifest.Consistency.CRASH,
        number=1,
    )
    raw = checkpoint_manifest.build(subject, entries)
    return taking, checkpoint_manifest.Manifest.parse(raw, "it")


def rebuilt(guest, holder, manifest):
    return checkpoint_copies.rebuilt(guest.base, manifest, SEAL, holder.chunks.__getitem__)


@pytest.mark.parametrize("seed", range(30))
def test_flushed_data_is_restored_after_any_history(seed):
    rng = random.Random(seed)
    guest = Guest(rng.randbytes(9 * CHUNK + 512), 20 * CHUNK + 512 * rng.randrange(40))
    holder, before = checkpoint_copies.Holder(), None
    for _ in range(40):
        match rng.randrange(9):
            case 0:
                guest.resize(max(512, guest.size_bytes + 512 * rng.randrange(-70, 70)))
            case 1:
                for name in rng.sample(sorted(holder.chunks), len(holder.chunks) // 3):
                    del holder.chunks[name]
            case 2:
                guest.flush()
                _, before = take(guest, holder, before)
                assert rebuilt(guest, holder, before) == guest.data
            case 3:
                _, before = take(guest, holder, before)  # without a flush no data is promised
            case 8:
                _, before = take(guest, holder, before, lambda: rng.random() < 0.5)
            case 4:
                guest.written.clear()  # QEMU was killed
                before = None
            case _:
                length = 512 * rng.randrange(1, 100)
                at = 512 * rng.randrange(guest.size_bytes // 512)
                length = min(length, guest.size_bytes - at)
                guest.write(at, rng.choice([bytes(length), rng.randbytes(length)]))
    guest.flush()
    _, before = take(guest, holder, before)
    assert rebuilt(guest, holder, before) == guest.data


def test_adjacent_chunks_are_read_at_once(monkeypatch):
    guest, reads = Guest(b"", 200 * CHUNK + 512), []
    for at, count in ((1, 3), (7, 1), (100, 70), (199, 1)):
        guest.write(at * CHUNK, b"a" * count * CHUNK)
    guest.write(200 * CHUNK, b"b")
    guest.flush()
    read_into = guest.read_into

    def noted(view, at):
        reads.append((at // CHUNK, len(view)))
        read_into(view, at)

    monkeypatch.setattr(guest, "read_into", noted)
    holder = checkpoint_copies.Holder()
    _, manifest = take(guest, holder, None)
    most = nbd_client.MAX_READ_BYTES // CHUNK
    rows = [(1, 3), (7, 1), (100, most), (100 + most, 70 - most)]
    assert reads == [(at, count * CHUNK) for at, count in rows] + [(199, CHUNK + 512)]
    assert rebuilt(guest, holder, manifest) == guest.data


def test_interrupted_capture_continues_with_the_rest():
    guest, holder = Guest(b"", 20 * CHUNK), checkpoint_copies.Holder()
    guest.write(0, random.Random(1).randbytes(20 * CHUNK))
    guest.flush()
    before, parts = None, []
    while not parts or parts[-1].unread_bytes:
        late = iter([False, True, True])
        taking, before = take(guest, holder, before, late.__next__, batch_bytes=2 * CHUNK)
        parts.append(taking)
        if len(parts) == 2:
            guest.write(0, random.Random(2).randbytes(CHUNK))  # read before
            guest.write(19 * CHUNK, random.Random(3).randbytes(CHUNK))
            guest.flush()
    assert [part.read_bytes // CHUNK for part in parts] == [4, 4, 4, 4, 4, 1]
    assert rebuilt(guest, holder, before) == guest.data


def test_equal_chunks_are_sent_once_and_zeros_never():
    guest, holder = Guest(b"", 8 * CHUNK), checkpoint_copies.Holder()
    for chunk_no in range(6):
        guest.write(chunk_no * CHUNK, bytes([7]) * CHUNK)
    guest.write(6 * CHUNK, bytes(CHUNK))
    guest.flush()
    taking, manifest = take(guest, holder, None)
    assert len(manifest) == 7 and len(holder.chunks) == 1
    assert taking.read_bytes == taking.changed_bytes == 7 * CHUNK
    assert taking.sent_bytes == sum(map(len, holder.chunks.values()))
    again, _ = take(guest, holder, manifest)
    assert (again.read_bytes, again.sent_bytes) == (0, 0)


def test_failing_holder_fails_the_capture_and_sent_chunks_are_reused():
    guest, holder = Guest(b"", 600 * CHUNK), checkpoint_copies.Holder()
    guest.write(0, random.Random(1).randbytes(600 * CHUNK))
    guest.flush()
    holder.dies_after = 400
    with pytest.raises(holder_group.HolderFailed):
        take(guest, holder, None)
    holder.dies_after = None
    taking, manifest = take(guest, holder, None)
    assert rebuilt(guest, holder, manifest) == guest.data
    assert taking.sent_bytes < 300 * CHUNK


def test_reader_keeps_to_its_rate_and_stops_on_request():
    now_s, ended = [0.0], threading.Event()
    slept = []

    class Event:
        def is_set(self):
            return ended.is_set()

        def wait(self, wait_s):
            slept.append(wait_s)
            now_s[0] += wait_s
            return ended.is_set()

    paced = rate_limit.RateLimit(1000, Event(), manual_clock.FunctionClock(lambda: now_s[0]))
    for _ in range(100):
        paced.spend_bytes(100)
    assert now_s[0] == pytest.approx(10.0 - 0.1)
    now_s[0] += 60.0  # an unused rate is not saved up
    before_s = now_s[0]
    for _ in range(100):
        paced.spend_bytes(100)
    assert now_s[0] - before_s == pytest.approx(10.0 - 0.1)
    ended.set()
    with pytest.raises(errors.Unusable, match="the daemon stops"):
        paced.spend_bytes(1)
    with pytest.raises(errors.Unusable, match="the daemon stops"):
        rate_limit.RateLimit(0, ended).spend_bytes(1)


@pytest.mark.parametrize("has_before", [False, True])
def test_too_large_capture_is_refused_before_anything_is_sent(has_before):
    guest, holder, before = Guest(b"", 20 * CHUNK), checkpoint_copies.Holder(), None
    if has_before:
        guest.write(2 * CHUNK, b"1" * 2 * CHUNK)
        guest.flush()
        _, before = take(guest, holder, None)
    guest.write(0, b"2" * 4 * CHUNK)
    guest.flush()
    taking, last = take(guest, holder, before, max_entries=4)
    assert taking.read_bytes == 4 * CHUNK and len(last) == 4
    kept = dict(holder.chunks)
    guest.write(19 * CHUNK, b"3" * CHUNK)
    guest.flush()
    with pytest.raises(disk_capture.DiskTooLarge, match="differs from its image by more than"):
        take(guest, holder, last if has_before else None, max_entries=4)
    assert holder.chunks == kept


class CountingSeal(checkpoint_encryption.Seal):
    """A slow seal that counts the chunks it seals."""

    def __init__(self):
        super().__init__(bytes(range(1, 33)))
        self.closed = []

    def close(self, name, plain):
        self.closed.append(name)
        time.sleep(0.01)
        return super().close(name, plain)


class TwoHolders:
    """Two holders that lack all chunks and fetch them concurrently."""

    def __init__(self):
        self.kept = [{}, {}]

    def missing_names(self, names):
        return holder_group.AllNames()

    def put(self, names, sealed, plain_bytes):
        def ask(kept):
            kept.update((name, sealed(name)) for name in names)

        asking = [threading.Thread(target=ask, args=(kept,)) for kept in self.kept]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        return 0


def test_each_chunk_is_sealed_once_for_all_holders():
    guest, seal, holders = Guest(b"", 8 * CHUNK), CountingSeal(), TwoHolders()
    for number in range(8):
        guest.write(number * CHUNK, bytes([number + 1]) * CHUNK)
    guest.flush()
    taking = disk_capture.DiskCapture(guest, CHUNK, seal, holders, NO_PACE)
    entries = list(
        taking.iter_entries(disk_capture.ChangedRanges(None, tuple, lambda: ranges(guest.said)))
    )
    assert len(entries) == 8 and sorted(seal.closed) == sorted(entry.cid for entry in entries)
    assert holders.kept[0] == holders.kept[1]


def test_zero_chunks_count_towards_the_bytes_of_a_batch():
    """A holder's time for a batch is based on the bytes read for it."""
    guest, reported = Guest(b"", 8 * CHUNK), []
    guest.write(0, b"x" * CHUNK)
    guest.held = guest.said = set(range(8 * CHUNK // 512))
    holder = checkpoint_copies.Holder()
    put = holder.put
    holder.put = lambda names, sealed, size: reported.append(size) or put(names, sealed, size)
    take(guest, holder, None)
    assert reported == [8 * CHUNK] and len(holder.chunks) == 1
