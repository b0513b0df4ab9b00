# SPDX-License-Identifier: Apache-2.0
"""What this host asks the vault of another one.

It is that host, or nothing is sent: its certificate must have its name.

A connection is kept between requests.  One that has ended meanwhile is replaced and the
request sent again, once, for each request may be done twice.
"""

import contextlib
import itertools
import socket
import ssl
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from types import TracebackType
from typing import Final
from typing import NamedTuple
from typing import Self

import h11

from acstor_checkpoint import channel as channel_
from acstor_checkpoint import names
from acstor_checkpoint import vault
from acstor_checkpoint import vault_api
from acstor_common import checkpoint_manifest
from acstor_common import checkpoint_sealing
from acstor_common import credentials as credentials_
from acstor_common import errors
from acstor_common import ids

CONNECT_S: Final = 10.0
BATCH_BYTES: Final = 8 << 20
"""Sent together: 128 chunks of 64 KiB, for which the vault's disk waits once."""
SHORT_BYTES: Final = 1 << 20
"""Of an answer that is a list or words."""
ANSWER_S: Final = 300.0
"""How long a vault may take to make a batch safe on a slow disk, to go through a million files."""


_MOST_ROUNDS: Final = 2 * checkpoint_manifest.MAX_ENTRIES // vault.MAX_REMOVED


class _Answer(NamedTuple):
    status: int
    data: bytes


class VaultClient:
    """The vault of one host, for one thread; a context manager that ends its connection.

    Each method may raise

    * errors.SourceUnreachable: it cannot be reached, or broke off; ask again later
    * errors.NotAuthentic: who answers there is not that host
    * errors.VaultRefused: this host may not do that, or it makes no sense to the vault

    :param holder: whose vault it is
    :param address: where it listens
    :param credentials: for ``channel.PROTOCOL``
    """

    def __init__(
        self, holder: ids.HostId, address: tuple[str, int], credentials: credentials_.Credentials
    ) -> None:
        self.holder = holder
        self._address, self._credentials = address, credentials
        self._channel: channel_.Channel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next request makes another one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def put(self, disk: names.Disk, chunks: Iterable[names.Sealed]) -> None:
        """Have chunks kept; all of them are safe when this returns.

        :param chunks: are taken as they are sent, so that few are in memory
        :raises errors.VaultFull: there is no room for one; those before it may be kept
        """
        for batch in _batches(chunks):
            self._ask("PUT", _path(disk, "chunks"), [b"".join(batch)])

    def missing(self, disk: names.Disk, chunks: Iterable[bytes]) -> set[bytes]:
        """Return which of these chunks the vault has not got."""
        found: set[bytes] = set()
        left = iter(sorted(set(chunks)))
        while part := list(itertools.islice(left, names.MAX_ASKED)):
            limit = len(part) * names.NAME_BYTES
            answer = self._ask("POST", _path(disk, "missing"), [b"".join(part)], limit)
            found.update(_names(answer, self.holder))
        return found

    def put_manifest(self, disk: names.Disk, sealed: bytes) -> bytes:
        """Have a sealed manifest kept; it is safe when this returns. Return its name.

        :raises errors.VaultFull: there is no room
        """
        name = checkpoint_sealing.manifest_name(sealed)
        self._ask("PUT", _path(disk, "manifests", name), [sealed])
        return name

    def keep(self, disk: names.Disk, stay: Iterable[bytes]) -> int:
        """Have all of a disk dropped but chunks and manifests of these names; return how many went.

        :param stay: names that all manifests which stay name, and their own
        """
        gone = 0
        for within, some in names.ranges(stay):
            path = f"{_path(disk, 'keep')}/{within[0]:02x}-{within[-1]:02x}"
            gone += self._until_all_went("POST", path, b"".join(some))
        return gone

    def drop(self, disk: names.Disk) -> int:
        """Have all of a disk dropped; return how many things went."""
        return self._until_all_went("DELETE", _path(disk), b"")

    def chunk(self, disk: names.Disk, name: bytes) -> bytes:
        """Return a sealed chunk, as the vault says; ``Seal.open`` finds out if it is.

        :raises errors.ChunkMissing: the vault has not got it
        """
        limit = checkpoint_sealing.MAX_SEALED_BYTES
        return self._ask("GET", _path(disk, "chunks", name), [], limit)

    def manifest(self, disk: names.Disk, name: bytes) -> bytes:
        """Return a sealed manifest.

        :raises errors.ChunkMissing: the vault has not got it
        :raises errors.ChunkInvalid: it gave another one
        """
        limit = vault_api.MAX_MANIFEST_BYTES
        sealed = self._ask("GET", _path(disk, "manifests", name), [], limit)
        if checkpoint_sealing.manifest_name(sealed) != name:
            raise errors.ChunkInvalid(f"manifest {name.hex()}", self.holder, "it is another one")
        return sealed

    def manifests(self, disk: names.Disk) -> list[bytes]:
        """Return the names of the disk's manifests."""
        return list(_names(self._ask("GET", _path(disk, "manifests"), []), self.holder))

    def disks(self, owner: ids.HostId) -> list[ids.ImageId]:
        """Return the disks of which something is kept for a host.

        :raises errors.RemoteProtocolError: the answer makes no sense
        """
        text = self._ask("GET", f"/v1/{owner}", []).decode("ascii", "replace")
        try:
            return [ids.parse_image_id(line) for line in text.splitlines()]
        except ValueError as e:
            raise errors.RemoteProtocolError(self.holder, str(e)) from e

    def _until_all_went(self, method: str, path: str, body: bytes) -> int:
        gone = 0
        for _ in range(_MOST_ROUNDS):
            went = _number(self._ask(method, path, [body]), self.holder)
            gone += went
            if went < vault.MAX_REMOVED:
                return gone
        raise errors.RemoteProtocolError(self.holder, f"{gone} things went, and there is no end")

    def _ask(
        self, method: str, path: str, body: Sequence[bytes], limit: int = SHORT_BYTES
    ) -> bytes:
        answer = self._answer(method, path, body, limit)
        status, data = answer
        if status in (vault_api.OK, vault_api.NO_CONTENT):
            return data
        why = data[:300].decode("utf-8", "replace")
        if status in (vault_api.NOT_HERE, vault_api.GONE):
            raise errors.ChunkMissing(path, self.holder, why)
        if status == vault_api.FULL:
            raise errors.VaultFull(self.holder, why)
        if status >= vault_api.FAULT:
            raise errors.SourceUnreachable(path, self.holder, why)
        raise errors.VaultRefused(self.holder, f"{method} {path}: {status} {why}")

    def _answer(self, method: str, path: str, body: Sequence[bytes], limit: int) -> _Answer:
        is_kept = self._channel is not None
        try:
            with contextlib.suppress(*([channel_.Broken] if is_kept else [])):
                return self._try(method, path, body, limit)
            return self._try(method, path, body, limit)
        except (channel_.Broken, OSError) as e:
            raise errors.SourceUnreachable(path, self.holder, str(e) or "no answer") from e

    def _try(self, method: str, path: str, body: Sequence[bytes], limit: int) -> _Answer:
        channel = self._channel or self._connect()
        self._channel = None  # unless all goes well
        with contextlib.ExitStack() as stack:
            stack.callback(channel.close)
            answer = _exchange(channel, method, path, body, limit)
            if channel.begin_again():
                stack.pop_all()
                self._channel = channel
        return answer

    def _connect(self) -> channel_.Channel:
        """Connect, and find out that it is the holder.

        :raises OSError: there is no connection
        :raises errors.NotAuthentic: it is another one
        """
        self._credentials.look()
        context = self._credentials.context(is_server=False)
        sock = socket.create_connection(self._address, CONNECT_S)
        with contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = stack.enter_context(context.wrap_socket(sock))
            self._check(tls)
            stack.pop_all()
        return channel_.Channel(tls, h11.CLIENT)

    def _check(self, tls: ssl.SSLSocket) -> None:
        found = self._credentials.check(tls.getpeercert(binary_form=True))
        if found.host != self.holder:
            why = f"that of {self.holder} is expected"
            raise errors.NotAuthentic(f"the certificate of {found.host}", why)
        if tls.selected_alpn_protocol() != channel_.PROTOCOL:
            raise errors.NotAuthentic(f"the vault of {self.holder}", "it speaks another protocol")


