# SPDX-License-Identifier: Apache-2.0
"""TLS of one connection, from bytes to bytes, without any socket.

The one rule: what was encrypted is sent, in that order and once: both sides count records.

OpenSSL on a socket reads the header and the body of each record, 16 KiB at most, in two
calls, and writes each record in one.  Here it works in memory, and the socket takes and
gives many records at a time.  OpenSSL gets them one by one: it keeps the memory for the
most that it ever had, and to say that a record is not whole costs more than to look.
"""

import contextlib
import ssl

from acstor_common.model import geometry
from acstor_common.wire import peer_wire

RECORD_BYTES = 16 * geometry.KIB  # of plain text in a record, at most
RECORDS_IN_A_ROW = 64
"""Are decrypted at a time, at most: they may be as short as the other side likes."""
_HEADER_BYTES = 5  # the last two of which are the length of the rest
_MAX_REST_BYTES = RECORD_BYTES + 256  # RFC 8446, 5.2; OpenSSL refuses more when it sees it
_NOTHING = memoryview(b"")
_MAX_CONTROL_BYTES = 4096
"""What OpenSSL has to say of itself before there is something to send: 150 times new keys."""
_MAX_WORDLESS_BYTES = 64 * geometry.KIB
"""Of records without plain text, beyond as much plain text: 250 session tickets.  A server sends
two; OpenSSL takes them in more slowly (11 MB/s) than a network brings them."""


class TlsSession:
    """One side of a connection.

    :param context: what it is begun with
    :param server_hostname: whom a client's other side must prove to be, if the context says so
    """

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_hostname
        )
        self.is_over = False
        """The other side has said that no more comes."""
        self.records = 0
        """How many were begun: a short one costs nearly as much as a long one."""
        self._wordless_bytes = 0
        self._record_bytes = 0  # of the record that OpenSSL was given last
        self._received = _NOTHING  # what OpenSSL has not been given
        self._missing_bytes = 0  # of the record whose beginning it has been given
        self._is_begun = False  # there is more in the record that was read last

    def continue_handshake(self) -> bool:
        """Go on with the handshake as far as that goes; say whether it is done.

        :raises ssl.SSLError: the other side is not believed, or does not speak TLS
        """
        if self._received:
            self._incoming.write(self._received)
            self._received = _NOTHING
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            return True
        return False

    @property
    def protocol(self) -> str | None:
        """Return what both sides have agreed on by ALPN."""
        return self._tls.selected_alpn_protocol()

    @property
    def certificate(self) -> bytes | None:
        """Return the other side's certificate, in DER."""
        return self._tls.getpeercert(binary_form=True)

    def put(self, records: bytes) -> None:
        """Take what came from the other side."""
        rest = self._received
        self._received = memoryview(b"".join((rest, records)) if rest else records)

    def receive_eof(self) -> None:
        """Note that no more comes from the other side."""
        self._incoming.write_eof()
        self.is_over = True

    def take_outgoing(self) -> bytes:
        """Return what is to be sent to the other side: its handshake, what was wrong with it."""
        return self._outgoing.read()

    def take_undecrypted(self) -> bytes:
        """Return what was put and is not decrypted yet, and forget it."""
        rest, self._received = bytes(self._received), _NOTHING
        return self._incoming.read() + rest

    @property
    def unread_bytes(self) -> int:
        """Return how much was put and is not decrypted yet."""
        return self._incoming.pending + len(self._received)

    @property
    def has_more(self) -> bool:
        """Say whether there may be something to read of what was put."""
        return self._is_begun or bool(self._received)

    @property
    def readable_bytes(self) -> int:
        """Return how much is decrypted and was not read."""
        return self._tls.pending()

    def encrypt(self, data: peer_wire.Buffer) -> bytes:
        """Return the records of ``data``, behind what OpenSSL has to say of itself."""
        self._tls.write(data)
        return self._outgoing.read()

    def read_into(self, space: memoryview, *more: memoryview) -> int:
        """Decrypt what is here, into ``space``; return the number of bytes, 0 if there are none.

        No more than RECORDS_IN_A_ROW with plain text are decrypted.

        :param more: where to go on behind ``space``: as there is such a place, ``space`` may be
            filled by many records; else it gets no more than one
        :raises ssl.SSLError: it is not what the other side has encrypted
        :raises OSError: it is of little else than TLS itself: new keys, session tickets
        """
        read, length = self._tls.read, len(space)
        filled, last = 0, self.records + RECORDS_IN_A_ROW
        while filled < length and (self._is_begun or (self.records < last and self._next_record())):
            try:
                count: int = read(length - filled, space[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:  # it was a record of TLS itself
                self._note_wordless()
                last += 1  # what has no plain text is bounded by that
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

    def _note_wordless(self) -> None:
        """Note that a record brought no plain text: who sends little else is left."""
        if self._outgoing.pending > _MAX_CONTROL_BYTES:
            raise OSError("it asks for new keys again and again")
        self._wordless_bytes += self._record_bytes
        if self._wordless_bytes > _MAX_WORDLESS_BYTES:
            raise OSError("it sends records of TLS itself, again and again")

    def _next_record(self) -> bool:
        """Give OpenSSL what is here of the next record; say whether that is all of it."""
        received, missing_bytes = self._received, self._missing_bytes
        if not missing_bytes:
            if len(received) < _HEADER_BYTES:
                self._received = memoryview(bytes(received))  # the rest of its buffer can go
                return False
            rest_bytes = received[3] << 8 | received[4]
            missing_bytes = _HEADER_BYTES + min(rest_bytes, _MAX_REST_BYTES)
            self._record_bytes = missing_bytes
            self.records += 1
        given_bytes = self._incoming.write(received[:missing_bytes])
        self._received = received[given_bytes:]
        self._missing_bytes = missing_bytes - given_bytes
        return not self._missing_bytes
