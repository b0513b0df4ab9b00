# SPDX-License-Identifier: Apache-2.0
import itertools
import random

import pytest

from acstor_agent.core.images import readahead

MIB = 1024 * 1024
READ = 128 * 1024


def read_in_order(ahead, start, count):
    return [ahead.predict_range(start + n * READ, READ, 0.0) for n in range(count)]


def test_readahead_of_a_sequential_reader_has_no_gap_or_overlap():
    ranges = read_in_order(readahead.ReadAhead(4 * MIB), 0, 100)
    starts_and_stops = [r for r in ranges if r[1] > r[0]]
    for (_, stop), (start, _) in itertools.pairwise(starts_and_stops):
        assert start == stop


def reach(ranges):
    return [stop - (n + 1) * READ for n, (_, stop) in enumerate(ranges) if stop]


def test_window_grows_with_the_bytes_read_up_to_the_limit():
    ranges = read_in_order(readahead.ReadAhead(2 * MIB), 0, 3000)
    assert ranges[:2] == [(0, 0), (0, 0)]
    assert reach(ranges)[0] == readahead.FIRST_WINDOW_BYTES
    assert max(reach(ranges[:200])) == readahead.FREE_WINDOW_BYTES
    assert max(reach(ranges)) == 2 * MIB


def test_window_is_refilled_when_half_of_it_is_read():
    ranges = read_in_order(readahead.ReadAhead(MIB), 0, 2000)[-1000:]
    lengths = [stop - start for start, stop in ranges if stop]
    assert set(lengths) == {MIB // 2}
    assert len(lengths) == 1000 * READ // (MIB // 2)


def test_limit_below_the_free_window_is_respected():
    ranges = read_in_order(readahead.ReadAhead(300 * 1024), 0, 50)
    assert max(reach(ranges)) == 256 * 1024  # whole reads


def test_copying_program_gets_readahead_of_several_reads():
    ahead = readahead.ReadAhead(64 * MIB)
    ranges = [ahead.predict_range(at * MIB, MIB, 0.0) for at in range(100)]
    assert ranges[:2] == [(0, 0), (0, 0)] and ranges[2] == (3 * MIB, 4 * MIB)
    fetched = [(at, start, stop) for at, (start, stop) in enumerate(ranges) if stop]
    began = [stop for at, _, stop in fetched if at < readahead.COPIED_READS - 1]
    assert began[-1] == readahead.COPIED_READS * MIB  # one ahead: it may be a guest that boots
    assert {stop - start for _, start, stop in fetched[-40:]} == {2 * MIB}
    assert all(stop == start for (_, _, stop), (_, start, _) in itertools.pairwise(fetched))
    assert max(stop - (at + 1) * MIB for at, _, stop in fetched) == readahead.COPY_READS * MIB


def test_readahead_counts_the_bytes_read_from_where_the_reader_began():
    def relative(first: int) -> list[tuple[int, int]]:
        ahead = readahead.ReadAhead(64 * MIB)
        ranges = [ahead.predict_range((first + at) * MIB, MIB, 0.0) for at in range(40)]
        return [(start - first * MIB, stop - first * MIB) for start, stop in ranges if stop]

    assert relative(first=500) == relative(first=0)


def test_readahead_of_a_long_copy_grows_with_the_bytes_read():
    ahead = readahead.ReadAhead(64 * MIB)
    ranges = [ahead.predict_range(at * MIB, MIB, 0.0) for at in range(1000)]
    reach = max(stop - (at + 1) * MIB for at, (_, stop) in enumerate(ranges) if stop)
    assert readahead.COPY_READS * MIB < reach <= 1000 * MIB // readahead.WORTH
    assert not any(start % MIB or stop % MIB for start, stop in ranges)


def test_reader_that_stops_leaves_little_unread():
    for reads in (256, 1000, 5000, 20_000):
        ranges = read_in_order(readahead.ReadAhead(64 * MIB), 0, reads)
        unread = reach(ranges)[-1]
        assert unread <= max(readahead.FREE_WINDOW_BYTES, reads * READ / readahead.WORTH)


def test_random_reader_gets_no_readahead():
    rng = random.Random(4)
    ahead = readahead.ReadAhead(8 * MIB)
    for _ in range(1000):
        assert ahead.predict_range(rng.randrange(10**6) * 4096 * 2 + 4096, 4096, 0.0) == (0, 0)


def test_two_sequential_readers_of_an_image_are_distinguished():
    ahead = readahead.ReadAhead(MIB)
    far = 512 * MIB
    ranges = [
        ahead.predict_range(place + n * READ, READ, 0.0) for n in range(20) for place in (0, far)
    ]
    for start, some in ((0, ranges[::2]), (far, ranges[1::2])):
        fetched = [r for r in some if r[1]]
        assert fetched[0][0] == start + readahead.SEQUENTIAL_READS * READ
        assert fetched[-1][1] > start + 20 * READ
        assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(fetched))


