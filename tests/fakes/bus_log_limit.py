# SPDX-License-Identifier: Apache-2.0
"""Isolates the rate limit of oslo.messaging's log lines per test."""

import time

import pytest

from acstor_common.wire import message_bus


def renew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a new limit, which no other test of this process has used."""
    limit = message_bus.ThrottledWarnings(time)
    monkeypatch.setattr(message_bus._limit, "_warnings", limit)
