# SPDX-License-Identifier: Apache-2.0
"""FUSE_INIT: parses and adapts the negotiation of kernel and libfuse.

The kernel asks once per mount. The libfuse of a later worker, perhaps of another version, computes
an answer that the kernel never reads. So its offer is reduced to the agreement, and its answer is
compared with it: each flag may change the format of messages.
"""

import struct
from typing import NamedTuple

OPCODE = 26
_IN_HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT_HEADER = struct.Struct("<IiQ")  # length, error, unique
_OFFER = struct.Struct("<IIII")  # major, minor, read-ahead, flags
_MORE_OFFER = struct.Struct("<I")  # flags above the first 32
_ANSWER = struct.Struct("<IIIIHHIIHHI")
_BACKGROUND = struct.Struct("<HH")
_BACKGROUND_AT = _OUT_HEADER.size + 16
_MAX_WRITE_AT = _BACKGROUND_AT + 4
_MAX_PAGES_AT = _MAX_WRITE_AT + 8
_PAGE_BYTES = 4096
_FLAGS_AT = _IN_HEADER.size + 12
_ANSWERED_FLAGS_AT = _OUT_HEADER.size + 12
_PARALLEL_LOOKUPS = 1 << 18  # FUSE_PARALLEL_DIROPS: changes no message; libfuse 3.14 never sets it
_HAS_MORE_FLAGS = 1 << 30  # FUSE_INIT_EXT: there are flags above the first 32
_CAN_RESEND = 1 << 39 - 32
"""FUSE_HAS_RESEND, of those: unanswered requests are queued again on request."""


class Answer(NamedTuple):
    """The relevant fields of an answer to FUSE_INIT."""

    major: int
    flags: int
    max_write_bytes: int


def is_request(message: bytes) -> bool:
    """Return whether a message of the kernel is a FUSE_INIT."""
    is_whole = len(message) >= _IN_HEADER.size + _OFFER.size
    return is_whole and _IN_HEADER.unpack_from(message)[:2] == (len(message), OPCODE)


def can_resend(request: bytes) -> bool:
    """Return whether the kernel can resend unanswered requests: Linux 6.9, or a backport."""
    more_at = _FLAGS_AT + 4
    _, _, _, flags = _OFFER.unpack_from(request, _IN_HEADER.size)
    if not flags & _HAS_MORE_FLAGS or len(request) < more_at + _MORE_OFFER.size:
        return False
    return bool(_MORE_OFFER.unpack_from(request, more_at)[0] & _CAN_RESEND)


def parse(reply: bytes) -> Answer | None:
    """Return an answer; None if it is malformed or refuses the kernel."""
    if len(reply) < _OUT_HEADER.size + _ANSWER.size:
        return None
    length, error, _ = _OUT_HEADER.unpack_from(reply)
    if error or length != len(reply):
        return None
    major, _, _, flags, _, _, longest, _, _, _, more = _ANSWER.unpack_from(reply, _OUT_HEADER.size)
    return Answer(major, flags | (more << 32 if flags & _HAS_MORE_FLAGS else 0), longest)


def with_background(reply: bytes, limit: int) -> bytes:
    """Return an answer that allows ``limit`` background requests at a time."""
    changed = bytearray(reply)
    _BACKGROUND.pack_into(changed, _BACKGROUND_AT, limit, limit * 3 // 4)
    return bytes(changed)


def with_longest(reply: bytes, longest_bytes: int) -> bytes:
    """Return an answer that limits data in a message, to a multiple of a page."""
    changed = bytearray(reply)
    struct.pack_into("<I", changed, _MAX_WRITE_AT, longest_bytes)
    struct.pack_into("<H", changed, _MAX_PAGES_AT, longest_bytes // _PAGE_BYTES)
    return bytes(changed)


def with_parallel_lookups(reply: bytes, request: bytes) -> bytes:
    """Return an answer that, if offered, lets lookups in a folder not wait for one another."""
    _, _, _, offered = _OFFER.unpack_from(request, _IN_HEADER.size)
    _, _, _, flags = _OFFER.unpack_from(reply, _OUT_HEADER.size)
    changed = bytearray(reply)
    struct.pack_into("<I", changed, _ANSWERED_FLAGS_AT, flags | offered & _PARALLEL_LOOKUPS)
    return bytes(changed)


def offer_again(request: bytes, agreed: bytes) -> bytes:
    """Return a FUSE_INIT cut down to the flags of the answer ``agreed``; all if it is invalid."""
    answer = parse(agreed)
    if answer is None:
        return request
    cut = bytearray(request)
    _, _, _, flags = _OFFER.unpack_from(request, _IN_HEADER.size)
    struct.pack_into("<I", cut, _FLAGS_AT, flags & answer.flags)
    more_at = _FLAGS_AT + 4
    if len(request) >= more_at + _MORE_OFFER.size:
        (more,) = _MORE_OFFER.unpack_from(request, more_at)
        _MORE_OFFER.pack_into(cut, more_at, more & answer.flags >> 32)
    return bytes(cut)


def differences(agreed: bytes, computed: bytes) -> list[str]:
    """Return in words why answer ``computed`` cannot serve a kernel with answer ``agreed``.

    >>> differences(b"", b"")
    ['the recorded reply to the kernel is damaged']
    """
    before, now = parse(agreed), parse(computed)
    if before is None:
        return ["the recorded reply to the kernel is damaged"]
    if now is None:
        return ["this libfuse rejects what was negotiated with the kernel"]
    found = []
    if before.major != now.major:
        found.append(f"protocol {now.major} instead of {before.major}")
    if missing := before.flags & ~now.flags & ~_PARALLEL_LOOKUPS:
        found.append(f"without the flags {missing:#x}")
    if more := now.flags & ~before.flags:
        found.append(f"with the additional flags {more:#x}")
    if now.max_write_bytes < before.max_write_bytes:
        found.append(f"writes of {now.max_write_bytes} bytes instead of {before.max_write_bytes}")
    return found
