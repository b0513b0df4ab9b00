# SPDX-License-Identifier: Apache-2.0
"""HTTP interface of a vault, independent of connections.

============================================ ==================================================
``PUT /v1/<owner>/<disk>/chunks``            stores chunks, each after its name and length
``POST /v1/<owner>/<disk>/missing``          returns which of these chunks are missing
``PUT /v1/<owner>/<disk>/manifests/<name>``  stores a manifest
``POST /v1/<owner>/<disk>/keep/<range>``     deletes a disk's objects except for these names,
                                             of those whose first byte is in the range
                                             (``00-ff``: all)
``DELETE /v1/<owner>/<disk>``                deletes the disk
``GET /v1/<owner>/<disk>/chunks/<name>``     a sealed chunk
``GET /v1/<owner>/<disk>/manifests/<name>``  a sealed manifest
``GET /v1/<owner>/<disk>/manifests``         names of the disk's manifests
``GET /v1/<owner>``                          the host's disks, one per line
============================================ ==================================================

A host may change only its own data.  Every host of the cloud may read, because an instance may be
recovered on any of them; the data is sealed.
"""

import contextlib
import errno
import http
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_checkpoint.vault import lookup_rate
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

MAX_BATCH_BYTES: Final = 32 << 20
MAX_BATCH: Final = 4096  # chunks that are written and synced together
MAX_MANIFEST_BYTES: Final = checkpoint_manifest.MAX_BYTES + checkpoint_encryption.SEAL_BYTES

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Response(NamedTuple):
    """Status and body of a response."""

    status: http.HTTPStatus
    length: int = 0
    pieces: Iterable[bytes] = ()


class RequestBody:
    """The body of a request; ``length`` is None if it was not announced."""

    def __init__(self, length: int | None, pieces: Iterator[bytes], connection: int = 0) -> None:
        self.length, self.connection = length, connection
        self._pieces = pieces
        self._rest = bytearray()

    def iter_all(self, limit: int) -> Iterator[bytes]:
        """Yield all of it; see :meth:`bounded_length`."""
        self.bounded_length(limit)
        return self._pieces

    def bounded_length(self, limit: int) -> int:
        """Return its length; _Refused if unknown or above the limit."""
        if self.length is None:
            raise _Refused(
                http.HTTPStatus.LENGTH_REQUIRED, "the length of the body must be announced"
            )
        if self.length > limit:
            raise _Refused(
                http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"{self.length} bytes, at most {limit} are accepted",
            )
        return self.length

    def iter_rest(self) -> Iterator[bytes]:
        """Yield the unread rest."""
        return self._pieces

    def read_exactly(self, count: int) -> bytes:
        """Return the next bytes; ValueError if there are fewer."""
        while len(self._rest) < count:
            piece = next(self._pieces, None)
            if piece is None:
                raise ValueError("the body is truncated")
            self._rest += piece
        found = bytes(memoryview(self._rest)[:count])
        del self._rest[:count]
        return found


