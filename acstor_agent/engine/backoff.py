# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff between tries."""

FIRST_S, LONGEST_S = 0.1, 2.0


def pause_s(tries: int) -> float:
    """Return the seconds to wait after a number of failed retries.

    >>> [pause_s(tries) for tries in (0, 1, 4, 5, 5000)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    """
    return float(min(FIRST_S * 2 ** min(tries, 16), LONGEST_S))
