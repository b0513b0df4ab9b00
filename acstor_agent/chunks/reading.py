# SPDX-License-Identifier: Apache-2.0
"""Reads the source for the core: a task for each read, which is of many chunks."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent import disk_io
from acstor_agent import faults as faults_
from acstor_agent.chunks import wish
from acstor_agent.core import counters as counters_
from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import transfers
from acstor_agent.sources import base
from acstor_common import ids

Feed = Callable[..., str]
Klass = requests.Klass
Priority = wish.Priority

SAID = 256
"""Images of which it is known what the source said when it failed last."""
_KLASSES = {
    Priority.GUEST: Klass.GUEST,
    Priority.PEER: Klass.PEER,
    Priority.SOON: Klass.PREFETCH,
    Priority.ADVERTISED: Klass.PREFETCH,
    Priority.LATER: Klass.PREFETCH,
}


class Reading:
    """The reads of the source under way.

    :ivar said: why the source did not give something of an image, the last time
    """

    def __init__(
        self,
        feed: Feed,
        core: transfers.Transfers,
        source: base.Source,
        nursery: trio.Nursery,
        counters: counters_.ExchangeCounters,
        faults: faults_.Faults,
    ) -> None:
        self._feed, self._core, self._source = feed, core, source
        self._nursery, self._counters, self._faults = nursery, counters, faults
        self._scopes: dict[int, trio.CancelScope] = {}
        self._askers: dict[int, turns.Asker] = {}
        self.said: collections.OrderedDict[ids.ImageId, str] = collections.OrderedDict()
        self.doing: dict[type, Callable[[Any], None]] = {
            actions.ReadSource: self._begin,
            actions.HurryRead: self._hurry,
            actions.CancelRead: self._cancel,
        }

    def _begin(self, read: actions.ReadSource) -> None:
        scope = self._scopes[read.number] = trio.CancelScope()
        asker = self._askers[read.number] = turns.Asker(_stream(read))
        with disk_io.as_stream(asker.stream), disk_io.as_work(asker):
            self._nursery.start_soon(self._read, read, scope)

    def _hurry(self, hurry: actions.HurryRead) -> None:
        if (asker := self._askers.get(hurry.number)) is not None:
            asker.hurry(_stream(hurry))

    def _cancel(self, cancel: actions.CancelRead) -> None:
        if (scope := self._scopes.get(cancel.number)) is not None:
            scope.cancel()

    async def _read(self, read: actions.ReadSource, scope: trio.CancelScope) -> None:
        """Read chunks of one image, and feed what becomes of them as it comes."""
        blobs: dict[base.Blob, dict[int, base.Piece]] = {}  # of its boot image, too
        for number, want in enumerate(read.wants):
            blob, offset = base.blob_at(read.image_id, want.offset)
            piece = base.Piece(offset, want.length, want.content)
            blobs.setdefault(blob, {})[number] = piece
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for blob, pieces in blobs.items():
                        nursery.start_soon(self._read_blob, read, blob, pieces)
        finally:
            del self._scopes[read.number], self._askers[read.number]
            self._feed(self._core.source_ended, read.number)

    async def _read_blob(
        self, read: actions.ReadSource, blob: base.Blob, pieces: dict[int, base.Piece]
    ) -> None:
        began_s, numbers = trio.current_time(), list(pieces)

        def told(answers: base.Answers) -> None:
            self._told(read, began_s, [(numbers[at], outcome) for at, outcome in answers])

        try:
            await self._source.read_pieces(blob, list(pieces.values()), told)
        except Exception as error:
            self._said(read.image_id, self._faults.note("a read of the source", error))

    def _told(
        self,
        read: actions.ReadSource,
        began_s: float,
        answers: Sequence[tuple[int, base.Outcome]],
    ) -> None:
        took_s = trio.current_time() - began_s
        gave: list[tuple[int, Any]] = []
        for number, outcome in answers:
            if isinstance(outcome, Exception):
                gave.append((number, wish.failure_of(outcome)))
                self._said(read.image_id, str(outcome))
            else:
                if read.priority.is_urgent:
                    self._counters.source_timed_bytes += len(outcome)
                    self._counters.source_s += took_s
                gave.append((number, wish.Fetched(outcome, counters_.Origin.SOURCE)))
        self._feed(self._core.source_gave, read.number, gave)

    def _said(self, image_id: ids.ImageId, why: str) -> None:
        self.said[image_id] = why
        self.said.move_to_end(image_id)
        if len(self.said) > SAID:
            self.said.popitem(last=False)


def _stream(read: actions.ReadSource | actions.HurryRead) -> requests.Stream:
    """Return in whose turn the source is asked."""
    return requests.Stream(_KLASSES.get(read.priority, Klass.FILL), str(read.who))
