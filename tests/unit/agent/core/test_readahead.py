# SPDX-License-Identifier: Apache-2.0
import itertools
import random

from acstor_agent.core import readahead

MIB = 1024 * 1024
READ = 128 * 1024


def read_in_order(ahead, start, count):
    return [ahead.read(start + n * READ, READ) for n in range(count)]


def test_sequential_reader_has_everything_fetched_ahead_exactly_once():
    ranges = read_in_order(readahead.ReadAhead(4 * MIB), 0, 100)
    starts_and_stops = [r for r in ranges if r[1] > r[0]]
    for (_, stop), (start, _) in itertools.pairwise(starts_and_stops):
        assert start == stop


def test_window_grows_to_the_limit_and_no_further():
    ahead = readahead.ReadAhead(2 * MIB)
    ranges = read_in_order(ahead, 0, 100)
    reach = [stop - (n + 1) * READ for n, (_, stop) in enumerate(ranges) if stop]
    assert max(reach) == 2 * MIB
    assert reach[0] == readahead.FIRST_WINDOW_BYTES


def test_random_reader_gets_nothing():
    rng = random.Random(4)
    ahead = readahead.ReadAhead(8 * MIB)
    for _ in range(1000):
        assert ahead.read(rng.randrange(10**6) * 4096 * 2 + 4096, 4096) == (0, 0)


def test_two_readers_of_one_image_do_not_disturb_each_other():
    ahead = readahead.ReadAhead(MIB)
    alone = read_in_order(readahead.ReadAhead(MIB), 0, 20)
    together = []
    for n in range(20):
        together.append(ahead.read(n * READ, READ))
        ahead.read(512 * MIB + n * READ, READ)
    assert together == alone


def test_silent_readers_are_forgotten():
    ahead = readahead.ReadAhead(MIB)
    ahead.read(0, READ)
    for n in range(readahead.READERS):
        ahead.read((n + 10) * MIB, 4096)
    assert ahead.read(READ, READ) == (0, 0)


def test_limit_zero_turns_it_off():
    assert set(read_in_order(readahead.ReadAhead(0), 0, 10)) == {(0, 0)}
