# SPDX-License-Identifier: Apache-2.0
"""Which variants of a test each change runs; ``tools/test.sh nightly`` runs the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_now(values: Iterable[Any], now: int = 1) -> list[Any]:
    """Return the parameters of a test, of which all but the first ``now`` run nightly."""
    found = list(values)
    return [*found[:now], *(pytest.param(one, marks=pytest.mark.nightly) for one in found[now:])]
