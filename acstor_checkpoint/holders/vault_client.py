# SPDX-License-Identifier: Apache-2.0
"""Client of another host's vault, whose certificate must name that host.

A request is sent again if its connection was closed meanwhile, as requests are idempotent.
"""

import contextlib
import errno
import http
import itertools
import math
import socket
import ssl
import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple
from typing import Self

import h11

from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.identity import credentials
from acstor_common.model import ids

BATCH_BYTES: Final = 8 << 20  # sent together: 128 chunks of 64 KiB share one sync of the vault
OWN_ERRORS: Final = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EADDRNOTAVAIL,
    }
)
"""This host is out of descriptors, memory or ports."""
_DISK_BYTES: Final = 37  # a line of the list: a UUID and a newline
_MOST_ROUNDS: Final = 2 * checkpoint_manifest.MAX_ENTRIES // vault_store.MAX_REMOVED


class ClientLimits(NamedTuple):
    """Limits of a client.

    :param request_s: of a request, in addition to the time of its bytes; a slow disk takes 20 s to
        delete vault_store.MAX_REMOVED files, or to sync
    """

    request_s: float = 120.0
    connect_s: float = 10.0  # time for a connection, of that of the request
    min_bytes_per_s: int = 1 << 20  # least rate of a request and of its response
    short_bytes: int = 4096  # of a response that is a number or text
    channel: tls_channel.ChannelLimits = tls_channel.LIMITS


class HostFault(errors.Unusable):
    """This host cannot call any vault."""

    def __init__(self, why: str) -> None:
        super().__init__("this host", why)


class NoRoute(HostFault):
    """This host has no route to a vault; maybe to others."""


class _Request(NamedTuple):
    method: str
    path: str
    body: Sequence[bytes | bytearray]
    limit: int

    @property
    def length(self) -> int:
        return sum(map(len, self.body))


class _Response(NamedTuple):
    status: int
    data: bytes


