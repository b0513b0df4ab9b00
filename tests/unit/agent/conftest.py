# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
import trio


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread functions inline: while a thread works, the mock clock would jump."""

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
