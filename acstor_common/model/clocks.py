# SPDX-License-Identifier: Apache-2.0
"""The clocks of a host: functions of the module ``time`` that tests replace."""

from typing import Protocol


class Clock(Protocol):
    """Reads the clocks; the module ``time`` is one."""

    def monotonic(self) -> float:
        """Return seconds since an unknown start; they never go back."""

    def time(self) -> float:
        """Return the Unix time in seconds; operators may set it."""
