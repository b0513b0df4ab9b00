# SPDX-License-Identifier: Apache-2.0
"""Real vaults on the loopback: objects survive kills, and only their owner can change them."""

import contextlib
import pathlib
import random
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault import authorized_hosts
from acstor_checkpoint.vault import connection_limit
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.identity import certificates
from acstor_common.model import ids
from tests.lab import runs
from tests.lab import vaults

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
OTHER_DISK = ids.parse_image_id("00000000-0000-4000-8000-000000000001")
PLAIN = [random.Random(n).randbytes(65536) for n in range(40)]
NAMES = [SEAL.chunk_name(plain) for plain in PLAIN]
CHUNKS = [
    object_names.SealedChunk(name, SEAL.close(name, plain))
    for name, plain in zip(NAMES, PLAIN, strict=True)
]
MANIFEST = SEAL.close_manifest(bytearray(b"some manifest"))

Start = Callable[..., vaults.Vault]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Return a function that starts the vault of a host; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(name: str, **options: object) -> vaults.Vault:
            vault = vaults.Vault(tmp_path / name, name, **options)
            stack.callback(vault.close)
            vault.start()
            return vault

        yield begin


def of(vault: vaults.Vault, disk: ids.ImageId = DISK) -> object_names.VaultDisk:
    return object_names.VaultDisk(vault.name, disk)


def test_chunks_put_by_one_host_are_readable_by_others(start: Start) -> None:
    h1, h2, h3 = (start(name) for name in ("h1", "h2", "h3"))
    disk = of(h1)
    for holder in (h2, h3):
        with h1.client(holder) as client:
            assert client.missing_chunks(disk, NAMES) == set(NAMES)
            client.put(disk, CHUNKS[:30])
            assert client.missing_chunks(disk, NAMES) == set(NAMES[30:])
            name = client.put_manifest(disk, MANIFEST)
            assert client.list_manifests(disk) == [name]
            assert client.list_disks(h1.name) == [DISK]
    with h3.client(h2) as client:  # another host reads
        for plain, sealed in zip(PLAIN[:30], CHUNKS[:30], strict=True):
            found = client.fetch_chunk(disk, sealed.name)
            assert SEAL.open(ids.Cid(sealed.name), found, len(plain), h2.name) == plain
        assert SEAL.open_manifest(client.fetch_manifest(disk, name), 1000) == b"some manifest"
        with pytest.raises(errors.ChunkMissing):
            client.fetch_chunk(disk, NAMES[35])
    with h1.client(h2) as client:
        assert (
            client.retain_only(
                disk,
                object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [*NAMES[10:20], name]),
            )
            == 20
        )
        assert client.missing_chunks(disk, NAMES) == set(NAMES) - set(NAMES[10:20])
        assert client.delete_disk(disk) == 11
        assert client.list_disks(h1.name) == client.list_manifests(disk) == []
    assert not list(h2.folder.glob("h1/*"))
    assert h2.kill(15) == 0


def test_only_the_owner_changes_its_objects(start: Start) -> None:
    h1, h2, h3 = (start(name) for name in ("h1", "h2", "h3"))
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS)
    with h3.client(h2) as client:
        tries: list[Callable[[], object]] = [
            lambda: client.put(of(h1), CHUNKS),
            lambda: client.put_manifest(of(h1), MANIFEST),
            lambda: client.retain_only(
                of(h1), object_names.RetainedNames(object_names.ALL_FIRST_BYTES, NAMES[:1])
            ),
            lambda: client.delete_disk(of(h1)),
            lambda: client.missing_chunks(of(h1), NAMES),
        ]
        for one in tries:
            with pytest.raises(errors.VaultRefused, match="cannot be changed by h3"):
                one()
    with h2.client(h2) as client, pytest.raises(errors.VaultRefused, match="h1"):
        client.delete_disk(of(h1))  # nor does the vault's own host
    with h1.client(h2) as client:
        assert client.missing_chunks(of(h1), NAMES) == set()


def test_requests_of_hosts_removed_from_the_ring_are_refused(start: Start) -> None:
    h1, h2, h3 = (start(name) for name in ("h1", "h2", "h3"))
    with h1.client(h2) as client, h3.client(h2) as other:
        client.put(of(h1), CHUNKS)
        h2.write_table("h1", "h2")
        time.sleep(authorized_hosts.CHECK_INTERVAL_S + 1.0)
        with pytest.raises(errors.SourceUnreachable):
            other.fetch_chunk(of(h1), NAMES[0])
        assert client.missing_chunks(of(h1), NAMES) == set()


