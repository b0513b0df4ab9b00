# SPDX-License-Identifier: Apache-2.0
"""Reads the source for the engine: one task for each blob of a read of many chunks."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent import disk_io
from acstor_agent import faults as faults_
from acstor_agent.core import counters as counters_
from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine import actions
from acstor_agent.engine import engine
from acstor_agent.engine_io import read_request
from acstor_agent.sources import base
from acstor_common import ids

Feed = Callable[..., str]
Klass = requests.Klass
Priority = read_request.Priority

SAID = 256
"""Images of which it is known what the source said when it failed last."""
_KLASSES = {
    Priority.GUEST: Klass.GUEST,
    Priority.PEER: Klass.PEER,
    Priority.SOON: Klass.PREFETCH,
    Priority.ADVERTISED: Klass.PREFETCH,
    Priority.LATER: Klass.PREFETCH,
}


class SourceReader:
    """The reads of the source under way.

    :ivar said: why the source did not give something of an image, the last time
    """

    def __init__(
        self,
        feed: Feed,
        core: engine.Engine,
        source: base.Source,
        nursery: trio.Nursery,
        counters: counters_.ExchangeCounters,
        faults: faults_.Faults,
    ) -> None:
        self._feed, self._core, self._source = feed, core, source
        self._nursery, self._counters, self._faults = nursery, counters, faults
        self._scopes: dict[int, list[trio.CancelScope]] = {}
        self._askers: dict[int, turns.Asker] = {}
        self.said: collections.OrderedDict[ids.ImageId, str] = collections.OrderedDict()
        self.doing: dict[type, Callable[[Any], None]] = {
            actions.ReadSource: self._begin,
            actions.HurryRead: self._hurry,
            actions.CancelRead: self._cancel,
        }

    def _begin(self, read: actions.ReadSource) -> None:
        """Begin a task for what is of the image, and one for what is of its boot image."""
        parts: tuple[list[int], list[int]] = ([], [])
        for number, want in enumerate(read.wants):
            parts[want.offset >= base.AT_BOOT_IMAGE].append(number)
        asker = self._askers[read.number] = turns.Asker(_stream(read))
        scopes = self._scopes[read.number] = [trio.CancelScope() for part in parts if part]
        with disk_io.as_work(asker):
            for numbers, scope in zip(filter(None, parts), scopes.copy(), strict=True):
                self._nursery.start_soon(self._read, read, numbers, scope)

    def _hurry(self, hurry: actions.HurryRead) -> None:
        if (asker := self._askers.get(hurry.number)) is not None:
            asker.hurry(_stream(hurry))

    def _cancel(self, cancel: actions.CancelRead) -> None:
        for scope in self._scopes.get(cancel.number, ()):
            scope.cancel()

    async def _read(
        self, read: actions.ReadSource, numbers: list[int], scope: trio.CancelScope
    ) -> None:
        """Read chunks of one blob, and feed what becomes of them as it comes."""
        wants = [read.wants[number] for number in numbers]
        blob, offset = base.blob_at(read.image_id, wants[0].offset)
        begin = wants[0].offset - offset
        pieces = [base.Piece(want.offset - begin, want.length, want.content) for want in wants]
        began_s = trio.current_time()

        def told(answers: base.Answers) -> None:
            self._told(read, began_s, [(numbers[at], outcome) for at, outcome in answers])

        try:
            with scope:
                await self._source.read_pieces(blob, pieces, told)
        except Exception as error:
            self._said(read.image_id, self._faults.note("a read of the source", error))
        finally:
            scopes = self._scopes[read.number]
            scopes.remove(scope)
            if not scopes:
                del self._scopes[read.number], self._askers[read.number]
                self._feed(self._core.source_ended, read.number)

    def _told(
        self,
        read: actions.ReadSource,
        began_s: float,
        answers: Sequence[tuple[int, base.Outcome]],
    ) -> None:
        gave: list[tuple[int, Any]] = []
        given_bytes = given = 0
        for number, outcome in answers:
            if isinstance(outcome, Exception):
                gave.append((number, read_request.failure_of(outcome)))
                self._said(read.image_id, str(outcome))
            else:
                given += 1
                given_bytes += len(outcome)
                gave.append((number, read_request.Fetched(outcome, counters_.Origin.SOURCE)))
        if read.priority.is_urgent:
            self._counters.source_timed_bytes += given_bytes
            self._counters.source_s += given * (trio.current_time() - began_s)
        self._feed(self._core.source_gave, read.number, gave)

    def _said(self, image_id: ids.ImageId, why: str) -> None:
        self.said[image_id] = why
        self.said.move_to_end(image_id)
        if len(self.said) > SAID:
            self.said.popitem(last=False)


def _stream(read: actions.ReadSource | actions.HurryRead) -> requests.Stream:
    """Return in whose turn the source is asked."""
    return requests.Stream(_KLASSES.get(read.priority, Klass.FILL), str(read.who))
