# SPDX-License-Identifier: Apache-2.0
"""Buffers that are sent one after the other: what of them is left, and how TLS is given them.

The bytes of a chunk are never copied here.
"""

from collections.abc import Sequence

from acstor_agent import tls_session
from acstor_common import geometry
from acstor_common import peer_wire

SHORT_BYTES = 4 * geometry.KIB
"""Messages are joined to records of this size."""


def rest_of(buffers: list[peer_wire.Buffer], sent: int) -> list[peer_wire.Buffer]:
    """Return what is left to send of ``buffers`` after ``sent`` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:] if sent else buffer, *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


def first_of(buffers: Sequence[peer_wire.Buffer], most: int) -> list[memoryview]:
    """Return the first bytes of ``buffers``, no more than ``most`` (1 or more)."""
    found: list[memoryview] = []
    for buffer in buffers:
        found.append(memoryview(buffer)[:most])
        most -= len(found[-1])
        if not most:
            break
    return found


def pieces_of(buffers: list[peer_wire.Buffer], wanted: int) -> list[peer_wire.Buffer]:
    """Return the first ``wanted`` bytes, or a piece more, in pieces of at most WRITE_BYTES.

    A short buffer is joined with short ones before it; a long one begins a new record, so that
    the bytes of a chunk are not copied.
    """
    found: list[peer_wire.Buffer] = []
    for buffer in buffers:
        if found and len(found[-1]) + len(buffer) <= SHORT_BYTES:
            found[-1] = b"".join((found[-1], buffer))
            wanted -= len(buffer)
            continue
        view = memoryview(buffer)
        for start in range(0, len(buffer), tls_session.WRITE_BYTES):
            if wanted <= 0:
                return found
            found.append(view[start : start + tls_session.WRITE_BYTES])
            wanted -= len(found[-1])
    return found