def test_clients_of_another_authority_are_refused(start: Start, tmp_path: pathlib.Path) -> None:
    h2 = start("h2")
    other = certificates.Authority.create("another", time.time(), 86400)
    stranger = vaults.credentials_of(tmp_path / "stranger", "h1", other)
    address = ("127.0.0.1", h2.port)
    client = vault_client.VaultClient(h2.name, address, stranger)
    with client, pytest.raises((errors.SourceUnreachable, errors.NotAuthenticated)):
        client.list_disks(h2.name)
    peer = vaults.credentials_of(tmp_path / "peer", "h1", protocol="secure")
    with vault_client.VaultClient(h2.name, address, peer) as client:  # an agent's connection
        with pytest.raises((errors.SourceUnreachable, errors.NotAuthenticated)):
            client.list_disks(h2.name)


def test_client_refuses_a_vault_of_another_host(start: Start) -> None:
    h1, h2 = start("h1"), start("h2")
    client = vault_client.VaultClient(ids.HostId("h3"), ("127.0.0.1", h2.port), h1.credentials)
    with client, pytest.raises(errors.NotAuthenticated, match="h3"):
        client.put(of(h1), CHUNKS)


def test_acknowledged_chunks_survive_sigkill(start: Start) -> None:
    h1, h2 = start("h1"), start("h2")
    reported: list[bytes] = []
    for delay_s in (0.05, 0.1, 0.15, 0.2, 0.3):
        thread = threading.Thread(target=_put_one_by_one, args=(h1, h2, reported))
        thread.start()
        time.sleep(delay_s)
        h2.kill()
        thread.join(30)
        h2.start()
        with h1.client(h2) as client:
            assert client.missing_chunks(of(h1), reported) == set()
            for name in set(NAMES) - client.missing_chunks(of(h1), NAMES):  # no partial chunks
                SEAL.open(name, client.fetch_chunk(of(h1), name), 65536, "h2")
            client.delete_disk(of(h1))
        assert not [path for path in h2.folder.rglob(".incoming-*")]
        reported.clear()


def _put_one_by_one(h1: vaults.Vault, h2: vaults.Vault, reported: list[bytes]) -> None:
    with h1.client(h2) as client, contextlib.suppress(errors.SourceUnreachable):
        for chunk in CHUNKS:
            client.put(of(h1), [chunk])
            reported.append(chunk.name)


def test_sigkill_during_a_batch_leaves_no_temporary_files(start: Start) -> None:
    h1, h2 = start("h1"), start("h2")

    def slowly() -> Iterator[object_names.SealedChunk]:
        for round_ in range(200):
            plain = random.Random(1000 + round_).randbytes(65536)
            name = SEAL.chunk_name(plain)
            yield object_names.SealedChunk(name, SEAL.close(name, plain))

    def put() -> None:
        with h1.client(h2) as client, contextlib.suppress(errors.SourceUnreachable):
            client.put(of(h1), slowly())

    thread = threading.Thread(target=put)
    thread.start()
    runs.wait_for(lambda: any(h2.folder.rglob(".incoming-*")), 20, "a batch", h2.log)
    h2.kill()
    thread.join(30)
    h2.start()
    left = list(h2.folder.rglob(".incoming-*"))
    assert not left
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS)
        assert client.missing_chunks(of(h1), NAMES) == set()


def test_full_vault_refuses_puts_and_keeps_its_objects(start: Start) -> None:
    h1, h3 = start("h1"), start("h3")
    size_bytes = 69632 + 4096  # a chunk and its folder
    own_bytes = 2 * 4096  # folders of a host and its disk
    h2 = start(
        "h2",
        vault_limit_bytes=30 * size_bytes + 2 * own_bytes,
        vault_quota_per_host_bytes=20 * size_bytes + own_bytes,
    )
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS[:15])
        with pytest.raises(errors.VaultFull, match="of one host"):
            client.put(of(h1), CHUNKS[15:])
        assert client.missing_chunks(of(h1), NAMES) == set(NAMES[15:])  # no chunk of the batch
        client.put(of(h1), CHUNKS[15:20])
    with h3.client(h2) as client:
        client.put(of(h3), CHUNKS[:10])
        with pytest.raises(errors.VaultFull, match="bytes is reached"):
            client.put(of(h3), CHUNKS[10:11])
    with h1.client(h2) as client:
        assert (
            client.retain_only(
                of(h1), object_names.RetainedNames(object_names.ALL_FIRST_BYTES, NAMES[:5])
            )
            == 15
        )
        client.put(of(h1), CHUNKS[5:10])
    h2.kill()
    h2.start()  # counts its objects anew
    with h1.client(h2) as client, pytest.raises(errors.VaultFull):
        client.put(of(h1), CHUNKS[10:])


def test_corrupt_chunk_is_refused_and_can_be_put_again(start: Start) -> None:
    h1, h2 = start("h1"), start("h2")
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS)
        name = client.put_manifest(of(h1), MANIFEST)
        for path in (*h2.folder.glob(f"h1/*/*/{NAMES[7].hex()}"), *h2.folder.rglob(name.hex())):
            raw = bytearray(path.read_bytes())
            raw[20] ^= 1
            path.write_bytes(raw)
        with pytest.raises(errors.ChunkMissing, match="corrupt"):
            client.fetch_chunk(of(h1), NAMES[7])
        with pytest.raises(errors.ChunkMissing, match="corrupt"):
            client.fetch_manifest(of(h1), name)
        assert client.missing_chunks(of(h1), NAMES) == {NAMES[7]}
        assert client.list_manifests(of(h1)) == []
        client.put(of(h1), CHUNKS[7:8])
        assert client.fetch_chunk(of(h1), NAMES[7]) == CHUNKS[7].data


