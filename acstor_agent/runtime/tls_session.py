# SPDX-License-Identifier: Apache-2.0
"""TLS of one connection in memory, without a socket.

Encrypted data must be sent in order and once, as both sides count records. In memory, one call of
the socket moves many records of 16 KiB. OpenSSL gets records one by one: its buffer never shrinks,
and a read of an incomplete record costs more than the check here.
"""

import contextlib
import ssl

from acstor_common.model import geometry
from acstor_common.wire.peer import peer_wire

RECORD_BYTES = 16 * geometry.KIB  # plain text of a record, at most
RECORDS_IN_A_ROW = 64  # limit of records decrypted at a time, since peers may send short ones
_HEADER_BYTES = 5  # the last two bytes are the length of the rest
_MAX_REST_BYTES = RECORD_BYTES + 256  # RFC 8446, 5.2; OpenSSL refuses larger ones
_NOTHING = memoryview(b"")
_MAX_CONTROL_BYTES = 4096  # limit of OpenSSL's own output before data: 150 key updates
_MAX_WORDLESS_BYTES = 64 * geometry.KIB
"""Limit of records without plain text, beyond as much plain text.

250 session tickets; a server sends two. OpenSSL processes them at 11 MB/s, slower than networks
deliver them.
"""


class TlsSession:
    """One side of a connection; the server must prove ``server_hostname`` if the context checks."""

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_hostname
        )
        self.is_over = False  # the other side sends no more
        self.records = 0  # number of records begun; a short one costs nearly as much as a long one
        self._wordless_bytes = 0
        self._record_bytes = 0  # of the record that OpenSSL received last
        self._received = _NOTHING  # not given to OpenSSL yet
        self.record_missing_bytes = 0  # of the record that OpenSSL has partly
        self._is_begun = False  # the last record has more plain text

    def continue_handshake(self) -> bool:
        """Continue the handshake; return whether it is complete, or raise ssl.SSLError."""
        if self._received:
            self._incoming.write(self._received)
            self._received = _NOTHING
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            return True
        return False

    @property
    def protocol(self) -> str | None:
        """Return the protocol negotiated by ALPN."""
        return self._tls.selected_alpn_protocol()

    @property
    def certificate(self) -> bytes | None:
        """Return the other side's certificate, in DER."""
        return self._tls.getpeercert(binary_form=True)

    def add_received(self, records: bytes) -> None:
        """Add received data."""
        rest = self._received
        self._received = memoryview(b"".join((rest, records)) if rest else records)

    def receive_eof(self) -> None:
        """Record that the other side sends no more."""
        self._incoming.write_eof()
        self.is_over = True

    def take_outgoing(self) -> bytes:
        """Return data for the other side, such as handshake messages and alerts."""
        return self._outgoing.read()

    def take_undecrypted(self) -> bytes:
        """Remove and return data that is not decrypted yet."""
        rest, self._received = bytes(self._received), _NOTHING
        return self._incoming.read() + rest

    @property
    def unread_bytes(self) -> int:
        """Return the number of received bytes not decrypted yet."""
        return self._incoming.pending + len(self._received)

    @property
    def readable_bytes(self) -> int:
        """Return the number of decrypted bytes not read yet."""
        return self._tls.pending()

    def encrypt(self, data: peer_wire.Buffer) -> bytes:
        """Return the records of ``data``, after pending messages of OpenSSL."""
        self._tls.write(data)
        return self._outgoing.read()

    def read_into(self, space: memoryview, *more: memoryview) -> int:
        """Decrypt up to RECORDS_IN_A_ROW records into ``space``; return the number of bytes.

        :param more: space that follows; if given, many records may fill ``space``, else one
        :raises ssl.SSLError: the data is not authentic
        :raises OSError: too many records are key updates or session tickets
        """
        read, length = self._tls.read, len(space)
        filled, last = 0, self.records + RECORDS_IN_A_ROW
        while filled < length and (self._is_begun or (self.records < last and self._next_record())):
            try:
                count: int = read(length - filled, space[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:  # a record without plain text
                self._count_control_record()
                last += 1  # these have a limit of their own
                continue
            if not count:
                self.is_over = True
                break
            filled += count
            self._is_begun = filled == length and self._tls.pending() > 0
            if not more:
                break
        if self._wordless_bytes:
            self._wordless_bytes = max(0, self._wordless_bytes - filled)
        return filled

    def _count_control_record(self) -> None:
        """Count a record without plain text; raise OSError if there are too many."""
        if self._outgoing.pending > _MAX_CONTROL_BYTES:
            raise OSError("it requests too many key updates")
        self._wordless_bytes += self._record_bytes
        if self._wordless_bytes > _MAX_WORDLESS_BYTES:
            raise OSError("it sends too many TLS control records")

    def _next_record(self) -> bool:
        """Pass OpenSSL the next record as far as received; return whether it is complete."""
        received, missing_bytes = self._received, self.record_missing_bytes
        if not missing_bytes:
            if len(received) < _HEADER_BYTES:
                self._received = memoryview(bytes(received))  # frees the rest of its buffer
                return False
            rest_bytes = received[3] << 8 | received[4]
            missing_bytes = _HEADER_BYTES + min(rest_bytes, _MAX_REST_BYTES)
            self._record_bytes = missing_bytes
            self.records += 1
        given_bytes = self._incoming.write(received[:missing_bytes])
        self._received = received[given_bytes:]
        self.record_missing_bytes = missing_bytes - given_bytes
        return not self.record_missing_bytes
