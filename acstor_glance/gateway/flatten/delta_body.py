# SPDX-License-Identifier: Apache-2.0
"""Reads a delta from the request's body, as it arrives.

The last bytes follow only after the trailer was verified: no image of an altered body is complete.
"""

import contextlib
import http
import os
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.image import image_record
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import watchdog

PIECE_BYTES = 1 << 20
READ_BYTES = 1 << 16  # bytes per read; the WSGI server returns only when it has all of them
SLOWEST_BYTES_S = 256 << 10  # slowest average rate of a client, which occupies a slot


class DeltaBody:
    """A delta from a client (``wsgi.input``), read by one thread."""

    def __init__(
        self,
        stream: Any,
        length_bytes: int,
        image_id: ids.ImageId,
        watch: watchdog.Watchdog,
        clock: clocks.Clock = time,
    ) -> None:
        self._stream, self._length_bytes, self._watch = stream, length_bytes, watch
        self._reader = disk_delta.Reader(
            f"the delta for image {image_id}", image_record.SERVED_VIRTUAL_BYTES
        )
        self._left_bytes = 0
        self._clock, self._waited_s = clock, 0.0
        self.verified = threading.Event()
        """Set when the complete body is verified."""
        self.read_bytes = 0
        self.is_waiting = False

    def read_header(self) -> tuple[disk_delta.Head, disk_delta.ExtentTable]:
        """Read and check the header and the table; raises FlattenAborted."""
        with _translated():
            head = self._reader.read_head(self._take(disk_delta.HEADER_BYTES))
            if head.stream_bytes != self._length_bytes:
                words = f"it has {self._length_bytes} bytes, and its delta {head.stream_bytes}"
                raise _broken(f"the body does not match its header: {words}")
            table = self._reader.read_table(self._take(head.table_bytes))
            self._left_bytes = head.data_bytes
            self._end_if_read()
        return head, table

    def read(self, length: int) -> Iterator[bytes]:
        """Yield the next ``length`` bytes, in pieces; FlattenAborted if missing or altered."""
        for start in range(0, length, PIECE_BYTES):
            data = self._take(min(PIECE_BYTES, length - start))
            with _translated():
                self._reader.hash_data(data)
                self._left_bytes -= len(data)
                self._end_if_read()
            yield data

    def abort_read(self) -> None:
        """Interrupt a read that waits for the client, if the server exposes the socket."""
        find: Callable[[], int] | None = getattr(self._stream, "fileno", None)
        with contextlib.suppress(OSError, ValueError):
            if find is not None and (number := find()) >= 0:
                with socket.socket(fileno=os.dup(number)) as link:
                    link.shutdown(socket.SHUT_RDWR)

    def _end_if_read(self) -> None:
        if not self._left_bytes:
            self._reader.verify_trailer(self._take(disk_delta.TRAILER_BYTES))
            self.verified.set()

    def _take(self, length: int) -> bytes:
        parts, missing = [], length
        while missing:
            part = self._read_some(min(missing, READ_BYTES))
            if not part:
                raise _broken(f"the body ended after {self.read_bytes} bytes")
            parts.append(part)
            missing -= len(part)
            self.read_bytes += len(part)
            self._watch.note_progress()
            self._check_rate()
        return b"".join(parts)

    def _check_rate(self) -> None:
        if self._waited_s > self._watch.stall_s + self.read_bytes / SLOWEST_BYTES_S:
            words = f"{self.read_bytes} bytes of the delta arrived in {self._waited_s:.0f} s"
            raise http_errors.FlattenAborted(http.HTTPStatus.REQUEST_TIMEOUT, words, "client")

    def _read_some(self, length: int) -> bytes:
        self.is_waiting, began_s = True, self._clock.monotonic()
        try:
            part: bytes = self._stream.read(length)
        except OSError as error:  # the client disconnected, or the server's timeout
            self._watch.raise_if_stopped()
            raise _broken(f"the body cannot be read: {error}") from error
        finally:
            self.is_waiting = False
            self._waited_s += self._clock.monotonic() - began_s
        return part


def _broken(words: str) -> http_errors.FlattenAborted:
    return http_errors.FlattenAborted(http.HTTPStatus.BAD_REQUEST, words, "client")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except errors.DiskDeltaFormatError as error:
        raise _broken(str(error)) from error