SENSELESS = [
    b"GET / HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1 HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1/../../etc HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1/%2e%2e HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1/h1/" + DISK.encode() + b" HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1/h1/" + DISK.encode() + b"/chunks/../../x HTTP/1.1\r\nhost: v\r\n\r\n",
    b"GET /v1/h1/../manifests HTTP/1.1\r\nhost: v\r\n\r\n",
    b"HEAD /v1/h1 HTTP/1.1\r\nhost: v\r\n\r\n",
    b"PUT /v1/h1/" + DISK.encode() + b"/chunks HTTP/1.1\r\nhost: v\r\n\r\n",
    b"PUT /v1/h1/" + DISK.encode() + b"/chunks HTTP/1.1\r\nhost: v\r\n"
    b"content-length: 99999999999\r\n\r\n",
    b"PUT /v1/h1/" + DISK.encode() + b"/chunks HTTP/1.1\r\nhost: v\r\n"
    b"content-length: 40\r\n\r\n" + bytes(32) + b"\xff\xff\xff\xff" + bytes(4),
    b"PUT /v1/h1/" + DISK.encode() + b"/chunks HTTP/1.1\r\nhost: v\r\n"
    b"transfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    b"POST /v1/h1/"
    + DISK.encode()
    + b"/keep/00-ff HTTP/1.1\r\nhost: v\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/h1/" + DISK.encode() + b"/missing HTTP/1.1\r\nhost: v\r\n"
    b"content-length: 33\r\n\r\n" + bytes(33),
    b"x" * 40_000,
    bytes(range(256)),
]


def test_invalid_requests_are_refused(start: Start) -> None:
    h1, h2 = start("h1"), start("h2")
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS[:3])
        before = sorted(h2.folder.rglob("*"))
        for said in SENSELESS:
            answer = _answer_to(said, h1, h2)
            assert not answer or answer.startswith(b"HTTP/1.1 4"), (said[:80], answer)
            assert sorted(h2.folder.rglob("*")) == before
        assert client.missing_chunks(of(h1), NAMES[:3]) == set()
    assert "Traceback" not in h2.log()


def _answer_to(said: bytes, h1: vaults.Vault, h2: vaults.Vault) -> bytes:
    with h1.dial(h2) as tls, contextlib.suppress(OSError):
        tls.settimeout(10)
        with contextlib.suppress(OSError):
            tls.sendall(said)
        return tls.recv(1000)
    return b""


def test_connections_of_a_host_are_limited(start: Start) -> None:
    h1, h2, h3 = (start(name) for name in ("h1", "h2", "h3"))
    begun = f"PUT /v1/h1/{DISK}/chunks HTTP/1.1\r\nhost: v\r\ncontent-length: 99\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(connection_limit.CONNECTIONS_OF_HOST):
            stack.enter_context(h1.dial(h2)).sendall(begun.encode())
        runs.pause(time.monotonic() - 0.5)
        with h1.client(h2) as client, pytest.raises(errors.SourceUnreachable):
            client.list_disks(h1.name)
        with h3.client(h2) as client:
            client.put(of(h3), CHUNKS)


def test_client_times_out_on_a_silent_vault(start: Start) -> None:
    """The client's side: a silent vault counts as unreachable."""
    h1 = start("h1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = ("127.0.0.1", silent.getsockname()[1])
        limits = vault_client.ClientLimits(connect_s=1.0)
        client = vault_client.VaultClient(ids.HostId("h2"), address, h1.credentials, limits)
        began = time.monotonic()
        with client, pytest.raises(errors.SourceUnreachable):
            client.list_disks(h1.name)
        assert time.monotonic() - began < 5


def test_renewed_certificate_is_loaded_by_a_running_vault(
    start: Start, tmp_path: pathlib.Path
) -> None:
    h1, h2 = start("h1"), start("h2")
    with h1.client(h2) as client:
        client.put(of(h1), CHUNKS)
    other = certificates.Authority.create("the next one", time.time(), 86400)
    from acstor_common.identity import identity_files
    from tests.lab import identities

    identity_files.write(tmp_path / "h2" / "identity", identities.issue("h2", other))
    next_h1 = vaults.credentials_of(tmp_path / "next", "h1", other)
    time.sleep(identity_files.CHECK_INTERVAL_S + 0.5)
    with vault_client.VaultClient(h2.name, ("127.0.0.1", h2.port), next_h1) as client:
        assert client.missing_chunks(of(h1), NAMES) == set()
