# SPDX-License-Identifier: Apache-2.0
"""Reasons why a chunk did not arrive.  They are values, never raised."""

import enum


class Failure(enum.IntEnum):
    """The reasons, those that leave most hope first.

    Of a transfer's failed attempts the lowest tells most: MISSING only if no place leaves hope.
    """

    UNREACHABLE = 0  # no answer, or not in time; the connection was lost
    BUSY = 1  # it has too much to do for this host
    INVALID = 2  # bytes that are not the content, or against the protocol
    WITHHELD = 3  # the source does not let it look, which says nothing of the chunk
    MISSING = 4  # an honest no
    NO_HOLDER = 5  # nobody who advertised it gave it, and nobody else was to be asked
    LOST = 6  # the source has denied it for a while, and so has every host
    LATE = 7  # the deadline of who waited is over
    FORGOTTEN = 8  # too much was wanted ahead: the oldest that nobody waits for