def _exchange(
    channel: channel_.Channel, method: str, path: str, body: Sequence[bytes], limit: int
) -> _Answer:
    length = sum(map(len, body))
    headers = [("host", "vault"), ("content-length", str(length))]
    with contextlib.suppress(channel_.Broken):  # who refuses answers before all has come
        channel.send(h11.Request(method=method, target=path, headers=headers))
        channel.send_body(body, length)
    response = channel.receive(ANSWER_S)
    if not isinstance(response, h11.Response):
        raise channel_.Broken("it ended without an answer")
    announced = channel_.content_length(response) or 0
    if announced > limit:
        raise channel_.Broken(f"an answer of {announced} bytes, {limit} at most are expected")
    return _Answer(response.status_code, b"".join(channel.body(announced)))


def _batches(chunks: Iterable[names.Sealed]) -> Iterator[list[bytes]]:
    """Yield bodies of requests."""
    batch: list[bytes] = []
    size = 0
    for name, data in chunks:
        head = names.HEAD.pack(name, len(data))
        if batch and (size + len(data) > BATCH_BYTES or len(batch) >= 2 * vault_api.MAX_BATCH):
            yield batch
            batch, size = [], 0
        batch += (head, data)
        size += len(head) + len(data)
    if batch:
        yield batch


def _path(disk: names.Disk, what: str = "", name: bytes = b"") -> str:
    return "/".join(filter(None, ["/v1", disk.owner, disk.disk, what, name.hex()]))


def _names(data: bytes, holder: ids.HostId) -> names.NameList:
    try:
        return names.NameList(data)
    except ValueError as e:
        raise errors.RemoteProtocolError(holder, str(e)) from e


def _number(data: bytes, holder: ids.HostId) -> int:
    if len(data) > 20 or not data.isdigit():
        raise errors.RemoteProtocolError(holder, f"{data[:40]!r} is no number")
    return int(data)
