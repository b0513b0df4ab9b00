# SPDX-License-Identifier: Apache-2.0
"""A limit of oslo.messaging's log lines that belongs to one test, not to the process."""

import time

import pytest

from acstor_common.wire import message_bus


def renew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a limit that counts no lines of other tests in this process."""
    limit = message_bus.ThrottledWarnings(time)
    monkeypatch.setattr(message_bus._limit, "_warnings", limit)
