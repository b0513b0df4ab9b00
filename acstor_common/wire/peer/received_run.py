# SPDX-License-Identifier: Apache-2.0
"""Chunks with consecutive numbers in a received frame."""

from typing import NamedTuple

from acstor_common.wire.peer import peer_request


class ReceivedRun(NamedTuple):
    """Chunks with consecutive numbers, and their range in the frame's data."""

    number: int
    begin: int
    end: int
    chunk_bytes: int = 0
    raw_bytes: int = 0

    @property
    def numbers(self) -> range:
        """The chunks' numbers."""
        chunks = peer_request.count_chunks(self.end - self.begin, self.chunk_bytes)
        return range(self.number, self.number + chunks)

    def whole_at(self, filled: int, is_past: bool = False) -> int:
        """Return the end of the incomplete chunk, or of the last complete one."""
        size = self.chunk_bytes or self.end - self.begin
        chunks = (filled - self.begin) // size + (not is_past)
        return min(self.begin + chunks * size, self.end)

    def divide(self, stop: int) -> tuple["ReceivedRun", list["ReceivedRun"]]:
        """Split at the end of a chunk; the second part is a list of one, or empty."""
        size = self.chunk_bytes
        if stop == self.end:
            return self, []
        chunks = (stop - self.begin) // size
        some = ReceivedRun(self.number, self.begin, stop, size if chunks > 1 else 0)
        rest_size = size if self.end - stop > size else 0
        return some, [ReceivedRun(self.number + chunks, stop, self.end, rest_size)]
