# SPDX-License-Identifier: Apache-2.0
"""The schedule of a chaos run: a pure function of a seed.

A fault takes a resource (an agent's processes, a host's disk, its link, the source, the ring) for a
while, so no two faults share one; faults of different resources overlap at random.  At intervals
there is a calm without faults, in which all waiting reads must end.

Every action is undone before the next calm, and the plan ends with one.
"""

import dataclasses
import random
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

CALM_S = 40.0
"""Longer than any read without faults: each calm reveals a hanging one."""
STORM_S = 90.0
GAP_S = 1.2
"""Mean time between attempts to start an action; most find their resource taken."""
AT_ONCE_S = 1.0
"""An instant action takes its resource so long, for processes to come back."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of action.

    :param resource: what it takes; of a host if ``is_of_host``
    :param ways: its variants, chosen at random
    :param longest_s: longest duration of a fault; 0 for an instant action
    :param delays: whether it explains waiting reads: of its host, or of all
    :param weight: relative frequency
    """

    resource: str
    ways: Sequence[str] = ("",)
    longest_s: float = 0.0
    delays: bool = False
    is_of_host: bool = True
    weight: int = 2


KINDS: Mapping[str, Kind] = {
    "kill-worker": Kind("agent", delays=True, weight=4),
    "stop-worker": Kind("agent", delays=True),
    "freeze-worker": Kind("agent", longest_s=12.0, delays=True),
    "kill-supervisor": Kind("agent", longest_s=4.0, delays=True),
    "kill-agent": Kind("agent", longest_s=4.0, delays=True),
    "upgrade": Kind(
        "agent",
        ("other options", "same options", "other version", "other version"),
        2.0,
        delays=True,
        weight=3,
    ),
    "source": Kind(
        "source",
        ("500", "404", "hangs", "hangs up", "slow", "lies", "half", "garbage", "whole file"),
        25.0,
        delays=True,
        is_of_host=False,
        weight=6,
    ),
    "delete-image": Kind("source", longest_s=25.0, delays=True, is_of_host=False),
    "link": Kind("link", ("silent", "lossy", "late", "cut"), 20.0, weight=4),
    "start-read-only": Kind("agent", longest_s=12.0, delays=True),
    "disk": Kind("disk", ("full", "file size"), 15.0),
    "rot": Kind("disk"),
    "delete-slab": Kind("disk", ("one", "one", "all")),
    "remap": Kind("ring", ("weights", "without one"), is_of_host=False),
    "clock": Kind("clock", ("minutes", "days", "years"), 25.0, weight=3),
    "kill-reader": Kind("reader"),
    "stop-reader": Kind("reader", longest_s=10.0),
    "operator": Kind("wishes", ("hydrate", "pause", "resume", "pre-seed", "unpin"), weight=3),
    "attach-and-drop": Kind("spare"),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """One action: from ``at_s`` to ``until_s`` of the run.

    :param host: its host; "" if it concerns no single host
    :param seed: of its own random choices
    """

    number: int
    at_s: float
    until_s: float
    name: str
    host: str
    way: str
    seed: int

    def __str__(self) -> str:
        words = f"{self.number}: {self.name} {self.host} {self.way}".split()
        return f"{' '.join(words)} ({self.at_s:.1f} s to {self.until_s:.1f} s)"

    @property
    def takes(self) -> tuple[str, str]:
        """The resource that it takes."""
        return KINDS[self.name].resource, self.host

    def delays(self, host: str) -> bool:
        """Return whether reads of ``host`` may wait during it."""
        return KINDS[self.name].delays and self.host in ("", host)


def make(
    seed: int, hosts: Sequence[str], length_s: float, names: Collection[str] = tuple(KINDS)
) -> list[Step]:
    """Return the steps of a run, ordered by their start.

    >>> steps = make(1, ["h1", "h2"], 300.0)
    >>> steps == make(1, ["h1", "h2"], 300.0), steps == make(2, ["h1", "h2"], 300.0)
    (True, False)
    """
    rng = random.Random(f"chaos/{seed}")
    steps: list[Step] = []
    busy_s: dict[tuple[str, str], float] = {}
    storm_s = 0.0
    while storm_s < length_s:
        at_s, calm_s = storm_s, storm_ends(storm_s, length_s)
        while (at_s := at_s + rng.expovariate(1 / GAP_S)) < calm_s - AT_ONCE_S:
            step = _choose(rng, len(steps), at_s, calm_s, hosts, names)
            if busy_s.get(step.takes, 0.0) < at_s:
                busy_s[step.takes] = step.until_s
                steps.append(step)
        storm_s = calm_s + CALM_S
    return steps


def storm_ends(storm_s: float, length_s: float) -> float:
    """Return the end of the storm that starts at ``storm_s`` in a run of ``length_s``.

    The storm of a short run is as long as the run.
    """
    return storm_s + min(STORM_S, max(length_s - storm_s, AT_ONCE_S))


def calms(length_s: float) -> list[float]:
    """Return when each calm starts.

    >>> calms(20.0), calms(200.0)
    ([20.0], [90.0, 200.0])
    """
    found, storm_s = [], 0.0
    while storm_s < length_s:
        found.append(storm_ends(storm_s, length_s))
        storm_s = found[-1] + CALM_S
    return found


def _choose(
    rng: random.Random,
    number: int,
    at_s: float,
    calm_s: float,
    hosts: Sequence[str],
    names: Collection[str],
) -> Step:
    known = [name for name in KINDS if name in names]
    name = rng.choices(known, [KINDS[name].weight for name in known])[0]
    kind = KINDS[name]
    host = rng.choice(hosts) if kind.is_of_host else ""
    until_s = at_s + max(AT_ONCE_S, kind.longest_s * rng.random())
    way, seed = rng.choice(kind.ways), rng.randrange(1 << 32)
    return Step(number, at_s, min(until_s, calm_s), name, host, way, seed)


def only(steps: Sequence[Step], numbers: Collection[int] | None, until: int | None) -> list[Step]:
    """Return some of the steps, at their times, to narrow down the cause of a finding.

    >>> [step.number for step in only(make(1, ["h1"], 60.0), {2, 4, 6}, 5)]
    [2, 4]
    """
    return [
        step
        for step in steps
        if (numbers is None or step.number in numbers) and (until is None or step.number <= until)
    ]