def test_readers_that_stop_leave_little_unread_in_total():
    rng = random.Random(7)
    ahead = readahead.ReadAhead(8 * MIB)
    read_bytes = unread_bytes = fetched_bytes = 0
    for run in range(2000):
        start, fetched_to = run * 64 * MIB, 0
        for n in range(rng.randrange(1, 12)):
            at = start + n * READ
            begin, stop = ahead.predict_range(at, READ, 0.0)
            fetched_to = max(fetched_to, stop)
            fetched_bytes += stop - begin
            read_bytes += READ
            left = unread_bytes + max(0, fetched_to - (at + READ))
            assert left <= max(readahead.FREE_WINDOW_BYTES, read_bytes / readahead.SHARE)
        unread_bytes = left
    assert fetched_bytes > 2 * unread_bytes > 0


def test_readahead_read_in_another_order_counts_as_read():
    ahead = readahead.ReadAhead(MIB)
    for run in range(50):
        ranges = read_in_order(ahead, run * 64 * MIB, readahead.SEQUENTIAL_READS)
        start, stop = ranges[-1]
        assert stop - start == readahead.FIRST_WINDOW_BYTES
        for offset in reversed(range(start, stop, READ)):
            ahead.predict_range(offset + 4096, READ - 4096, 0.0)


def test_idle_readers_are_forgotten():
    ahead = readahead.ReadAhead(MIB)
    ahead.predict_range(0, READ, 0.0)
    for n in range(readahead.READERS):
        ahead.predict_range((n + 10) * MIB, 4096, 0.0)
    assert ahead.predict_range(READ, READ, 0.0) == (0, 0)


def test_limit_zero_disables_readahead():
    assert set(read_in_order(readahead.ReadAhead(0), 0, 10)) == {(0, 0)}


class FarLink:
    """A link with a delay, on which a reader waits for its data in virtual time."""

    def __init__(self, limit_bytes, delay_s, bytes_s):
        self.rtt_s, self._bytes_s = delay_s, bytes_s
        self._ahead = readahead.ReadAhead(limit_bytes, self)
        self.now_s = self._free_s = 0.0
        self._here_s = {}
        self.fetched_to = 0

    def _fetch(self, start, stop):
        for block in range(start // READ, -(-stop // READ)):
            if block not in self._here_s:
                self._free_s = max(self._free_s, self.now_s) + READ / self._bytes_s
                self._here_s[block] = self._free_s + self.rtt_s

    def read_in_order(self, begin, count):
        """Read; return the rate in bytes/s."""
        began_s = self.now_s
        for n in range(count):
            offset = begin + n * READ
            start, stop = self._ahead.predict_range(offset, READ, self.now_s)
            self.fetched_to = max(self.fetched_to, stop)
            self._fetch(offset, offset + READ)
            self._fetch(start, stop)
            self.now_s = max(self.now_s, self._here_s[offset // READ])
        return count * READ / (self.now_s - began_s)


@pytest.mark.parametrize("delay_s", [0.005, 0.02, 0.1, 0.2])
def test_reader_of_a_far_source_fills_its_link(delay_s):
    bytes_s = 12.5e6
    link = FarLink(8 * MIB, delay_s, bytes_s)
    link.read_in_order(0, 128)  # the window grows
    assert link.read_in_order(128 * READ, 1000) > 0.9 * bytes_s


def test_wide_window_of_a_far_source_is_refilled_before_half_is_read():
    link = FarLink(8 * MIB, 0.2, 12.5e6)
    link.read_in_order(0, 1000)
    ahead = []
    for n in range(1000, 1200):
        link.read_in_order(n * READ, 1)
        ahead.append(link.fetched_to - (n + 1) * READ)
    assert min(ahead) > 0.6 * max(ahead)


@pytest.mark.parametrize(("reads", "least", "most"), [(60, 1.5, 3.5), (1000, 4.5, 6.5)])
def test_only_a_long_reader_of_a_far_source_is_six_round_trips_ahead(reads, least, most):
    delay_s, bytes_s = 0.05, 12.5e6
    link = FarLink(8 * MIB, delay_s, bytes_s)
    link.read_in_order(0, reads - 40)
    ahead = []
    for n in range(reads - 40, reads):
        link.read_in_order(n * READ, 1)
        ahead.append(link.fetched_to - (n + 1) * READ)
    assert least < max(ahead) / (delay_s * bytes_s) < most


def test_full_link_without_delay_does_not_widen_the_window():
    link = FarLink(8 * MIB, 0.0, 12.5e6)
    link.read_in_order(0, 200)
    assert link.fetched_to - 200 * READ <= readahead.FREE_WINDOW_BYTES


@pytest.mark.parametrize("reads", [8, 20, 60, 200])
def test_stopped_reader_of_a_far_source_leaves_at_most_half_unread(reads):
    link = FarLink(64 * MIB, 0.5, 125e6)
    link.read_in_order(0, reads)
    most = max(readahead.FREE_WINDOW_BYTES, reads * READ // 2)
    assert link.fetched_to - reads * READ <= most
