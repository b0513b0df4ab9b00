# SPDX-License-Identifier: Apache-2.0
import itertools
import random

from acstor_agent.core import readahead

MIB = 1024 * 1024
READ = 128 * 1024


def read_in_order(ahead, start, count):
    return [ahead.read(start + n * READ, READ, 0.0) for n in range(count)]


def test_sequential_reader_has_everything_fetched_ahead_exactly_once():
    ranges = read_in_order(readahead.ReadAhead(4 * MIB), 0, 100)
    starts_and_stops = [r for r in ranges if r[1] > r[0]]
    for (_, stop), (start, _) in itertools.pairwise(starts_and_stops):
        assert start == stop


def reach(ranges):
    return [stop - (n + 1) * READ for n, (_, stop) in enumerate(ranges) if stop]


def test_window_grows_with_what_was_read_and_to_the_limit_at_most():
    ranges = read_in_order(readahead.ReadAhead(2 * MIB), 0, 3000)
    assert ranges[:2] == [(0, 0), (0, 0)]
    assert reach(ranges)[0] == readahead.FIRST_WINDOW_BYTES
    assert max(reach(ranges)[:200]) == readahead.FREE_WINDOW_BYTES
    assert max(reach(ranges)) == 2 * MIB


def test_limit_below_the_free_window_is_kept():
    ranges = read_in_order(readahead.ReadAhead(300 * 1024), 0, 50)
    assert max(reach(ranges)) == 300 * 1024


def test_reader_who_stops_leaves_little_unread():
    for reads in (256, 1000, 5000, 20_000):
        ranges = read_in_order(readahead.ReadAhead(64 * MIB), 0, reads)
        unread = reach(ranges)[-1]
        assert unread <= max(readahead.FREE_WINDOW_BYTES, reads * READ / readahead.WORTH)


def test_random_reader_gets_nothing():
    rng = random.Random(4)
    ahead = readahead.ReadAhead(8 * MIB)
    for _ in range(1000):
        assert ahead.read(rng.randrange(10**6) * 4096 * 2 + 4096, 4096, 0.0) == (0, 0)


def test_two_readers_of_one_image_do_not_disturb_each_other():
    ahead = readahead.ReadAhead(MIB)
    alone = read_in_order(readahead.ReadAhead(MIB), 0, 20)
    together = []
    for n in range(20):
        together.append(ahead.read(n * READ, READ, 0.0))
        ahead.read(512 * MIB + n * READ, READ, 0.0)
    assert together == alone


def test_silent_readers_are_forgotten():
    ahead = readahead.ReadAhead(MIB)
    ahead.read(0, READ, 0.0)
    for n in range(readahead.READERS):
        ahead.read((n + 10) * MIB, 4096, 0.0)
    assert ahead.read(READ, READ, 0.0) == (0, 0)


def test_limit_zero_turns_it_off():
    assert set(read_in_order(readahead.ReadAhead(0), 0, 10)) == {(0, 0)}
