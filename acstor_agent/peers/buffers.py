# SPDX-License-Identifier: Apache-2.0
"""Slices lists of buffers for sending and receiving, without copies."""

from collections.abc import Sequence

from acstor_common.model import geometry
from acstor_common.wire import peer_wire

SHORT_BYTES = 4 * geometry.KIB
"""Below this, waiting for complete data is not worth a system call."""


def rest_of(buffers: list[peer_wire.Buffer], sent: int) -> list[peer_wire.Buffer]:
    """Return what is left to send of ``buffers`` after ``sent`` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:] if sent else buffer, *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


def first_of(buffers: Sequence[peer_wire.Buffer], most: int) -> list[memoryview]:
    """Return the first ``most`` bytes (1 or more) of ``buffers``."""
    found: list[memoryview] = []
    for buffer in buffers:
        found.append(memoryview(buffer)[:most])
        most -= len(found[-1])
        if not most:
            break
    return found
