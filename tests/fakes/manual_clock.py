# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still until a test moves it."""


class ManualClock:
    """Returns ``now_s``."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
