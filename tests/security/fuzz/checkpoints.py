# SPDX-License-Identifier: Apache-2.0
"""Targets of checkpoints: a manifest, a vault's objects, and requests to a vault."""

import pathlib
import tempfile

from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.security.fuzz import formats
from tests.security.fuzz.target import Target

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
CHUNK = b"what a guest wrote " * 30
NAME = SEAL.chunk_name(CHUNK)
SUBJECT = checkpoint_manifest.Subject(
    *(formats.IMAGE, formats.IMAGE, "a project", formats.IMAGE, formats.OS_HASH),
    geometry.Geometry(10 * 65536, 65536),
    *(1_795_000_000_000, checkpoint_manifest.Consistency.CRASH, 1),
)
HOST = ids.HostId("h1")


def _manifest_seeds() -> list[bytes]:
    some = [checkpoint_manifest.Entry(2, NAME), checkpoint_manifest.Entry(9, ids.ZERO_CID)]
    return [checkpoint_manifest.build(SUBJECT, entries) for entries in ([], some)]


def _check_manifest(taken: checkpoint_manifest.Manifest, data: bytes) -> None:
    again = checkpoint_manifest.build(taken.subject, taken)
    assert checkpoint_manifest.Manifest.parse(again, "again").subject == taken.subject
    assert again[checkpoint_manifest.HEADER_BYTES :] == data[checkpoint_manifest.HEADER_BYTES :]


MANIFEST = Target(
    "checkpoint_manifest",
    lambda data: checkpoint_manifest.Manifest.parse(data, "fuzz"),
    (errors.CheckpointFormatError,),
    _manifest_seeds,
    _check_manifest,
)


def _check_sealed(taken: bytes, _data: bytes) -> None:
    assert taken == CHUNK


SEALED = Target(
    "sealed_chunk",
    lambda data: SEAL.open(NAME, data, len(CHUNK), "fuzz"),
    (errors.ChunkInvalid,),
    lambda: [SEAL.close(NAME, CHUNK)],
    _check_sealed,
)


def _request_seeds() -> list[bytes]:
    place, sealed = f"/v1/h1/{formats.IMAGE}", SEAL.close(NAME, CHUNK)
    frame = object_names.CHUNK_HEADER.pack(NAME, len(sealed)) + sealed
    said: list[tuple[str, bytes]] = [
        (f"PUT {place}/chunks", frame),
        (f"POST {place}/missing", NAME),
        (f"POST {place}/keep/00-ff", NAME),
        (f"PUT {place}/manifests/{checkpoint_encryption.manifest_name(sealed).hex()}", sealed),
        (f"GET {place}/chunks/{NAME.hex()}", b""),
        (f"GET {place}/manifests", b""),
        ("GET /v1/h1", b""),
        (f"DELETE {place}", b""),
    ]
    return [f"{line}\n".encode() + data for line, data in said]


def _ask(data: bytes) -> tuple[int, bytes]:
    line, _, said = data.partition(b"\n")
    method, _, target = line.decode("latin-1").partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "vault").mkdir()
        vault = vault_store.VaultStore(
            pathlib.Path(folder) / "vault", quota.VaultLimits(65536, 65536, 4), HOST
        )
        try:
            body = vault_api.RequestBody(len(said), iter([said]))
            with vault_api.VaultApi(vault).answer_request(HOST, method, target, body) as answer:
                taken = answer.status, b"".join(answer.pieces)
        finally:
            vault.close()
        assert [path.name for path in pathlib.Path(folder).iterdir()] == ["vault"]
    return taken


def _check_answer(taken: tuple[int, bytes], _data: bytes) -> None:
    assert taken[0] in (200, 204, 400, 403, 404, 411, 413, 507)


REQUEST = Target(
    "vault_request", _ask, (), _request_seeds, _check_answer, max_bytes=4096, time_limit_s=20.0
)

ALL = (MANIFEST, SEALED, REQUEST)
