# SPDX-License-Identifier: Apache-2.0
"""Lookup rates per host: a host above its rate waits, others do not."""

from acstor_checkpoint.vault import lookup_rate
from acstor_common.model import ids
from tests.fakes import manual_clock

H1, H2 = ids.HostId("h1"), ids.HostId("h2")


class World:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rate = lookup_rate.LookupRate(
            manual_clock.FunctionClock(lambda: self.now_s), self.sleep
        )

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def test_a_host_has_a_burst_and_then_its_rate() -> None:
    world, asked = World(), 0
    for _ in range(40):
        world.rate.spend_lookups(H1, 65536)
        asked += 65536
        world.rate.spend_lookups(H2, 1000)
    took_s = world.now_s - 100.0
    rate = lookup_rate.OF_HOST
    assert abs(rate.burst + rate.per_s * took_s - asked) <= 65536
    assert abs(world.rate.waited_s - took_s) < 0.1


def test_host_below_its_rate_never_waits() -> None:
    world = World()
    for _ in range(1000):
        world.rate.spend_lookups(H1, int(lookup_rate.OF_HOST.per_s / 2))
        world.now_s += 0.5
    assert world.rate.waited_s == 0.0
