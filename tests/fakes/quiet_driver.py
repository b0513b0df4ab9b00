# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the engine's driver that records requests and cancellations."""

import types
from collections.abc import Hashable
from typing import Any

from acstor_agent.engine import settings

RUN_CHUNKS = 4


class QuietDriver:
    """Stands in for ``engine_driver.EngineDriver``; ``why``: failure of requests."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.cancelled: list[Hashable] = []
        self.why = ""
        context = types.SimpleNamespace(settings=settings.Settings(run_chunks=RUN_CHUNKS))
        self.core = types.SimpleNamespace(
            context=context, request_batches=self._request, cancel_reads=self._cancel
        )

    def handle_event(self, event: Any, *what: Any) -> str:
        """Call an event's method."""
        return event(*what)  # type: ignore[no-any-return]

    def _request(self, batches: Any, priority: Any) -> str:
        self.runs += [run for run, _ in batches]
        return self.why

    def _cancel(self, *tokens: Hashable) -> str:
        self.cancelled += tokens
        return ""
