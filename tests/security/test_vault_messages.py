# SPDX-License-Identifier: Apache-2.0
"""Each message of the vaults' protocol, damaged: documented errors, and no resources left."""

import contextlib
import os
import pathlib
import random
import ssl
import time

import pytest

from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault import connection_limit
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.model import ids
from tests.fakes import hostile_vault
from tests.fakes import packed_names
from tests.lab import runs
from tests.lab import vaults
from tests.security.fuzz import mutations
from tests.security.test_vault_holders import FAULTS
from tests.security.test_vault_holders import ok

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
PLAIN = bytes(range(256)) * 4
NAME = SEAL.chunk_name(PLAIN)
CHUNK = object_names.SealedChunk(NAME, SEAL.close(NAME, PLAIN))
MANIFEST = SEAL.close_manifest(bytearray(b"a manifest"))
MANIFEST_NAME = checkpoint_encryption.manifest_name(MANIFEST)
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
H1, H3 = (
    object_names.VaultDisk(ids.HostId("h1"), DISK),
    object_names.VaultDisk(ids.HostId("h3"), DISK),
)
PLACE = f"/v1/h1/{DISK}"
TIMES = 25
ANSWER_S = 0.15
SEEDS = range(TIMES)
LIMITS = vault_client.ClientLimits(request_s=2.0)


def request(line: str, body: bytes = b"") -> bytes:
    return f"{line} HTTP/1.1\r\nhost: v\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = {
    "put chunks": request(
        f"PUT {PLACE}/chunks", object_names.CHUNK_HEADER.pack(NAME, len(CHUNK.data)) + CHUNK.data
    ),
    "missing": request(f"POST {PLACE}/missing", packed_names.pack_names([NAME, MANIFEST_NAME])),
    "put a manifest": request(f"PUT {PLACE}/manifests/{MANIFEST_NAME.hex()}", MANIFEST),
    "keep": request(f"POST {PLACE}/keep/00-ff", packed_names.pack_names([NAME, MANIFEST_NAME])),
    "drop": request(f"DELETE {PLACE}"),
    "get a chunk": request(f"GET {PLACE}/chunks/{NAME.hex()}"),
    "get a manifest": request(f"GET {PLACE}/manifests/{MANIFEST_NAME.hex()}"),
    "manifests": request(f"GET {PLACE}/manifests"),
    "disks": request("GET /v1/h1"),
}


def send(tls: ssl.SSLSocket, data: bytes) -> None:
    tls.settimeout(ANSWER_S)
    with contextlib.suppress(OSError):
        tls.sendall(data)
        while tls.recv(1 << 16):
            pass


def held(vault: vaults.Vault) -> tuple[int, int]:
    """Return the numbers of threads and descriptors of a vault's process."""
    assert vault.process is not None
    folder = pathlib.Path("/proc", str(vault.process.pid))
    return len(os.listdir(folder / "task")), len(os.listdir(folder / "fd"))


def test_damaged_requests_leave_no_threads_and_descriptors(tmp_path: pathlib.Path) -> None:
    h1, h2, h3 = (vaults.Vault(tmp_path / name, name) for name in ("h1", "h2", "h3"))
    with contextlib.ExitStack() as stack:
        stack.callback(h2.close)
        h2.start()
        with h3.client(h2) as client:
            client.put(H3, [CHUNK])
        runs.pause(time.monotonic())
        before = held(h2)
        for what, sound in REQUESTS.items():
            others = [data for other, data in REQUESTS.items() if other != what]
            for seed in SEEDS:
                rng = random.Random(f"{what} {seed}")
                with h1.dial(h2) as tls:
                    send(tls, bytes(mutations.mutate(sound, others, rng)))
        runs.wait_for(lambda: held(h2) == before, 20, f"what was held: {before}", h2.log)
        assert "Traceback" not in h2.log() and "failed" not in h2.log()
        for _ in range(connection_limit.CONNECTIONS_OF_HOST):
            tls = stack.enter_context(h1.dial(h2))
            tls.sendall(REQUESTS["put chunks"])
            assert tls.recv(1000).startswith(b"HTTP/1.1 204")
        with h3.client(h2) as client:
            assert client.fetch_chunk(H3, NAME) == CHUNK.data


ANSWERS = {
    "put": (lambda c: c.put(H1, [CHUNK]), b"HTTP/1.1 204 No Content\r\n\r\n"),
    "missing_chunks": (lambda c: c.missing_chunks(H1, [NAME, MANIFEST_NAME]), ok(NAME)),
    "put_manifest": (lambda c: c.put_manifest(H1, MANIFEST), b"HTTP/1.1 204 No Content\r\n\r\n"),
    "retain_only": (
        lambda c: c.retain_only(
            H1, object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [NAME])
        ),
        ok(b"17"),
    ),
    "drop": (lambda c: c.delete_disk(H1), ok(b"17")),
    "fetch_chunk": (lambda c: c.fetch_chunk(H1, NAME), ok(CHUNK.data)),
    "fetch_manifest": (lambda c: c.fetch_manifest(H1, MANIFEST_NAME), ok(MANIFEST)),
    "manifests": (lambda c: c.list_manifests(H1), ok(MANIFEST_NAME)),
    "list_disks": (lambda c: c.list_disks(H1.owner), ok(f"{DISK}\n{DISK}".encode())),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_damaged_responses_raise_documented_errors(tmp_path: pathlib.Path, what: str) -> None:
    ask, sound = ANSWERS[what]
    others = [data for other, (_, data) in ANSWERS.items() if other != what]
    own, holder = (vaults.credentials_of(tmp_path / name, name) for name in ("h1", "h2"))
    damaged = iter(
        [bytes(mutations.mutate(sound, others, random.Random(seed))) for seed in SEEDS] * 2
    )

    def answer(tls: ssl.SSLSocket, _head: bytes) -> None:
        tls.sendall(next(damaged))
        raise ConnectionAbortedError

    refused = 0
    with hostile_vault.HostileVault(holder, answer) as hostile:
        for _ in SEEDS:
            client = vault_client.VaultClient(ids.HostId("h2"), hostile.address, own, LIMITS)
            with client:
                try:
                    ask(client)
                except (*FAULTS, errors.ChunkInvalid):
                    refused += 1
    assert refused
