# SPDX-License-Identifier: Apache-2.0
"""Python's interpreter, which runs one thread at a time."""

import time

_PAUSE_S = 0.0005


def release() -> None:
    """Let other threads run for a moment, after work of about as long."""
    time.sleep(_PAUSE_S)
