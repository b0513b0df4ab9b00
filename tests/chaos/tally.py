# SPDX-License-Identifier: Apache-2.0
"""The table of a chaos run: steps by kind, and the reads that readers compared."""

import collections
import dataclasses
from collections.abc import Iterator

from tests.chaos import guests
from tests.chaos import plan
from tests.chaos import readers

MIB = 1 << 20


@dataclasses.dataclass
class Compared:
    """Totals of readers of one kind.

    :param begun: number of readers
    :param faults: reads that failed, or returned wrong bytes
    """

    begun: int = 0
    reads: int = 0
    bytes: int = 0
    faults: int = 0


class Tally:
    """The counts.

    >>> tally = Tally()
    >>> tally.did(plan.Step(0, 0.0, 1.0, "clock", "h1", "days", 0))
    >>> tally.did(plan.Step(1, 0.0, 1.0, "rot", "h1", "", 0), found_nothing=True)
    >>> [line for line in tally.table() if line.split()[1] == "1"]
    ['rot                    1  1 found nothing to do', 'clock                  1  days 1']
    """

    def __init__(self) -> None:
        self.idle = 0
        """Steps that had nothing to do."""
        self.of_ways: dict[str, Compared] = collections.defaultdict(Compared)
        self._ways: dict[str, collections.Counter[str]] = {
            name: collections.Counter() for name in plan.KINDS
        }
        self._idle = collections.Counter[str]()

    def did(self, step: plan.Step, found_nothing: bool = False) -> None:
        """Count a step."""
        self._ways[step.name][step.way] += 1
        if found_nothing:
            self.idle += 1
            self._idle[step.name] += 1

    def add(self, reader: readers.Reader | guests.Guest) -> None:
        """Add the totals of a finished reader."""
        state, done = reader.state, self.of_ways[reader.way]
        done.begun += 1
        done.reads += state.reads
        done.bytes += state.bytes
        done.faults += len(reader.found())

    def compared(self) -> Compared:
        """Return the totals of all added readers."""
        every = [dataclasses.astuple(one) for one in self.of_ways.values()]
        return Compared(*map(sum, zip(*every, strict=True))) if every else Compared()

    def table(self) -> Iterator[str]:
        """Return the lines of the table."""
        for name, ways in self._ways.items():
            yield _line(name, ways.total(), _words(ways, self._idle[name]))
        total = sum(ways.total() for ways in self._ways.values())
        yield _line("in all", total, _words({}, self.idle))
        for way, done in sorted(self.of_ways.items()):
            yield f"{way} readers: {_said(done)}"
        yield f"all readers: {_said(self.compared())}"


def _words(ways: dict[str, int], idle: int) -> str:
    words = [f"{way} {count}" for way, count in sorted(ways.items()) if way]
    return ", ".join([*words, f"{idle} found nothing to do"] if idle else words)


def _line(name: str, count: int, words: str) -> str:
    return f"{name:<18}{count:>6}  {words}".rstrip()


def _said(done: Compared) -> str:
    return (
        f"{done.begun} begun, {done.reads} reads of {done.bytes / MIB:.0f} MiB compared, "
        f"{done.faults} failed or wrong"
    )
