# SPDX-License-Identifier: Apache-2.0
"""What feeds an engine, without one: it notes what is requested and cancelled."""

import types
from collections.abc import Hashable
from typing import Any

from acstor_agent.engine import settings

RUN_CHUNKS = 4


class QuietDriver:
    """Stands in for ``engine_driver.EngineDriver``; ``why`` is what a request fails with."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.cancelled: list[Hashable] = []
        self.why = ""
        context = types.SimpleNamespace(settings=settings.Settings(run_chunks=RUN_CHUNKS))
        self.core = types.SimpleNamespace(
            context=context, request_batches=self._request, cancel_reads=self._cancel
        )

    def handle_event(self, event: Any, *what: Any) -> str:
        """Note an event."""
        return event(*what)  # type: ignore[no-any-return]

    def _request(self, batches: Any, priority: Any) -> str:
        self.runs += [run for run, _ in batches]
        return self.why

    def _cancel(self, *tokens: Hashable) -> str:
        self.cancelled += tokens
        return ""