class _Refused(Exception):
    def __init__(self, status: http.HTTPStatus, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


class _Place(NamedTuple):
    owner: ids.HostId
    disk: str = ""
    what: str = ""
    name: str = ""

    @property
    def vault_disk(self) -> object_names.VaultDisk:
        return object_names.VaultDisk(self.owner, ids.parse_image_id(self.disk))


class VaultApi:
    """Handles requests to a vault; thread-safe."""

    def __init__(self, vault: vault_store.VaultStore) -> None:
        self._vault = vault
        self._table: dict[tuple[str, str, bool], _Handler] = {
            ("GET", "", False): self._disks,
            ("GET", "manifests", False): self._manifests,
            ("GET", "chunks", True): self._get,
            ("GET", "manifests", True): self._get,
            ("PUT", "chunks", False): self._put_chunks,
            ("PUT", "manifests", True): self._put_manifest,
            ("POST", "missing", False): self._missing,
            ("POST", "keep", True): self._keep,
            ("DELETE", "", False): self._drop,
        }

    def piece_rate(self, host: ids.HostId) -> lookup_rate.PieceRate:
        """Return the limiter of small pieces for a connection of a host."""
        return lookup_rate.PieceRate(self._vault.lookup_rate, host)

    @contextlib.contextmanager
    def answer_request(
        self, host: ids.HostId, method: str, target: str, body: RequestBody
    ) -> Iterator[Response]:
        """Yield the response, to be sent before the block ends."""
        with contextlib.ExitStack() as stack:
            try:
                answer = self._answer(host, method, target, body, stack)
            except _Refused as e:
                answer = _text_response(e.status, e.why)
            except ValueError as e:
                answer = _text_response(http.HTTPStatus.BAD_REQUEST, str(e))
            except errors.VaultFull as e:
                answer = _text_response(http.HTTPStatus.INSUFFICIENT_STORAGE, e.why)
            except errors.VaultRefused as e:
                answer = _text_response(http.HTTPStatus.CONFLICT, e.why)
            except errors.ChunkInvalid as e:
                answer = _text_response(http.HTTPStatus.GONE, e.why)
            except errors.ChunkMissing:
                answer = _text_response(http.HTTPStatus.NOT_FOUND, "it is not stored here")
            except OSError as e:
                LOG.error("%s %s of %s: %s", method, target, host, e)
                is_full = e.errno in _FULL
                self._vault.quota.refused[quota.Bound.DISK] += is_full
                answer = _text_response(
                    http.HTTPStatus.INSUFFICIENT_STORAGE
                    if is_full
                    else http.HTTPStatus.INTERNAL_SERVER_ERROR,
                    e.strerror or "the folder cannot be used",
                )
            yield answer

    def _answer(
        self,
        host: ids.HostId,
        method: str,
        target: str,
        body: RequestBody,
        stack: contextlib.ExitStack,
    ) -> Response:
        place = _parse(target)
        handler = self._table.get((method, place.what, bool(place.name)))
        if handler is None:
            raise _Refused(http.HTTPStatus.NOT_FOUND, f"{method} is not supported for this path")
        if method != "GET" and host != place.owner:
            raise _Refused(
                http.HTTPStatus.FORBIDDEN,
                f"data of {place.owner} cannot be changed by {host}",
            )
        if method != "GET":
            self._vault.begin_connection(place.vault_disk, body.connection)
            return handler(place, body, stack)
        self._vault.lookup_rate.spend_lookups(host, lookup_rate.OF_REQUEST)
        answer = handler(place, body, stack)
        per_name = lookup_rate.BYTES if place.name else object_names.NAME_BYTES  # a list of names
        self._vault.lookup_rate.spend_lookups(host, answer.length // per_name)
        return answer

    def _disks(self, place: _Place, _body: RequestBody, _stack: contextlib.ExitStack) -> Response:
        if place.disk:
            raise _Refused(http.HTTPStatus.NOT_FOUND, "a disk can only be read by its manifests")
        return _text_response(http.HTTPStatus.OK, "\n".join(self._vault.list_disks(place.owner)))

    def _manifests(
        self, place: _Place, _body: RequestBody, _stack: contextlib.ExitStack
    ) -> Response:
        return _data_response(b"".join(self._vault.list_manifests(place.vault_disk)))

    def _get(self, place: _Place, _body: RequestBody, stack: contextlib.ExitStack) -> Response:
        name = object_names.parse_name(place.name)
        kept = stack.enter_context(
            self._vault.open_object(place.vault_disk, object_names.ObjectKind(place.what), name)
        )
        return Response(http.HTTPStatus.OK, kept.length, kept.iter_bytes())

    def _put_chunks(
        self, place: _Place, body: RequestBody, _stack: contextlib.ExitStack
    ) -> Response:
        left = body.bounded_length(MAX_BATCH_BYTES)
        with self._vault.open_batch(place.vault_disk, body.connection, left) as batch:
            for _ in range(MAX_BATCH):
                if not left:
                    break
                name, length = object_names.CHUNK_HEADER.unpack(
                    body.read_exactly(object_names.CHUNK_HEADER.size)
                )
                object_names.check_length(length)
                batch.add(object_names.ObjectKind.CHUNK, name, length, [body.read_exactly(length)])
                left -= object_names.CHUNK_HEADER.size + length
            if left:
                raise ValueError(f"more than {MAX_BATCH} chunks, or incomplete ones")
        return Response(http.HTTPStatus.NO_CONTENT)

    def _put_manifest(
        self, place: _Place, body: RequestBody, _stack: contextlib.ExitStack
    ) -> Response:
        length, name = body.bounded_length(MAX_MANIFEST_BYTES), object_names.parse_name(place.name)
        with self._vault.open_batch(place.vault_disk, body.connection, length) as batch:
            batch.add(object_names.ObjectKind.MANIFEST, name, length, body.iter_all(length))
        return Response(http.HTTPStatus.NO_CONTENT)

    def _missing(self, place: _Place, body: RequestBody, _stack: contextlib.ExitStack) -> Response:
        return _data_response(b"".join(self._vault.missing_chunks(place.vault_disk, _names(body))))

    def _keep(self, place: _Place, body: RequestBody, _stack: contextlib.ExitStack) -> Response:
        within, retained = object_names.parse_range(place.name), _names(body)
        if not retained and within == object_names.ALL_FIRST_BYTES:
            raise ValueError("nothing would be kept: use DELETE")
        return _text_response(
            http.HTTPStatus.OK,
            str(self._vault.retain_only(place.vault_disk, retained, body.connection, within)),
        )

    def _drop(self, place: _Place, body: RequestBody, _stack: contextlib.ExitStack) -> Response:
        return _text_response(
            http.HTTPStatus.OK, str(self._vault.delete_disk(place.vault_disk, body.connection))
        )


_Handler = Callable[[_Place, RequestBody, contextlib.ExitStack], Response]


def _names(body: RequestBody) -> object_names.NameList:
    return object_names.NameList(
        body.read_exactly(body.bounded_length(object_names.MAX_NAMES * object_names.NAME_BYTES))
    )


def _parse(target: str) -> _Place:
    parts = target.split("/")
    if not 3 <= len(parts) <= 6 or parts[:2] != ["", "v1"] or not all(parts[2:]):
        raise _Refused(http.HTTPStatus.NOT_FOUND, "there is no such path")
    return _Place(ids.parse_host_id(parts[2]), *parts[3:])


def _data_response(data: bytes) -> Response:
    return Response(http.HTTPStatus.OK, len(data), [data])


def _text_response(status: http.HTTPStatus, text: str) -> Response:
    data = text.encode()
    return Response(status, len(data), [data])
