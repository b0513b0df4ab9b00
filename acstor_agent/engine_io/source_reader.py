# SPDX-License-Identifier: Apache-2.0
"""Reads the source for the engine: one task for each range."""

from typing import Any

import trio

from acstor_agent.core import counters
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine import actions
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import read_request
from acstor_agent.sources import base
from acstor_common.model import ids
from acstor_common.util import lru_table

Klass = requests.Klass
Priority = read_request.Priority

LAST_ERRORS = 256  # images whose last source error is remembered
_KLASSES = {
    Priority.GUEST: Klass.GUEST,
    Priority.PEER: Klass.PEER,
    Priority.READAHEAD: Klass.PREFETCH,
    Priority.ADVERTISED: Klass.PREFETCH,
    Priority.PREFETCH: Klass.PREFETCH,
}


class SourceReader:
    """The reads of the source under way; ``last_errors`` by image."""

    def __init__(self, driver: engine_driver.EngineDriver, source: base.Source) -> None:
        self._driver, self._core, self._source = driver, driver.core, source
        self._scopes: dict[int, trio.CancelScope] = {}
        self.last_errors: lru_table.LruTable[ids.ImageId, str] = lru_table.LruTable(LAST_ERRORS)
        driver.on_action(actions.ReadSource, self._begin)
        driver.on_action(actions.CancelSourceRead, self._cancel)

    def _begin(self, read: actions.ReadSource) -> None:
        self._scopes[read.number] = trio.CancelScope()
        self._driver.nursery.start_soon(self._read, read)

    def _cancel(self, cancel: actions.CancelSourceRead) -> None:
        if (scope := self._scopes.get(cancel.number)) is not None:
            scope.cancel()

    async def _read(self, read: actions.ReadSource) -> None:
        blob, offset = base.blob_at(read.image_id, read.refs[0].offset)
        begin = read.refs[0].offset - offset
        pieces = [base.BlobPiece(ref.offset - begin, ref.length, ref.content) for ref in read.refs]
        requester = base.Requester(_KLASSES.get(read.priority, Klass.FILL), str(read.flow))
        began_s, left = trio.current_time(), len(pieces)

        def take_answers(answers: base.Outcomes) -> None:
            nonlocal left
            left -= len(answers)
            self._take_answers(read, began_s, answers)

        try:
            with self._scopes[read.number]:
                await self._source.read_pieces(
                    base.PieceRequest(blob, pieces, take_answers, requester)
                )
        except Exception as error:
            why = self._driver.faults.record_fault("a read of the source", error)
            self.last_errors[read.image_id] = why
        finally:
            del self._scopes[read.number]
            if left:
                self._driver.handle_event(self._core.source_ended, read.number)

    def _take_answers(
        self, read: actions.ReadSource, began_s: float, answers: base.Outcomes
    ) -> None:
        outcomes: list[tuple[int, Any]] = []
        given_bytes = given = 0
        for number, outcome in answers:
            if isinstance(outcome, Exception):
                outcomes.append((number, read_request.failure_of(outcome)))
                self.last_errors[read.image_id] = str(outcome)
            else:
                given += 1
                given_bytes += len(outcome)
                outcomes.append(
                    (number, read_request.FetchedChunk(outcome, counters.Origin.SOURCE))
                )
        if read.priority.is_urgent:
            self._driver.counters.source_timed_bytes += given_bytes
            self._driver.counters.source_s += given * (trio.current_time() - began_s)
        self._driver.handle_event(self._core.source_read_progressed, read.number, outcomes)
