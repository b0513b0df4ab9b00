# SPDX-License-Identifier: Apache-2.0
"""Pauses between tries: they double up to a limit."""

FIRST_S, LONGEST_S = 0.1, 2.0


def pause_s(tries: int) -> float:
    """Return how long to wait before the next try.

    :param tries: that have failed, after the first one

    >>> [pause_s(tries) for tries in (0, 1, 4, 5, 5000)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    """
    return float(min(FIRST_S * 2 ** min(tries, 16), LONGEST_S))
