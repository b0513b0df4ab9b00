# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is at a place that takes so many requests at a time (a source).

The rules:

* guests go before everybody else, but of LOWER_EVERY turns one is that of the others, so that
  a guest of another host, whose request comes as that of a peer, does not starve;
* within a class who was served longest ago goes first: images among each other, then those who
  have opened one (a guest's name is ``image/opener``), peers among each other;
* the guests of one image never have all places, nor have all together who are no guests: one is
  left for the next guest, who would wait behind requests which the place does not answer.

This is least-recently-served order, which with requests of bounded length is round robin
(Nagle, "On packet switches with infinite storage", RFC 970, 1985).
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence

from acstor_agent.core.disk_scheduling import request as requests

LOWER_EVERY = 4
REMEMBERED = 4096
"""Names of whom it is remembered when they were served; the others count as never served."""

SPARING_FROM = 4
"""Places from which on one is kept for others; of fewer it would be too much of them."""

Stream = requests.Stream
Klass = requests.Klass
Who = tuple[object, ...]


class Asker:
    """Whom a piece of work is for: of all who have joined it, the one that goes first.

    ``joined`` is the work of others that it waits for, which becomes as urgent as it is.

    >>> reading = Asker(Stream(Klass.PEER, "h2"))
    >>> fetching = Asker(Stream(Klass.PREFETCH, "read-ahead"))
    >>> fetching.waits_for(reading)
    >>> fetching.hurry(Stream(Klass.GUEST, "a guest"))
    >>> str(reading.stream)
    'guest:a guest'
    """

    __slots__ = ("_joined", "stream", "when_hurried")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.when_hurried: Callable[[], None] = lambda: None
        self._joined: list[Asker] = []

    def hurry(self, stream: Stream) -> None:
        """Let another one wait for this work as well."""
        if stream.klass < self.stream.klass:
            self.stream = stream
            for other in self._joined:
                other.hurry(stream)
            self.when_hurried()

    def waits_for(self, other: "Asker") -> None:
        """Let this work wait for that of ``other``."""
        if other is not self:
            other.hurry(self.stream)
            self._joined.append(other)


class Turns:
    """Who is next, and how many places each one has.

    :param places: requests that the place takes at a time
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._limit = places - 1 if places >= SPARING_FROM else places
        self._count = 0
        self._guests_in_a_row = 0
        self._served: collections.OrderedDict[Who, int] = collections.OrderedDict()
        self._held: collections.Counter[Who] = collections.Counter()
        self._held_by_others = 0

    def next_of(self, waiting: Sequence[Stream]) -> int | None:
        """Return which of ``waiting``, in the order of their coming, is next; None for nobody."""
        may = [number for number, stream in enumerate(waiting) if self._may(stream)]
        guests = [number for number in may if waiting[number].klass is Klass.GUEST]
        others = [number for number in may if waiting[number].klass is not Klass.GUEST]
        is_others_turn = self._guests_in_a_row >= LOWER_EVERY - 1
        choice = others if others and (is_others_turn or not guests) else guests
        return min(choice, key=lambda number: self._rank(waiting[number]), default=None)

    def took(self, stream: Stream) -> None:
        """Note that somebody has a place now."""
        self._count += 1
        is_guest = stream.klass is Klass.GUEST
        self._guests_in_a_row = self._guests_in_a_row + 1 if is_guest else 0
        self._held_by_others += not is_guest
        self._held[_group(stream)] += 1
        for who in (_group(stream), stream):
            self._served[who] = self._count
            self._served.move_to_end(who)
        while len(self._served) > REMEMBERED:
            self._served.popitem(last=False)

    def gave_back(self, stream: Stream) -> None:
        """Note that a place is free again.

        :param stream: who took it
        """
        self._held_by_others -= stream.klass is not Klass.GUEST
        self._held[_group(stream)] -= 1
        self._held += collections.Counter()  # drops who holds none

    def _may(self, stream: Stream) -> bool:
        if self._held.total() >= self._places or self._held[_group(stream)] >= self._limit:
            return False
        return stream.klass is Klass.GUEST or self._held_by_others < self._limit

    def _rank(self, stream: Stream) -> tuple[int, int, int]:
        served = self._served
        return (stream.klass, served.get(_group(stream), 0), served.get(stream, 0))


def _group(stream: Stream) -> Who:
    """Return with whom one shares turns: the guests of one image do."""
    return stream.klass, stream.name.partition("/")[0], ""
