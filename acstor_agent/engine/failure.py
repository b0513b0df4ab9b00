# SPDX-License-Identifier: Apache-2.0
"""Reasons why a chunk did not arrive. They are values, never raised."""

import enum


class Failure(enum.IntEnum):
    """The reasons, the most hopeful first; a transfer reports its most hopeful one."""

    UNREACHABLE = 0  # no answer in time, or the connection was lost
    BUSY = 1  # the peer or the source is overloaded
    INVALID = 2  # bytes that do not match the CID, or a protocol error
    WITHHELD = 3  # the source denied access; the chunk may exist
    MISSING = 4  # the asked host or the source does not have it
    NO_HOLDER = 5  # no holder gave it, and no other provider was to be asked
    LOST = 6  # the source has denied it for a while, as have all hosts
    LATE = 7  # the deadline of the reader passed
    FORGOTTEN = 8  # dropped from a full prefetch queue