class VaultClient:
    """Client of one host's vault; context manager, not thread-safe.

    Each method may raise

    * errors.SourceUnreachable: not reachable, or connection lost; retry later
    * errors.NotAuthenticated: the server is another host
    * errors.VaultRefused: forbidden, or invalid request
    * HostFault: the request was not sent

    :ivar request_began_s: when its last request began, by the monotonic clock
    """

    def __init__(
        self,
        holder: ids.HostId,
        address: tuple[str, int],
        credentials: credentials.Credentials,
        limits: ClientLimits = ClientLimits(),  # noqa: B008 (it is never changed)
    ) -> None:
        self.holder, self.request_began_s = holder, time.monotonic()
        self._address, self._credentials = address, credentials
        self._limits = limits
        self._channel: tls_channel.TlsChannel | None = None
        self._sock: socket.socket | None = None
        self._is_aborted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def abort(self) -> None:
        """Fail the running request and all later ones; thread-safe."""
        self._is_aborted = True
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):  # closed by the peer
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def has_route(self) -> bool:
        """Return whether the kernel has a route (ICMP errors may be forged)."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(self._address)
        except OSError:
            return False
        return True

    def put(self, disk: object_names.VaultDisk, chunks: Iterable[object_names.SealedChunk]) -> None:
        """Store chunks durably, consumed while sent, or raise VaultFull, maybe after some."""
        for batch in _batches(chunks):
            self._ask("PUT", _path(disk, "chunks"), [b"".join(batch)])

    def missing_chunks(self, disk: object_names.VaultDisk, chunks: Iterable[bytes]) -> set[bytes]:
        """Return which chunks the vault lacks."""
        found: set[bytes] = set()
        left = iter(sorted(set(chunks)))
        while part := list(itertools.islice(left, object_names.MAX_NAMES)):
            limit = len(part) * object_names.NAME_BYTES
            answer = self._ask("POST", _path(disk, "missing"), [b"".join(part)], limit)
            named = set(_names(answer, self.holder))
            if not named <= set(part):
                raise errors.RemoteProtocolError(
                    self.holder, "it lists chunks that were not requested"
                )
            found |= named
        return found

    def put_manifest(self, disk: object_names.VaultDisk, sealed: bytes | bytearray) -> bytes:
        """Store a sealed manifest durably; return its name, or raise VaultFull."""
        name = checkpoint_encryption.manifest_name(sealed)
        self._ask("PUT", _path(disk, "manifests", name), [sealed])
        return name

    def retain_only(
        self, disk: object_names.VaultDisk, retained: object_names.RetainedNames
    ) -> int:
        """Delete other chunks and manifests of a disk; return how many."""
        gone = 0
        for within, some in object_names.split(retained):
            path = f"{_path(disk, 'keep')}/{within[0]:02x}-{within[-1]:02x}"
            gone += self._until_all_went("POST", path, b"".join(some))
        return gone

    def delete_disk(self, disk: object_names.VaultDisk) -> int:
        """Delete a disk; return the number of objects."""
        return self._until_all_went("DELETE", _path(disk), b"")

    def fetch_chunk(self, disk: object_names.VaultDisk, name: bytes) -> bytes:
        """Return a sealed chunk, to be verified by ``Seal.open``, or raise ChunkMissing."""
        limit = checkpoint_encryption.MAX_SEALED_BYTES
        return self._ask("GET", _path(disk, "chunks", name), [], limit)

    def fetch_manifest(self, disk: object_names.VaultDisk, name: bytes) -> bytes:
        """Return a sealed manifest; ChunkMissing or ChunkInvalid if the vault lacks it."""
        limit = vault_api.MAX_MANIFEST_BYTES
        sealed = self._ask("GET", _path(disk, "manifests", name), [], limit)
        if checkpoint_encryption.manifest_name(sealed) != name:
            raise errors.ChunkInvalid(
                f"manifest {name.hex()}", self.holder, "its hash does not match its name"
            )
        return sealed

    def list_manifests(self, disk: object_names.VaultDisk) -> list[bytes]:
        """Return the names of the disk's manifests."""
        limit = quota.MAX_MANIFESTS * object_names.NAME_BYTES
        return list(_names(self._ask("GET", _path(disk, "manifests"), [], limit), self.holder))

    def list_disks(self, owner: ids.HostId) -> list[ids.ImageId]:
        """Return the disks of a host, or raise RemoteProtocolError."""
        limit = quota.MAX_DISKS * _DISK_BYTES
        text = self._ask("GET", f"/v1/{owner}", [], limit).decode("ascii", "replace")
        try:
            return [ids.parse_image_id(line) for line in text.splitlines()]
        except ValueError as e:
            raise errors.RemoteProtocolError(self.holder, str(e)) from e

    def _until_all_went(self, method: str, path: str, body: bytes) -> int:
        gone = 0
        for _ in range(_MOST_ROUNDS):
            went = _number(self._ask(method, path, [body]), self.holder)
            gone += went
            if went < vault_store.MAX_REMOVED:
                return gone
        raise errors.RemoteProtocolError(self.holder, f"{gone} items were deleted, and more remain")

    def _ask(
        self, method: str, path: str, body: Sequence[bytes | bytearray], limit: int = 0
    ) -> bytes:
        limit = max(limit, self._limits.short_bytes)
        status, data = self._answer(_Request(method, path, body, limit))
        if status in (http.HTTPStatus.OK, http.HTTPStatus.NO_CONTENT):
            return data
        why = data[:300].decode("utf-8", "replace")
        if status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.GONE):
            raise errors.ChunkMissing(path, self.holder, why)
        if status == http.HTTPStatus.INSUFFICIENT_STORAGE:
            raise errors.VaultFull(self.holder, why)
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise errors.SourceUnreachable(path, self.holder, why)
        raise errors.VaultRefused(self.holder, f"{method} {path}: {status} {why}")

    def _answer(self, request: _Request) -> _Response:
        self.request_began_s = time.monotonic()
        until_s = self.request_began_s + self._limits.request_s + self._bytes_s(request.length)
        try:
            return self._try_again(request, until_s)
        except (tls_channel.ConnectionBroken, OSError) as e:
            why = str(e) or "no answer"
            raise errors.SourceUnreachable(request.path, self.holder, why) from e

    def _bytes_s(self, count: int) -> float:
        return count / self._limits.min_bytes_per_s

    def _try_again(self, request: _Request, until_s: float) -> _Response:
        if self._channel is not None:
            with contextlib.suppress(tls_channel.ConnectionBroken):  # closed meanwhile
                return self._try(request, until_s)
        return self._try(request, until_s)

    def _try(self, request: _Request, until_s: float) -> _Response:
        channel = self._channel or self._connect(until_s)
        self._channel = None  # restored on success
        with contextlib.ExitStack() as stack:
            stack.callback(channel.close)
            answer = self._exchange(channel, request, until_s)
            if channel.begin_again():
                stack.pop_all()
                self._channel = channel
        return answer

    def _exchange(
        self, channel: tls_channel.TlsChannel, request: _Request, until_s: float
    ) -> _Response:
        channel.end_by(until_s)
        headers = [("host", "vault"), ("content-length", str(request.length))]
        with contextlib.suppress(
            tls_channel.ConnectionBroken
        ):  # a refusal may come before the body is sent
            channel.send(h11.Request(method=request.method, target=request.path, headers=headers))
            channel.send_body(request.body, request.length)
        response = channel.receive(math.inf)
        if not isinstance(response, h11.Response):
            raise tls_channel.ConnectionBroken("it closed the connection without an answer")
        announced = tls_channel.content_length(response) or 0
        if announced > request.limit:
            raise tls_channel.ConnectionBroken(
                f"an answer of {announced} bytes, {request.limit} at most are expected"
            )
        channel.end_by(until_s + self._bytes_s(announced))
        return _Response(response.status_code, b"".join(channel.iter_body(announced)))

    def _connect(self, until_s: float) -> tls_channel.TlsChannel:
        """Connect, and authenticate the holder; raise OSError, HostFault or NotAuthenticated."""
        self._check_not_aborted()
        context = self._context()
        until_s = min(until_s, time.monotonic() + self._limits.connect_s)
        sock = self._dial(_left_s(until_s))
        with contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_left_s(until_s))
            tls = stack.enter_context(context.wrap_socket(sock))
            self._check(tls)
            self._sock = tls
            self._check_not_aborted()  # else abort() sees the connection
            stack.pop_all()
        return tls_channel.TlsChannel(tls, h11.CLIENT, self._limits.channel)

    def _context(self) -> ssl.SSLContext:
        try:
            self._credentials.reload_files()
            return self._credentials.tls_context(is_server=False)
        except OSError as e:
            raise HostFault(str(e)) from e

    def _dial(self, within_s: float) -> socket.socket:
        try:
            return socket.create_connection(self._address, within_s)
        except OSError as e:
            if e.errno in OWN_ERRORS:
                raise HostFault(str(e)) from e
            if not self.has_route():
                raise NoRoute(str(e)) from e
            raise

    def _check_not_aborted(self) -> None:
        if self._is_aborted:
            raise OSError("it was aborted")

    def _check(self, tls: ssl.SSLSocket) -> None:
        found = self._credentials.check_peer(tls.getpeercert(binary_form=True))
        if found.host != self.holder:
            why = f"that of {self.holder} is expected"
            raise errors.NotAuthenticated(f"the certificate of {found.host}", why)
        if tls.selected_alpn_protocol() != tls_channel.PROTOCOL:
            raise errors.NotAuthenticated(
                f"the vault of {self.holder}", "it speaks another protocol"
            )


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise tls_channel.ConnectionBroken("it is too slow")
    return left_s


def _batches(chunks: Iterable[object_names.SealedChunk]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for name, data in chunks:
        head = object_names.CHUNK_HEADER.pack(name, len(data))
        if batch and (size + len(data) > BATCH_BYTES or len(batch) >= 2 * vault_api.MAX_BATCH):
            yield batch
            batch, size = [], 0
        batch += (head, data)
        size += len(head) + len(data)
    if batch:
        yield batch


def _path(disk: object_names.VaultDisk, what: str = "", name: bytes = b"") -> str:
    return "/".join(filter(None, ["/v1", disk.owner, disk.disk, what, name.hex()]))


def _names(data: bytes, holder: ids.HostId) -> object_names.NameList:
    try:
        return object_names.NameList(data)
    except ValueError as e:
        raise errors.RemoteProtocolError(holder, str(e)) from e


def _number(data: bytes, holder: ids.HostId) -> int:
    if len(data) > 20 or not data.isdigit():
        raise errors.RemoteProtocolError(holder, f"{data[:40]!r} is not a number")
    return int(data)
