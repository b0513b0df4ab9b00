# SPDX-License-Identifier: Apache-2.0
"""Checksums of a slot: whether bytes read from disk are those that were stored.

Each checksum is seeded with the chunk's CID, so a former chunk of the slot never matches. There is
one for each block of 4 KiB, and one for each group of 16 (doc/source/format/cache_slab.rst). XXH3
detects corruption, not forgery: a process that can write the files can write the agent's memory.
"""

import xxhash

from acstor_common.model import ids

BLOCK_BYTES = 4096
GROUP_BYTES = 16 * BLOCK_BYTES
SUM_BYTES = 8
UNIT_BYTES = SUM_BYTES * (1 + GROUP_BYTES // BLOCK_BYTES)
"""Checksums of a whole group: its own, then those of its blocks."""
_SEED_BYTES = 8

Data = bytes | bytearray | memoryview

_digest = xxhash.xxh3_64_digest


def table_bytes(slot_bytes: int) -> int:
    """Return the length of all checksums of one slot.

    >>> table_bytes(4096), table_bytes(65536), table_bytes(1 << 20)
    (16, 136, 2176)
    """
    if slot_bytes < GROUP_BYTES:
        return SUM_BYTES * (1 + slot_bytes // BLOCK_BYTES)
    return slot_bytes // GROUP_BYTES * UNIT_BYTES


def table_of(data: Data, cid: ids.Cid, slot_bytes: int) -> bytes:
    """Return all checksums of a chunk; zeros for blocks after its end."""
    seed, view = int.from_bytes(cid[:_SEED_BYTES]), memoryview(data)
    units = []
    for at in range(0, len(view), GROUP_BYTES):
        group = view[at : at + GROUP_BYTES]
        sums = [_digest(group[at : at + BLOCK_BYTES], seed) for at in _blocks(group)]
        units.append(b"".join([_digest(group, seed), *sums]).ljust(UNIT_BYTES, b"\0"))
    length = table_bytes(slot_bytes)
    return b"".join(units)[:length].ljust(length, b"\0")


def _blocks(group: memoryview) -> range:
    return range(0, len(group), BLOCK_BYTES)


def widened(start: int, stop: int, length: int) -> tuple[int, int]:
    """Return the range of a chunk to read so that a range of it can be verified.

    >>> widened(5000, 5001, 65536), widened(0, 9000, 9000)
    ((4096, 8192), (0, 9000))
    """
    return start - start % BLOCK_BYTES, min(length, stop + -stop % BLOCK_BYTES)


def table_range(start: int, stop: int) -> tuple[int, int]:
    """Return the range of a slot's checksums for a range of bytes, in whole units.

    A slot smaller than a group has fewer checksums than that.

    >>> table_range(0, 4096), table_range(65535, 65537)
    ((0, 136), (0, 272))
    """
    return start // GROUP_BYTES * UNIT_BYTES, -(-stop // GROUP_BYTES) * UNIT_BYTES


def are_right(view: memoryview, start: int, length: int, cid: ids.Cid, sums: Data, at: int) -> bool:
    """Return whether bytes of a chunk match its checksums.

    :param view: the chunk's bytes from ``start`` on, a range as :func:`widened` returns it
    :param sums: checksums of the range (see :func:`table_range`) from byte ``at`` on
    """
    seed, size = int.from_bytes(cid[:_SEED_BYTES]), len(view)
    if size == length <= GROUP_BYTES:
        return _digest(view, seed) == sums[at : at + SUM_BYTES]
    if size <= BLOCK_BYTES:
        at += SUM_BYTES + start % GROUP_BYTES // BLOCK_BYTES * SUM_BYTES
        return _digest(view, seed) == sums[at : at + SUM_BYTES]
    return _are_all_right(view, start, length, seed, sums, at)


def _are_all_right(
    view: memoryview, start: int, length: int, seed: int, sums: Data, at: int
) -> bool:
    offset, stop = start, start + len(view)
    while offset < stop:
        in_group = offset % GROUP_BYTES
        end = min(offset - in_group + GROUP_BYTES, length)
        if in_group == 0 and end <= stop:
            its, digests = at, _digest(view[offset - start : end - start], seed)
        else:
            end = min(end, stop)
            its = at + SUM_BYTES + in_group // BLOCK_BYTES * SUM_BYTES
            blocks = range(offset - start, end - start, BLOCK_BYTES)
            digests = b"".join([_digest(view[a : a + BLOCK_BYTES], seed) for a in blocks])
        if digests != sums[its : its + len(digests)]:
            return False
        offset = end
        at += UNIT_BYTES
    return True
