# SPDX-License-Identifier: Apache-2.0
"""A compromised vault costs its client bounded time and memory, whatever it responds."""

import contextlib
import pathlib
import resource
import socket
import ssl
import sys
import time
import tracemalloc
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault_protocol import object_names
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import ids
from tests.fakes import hostile_vault
from tests.fakes import subnets
from tests.lab import vaults

DISK = object_names.VaultDisk(
    ids.HostId("h1"), ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
)
REQUEST_S = 2.0
LATE_S = 1.0
MEMORY_BYTES = 64 << 20
CHUNK = object_names.SealedChunk(bytes([7]) * 32, bytes(60000))
OTHER = bytes([9]) * 32
FAULTS = (
    errors.SourceUnreachable,
    errors.ChunkMissing,
    errors.NotAuthenticated,
    errors.VaultRefused,
    errors.VaultFull,
    errors.RemoteProtocolError,
)

Work = Callable[[vault_client.VaultClient], object]


def ok(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body


def silent(tls: ssl.SSLSocket, _head: bytes) -> None:
    tls.recv(1)


def drip(tls: ssl.SSLSocket, data: bytes) -> None:
    for at in range(len(data)):
        tls.sendall(data[at : at + 1])
        time.sleep(0.1)


def slow(answer: bytes) -> hostile_vault.Answer:
    """Return a response that takes most of a request's time."""

    def answered(tls: ssl.SSLSocket, _head: bytes) -> None:
        time.sleep(0.7 * REQUEST_S)
        tls.sendall(answer)

    return answered


def endless(tls: ssl.SSLSocket, _head: bytes) -> None:
    tls.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        tls.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")


def ever_longer_head(tls: ssl.SSLSocket, _head: bytes) -> None:
    tls.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        tls.sendall(b"x: y\r\n" * 100)


def hints(tls: ssl.SSLSocket, _head: bytes) -> None:
    while True:
        tls.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def put(client: vault_client.VaultClient) -> object:
    return [client.put(DISK, [CHUNK]) for _ in range(10)]


def ask(client: vault_client.VaultClient) -> object:
    return [client.missing_chunks(DISK, [CHUNK.name]) for _ in range(10)]


def drop(client: vault_client.VaultClient) -> object:
    return client.delete_disk(DISK)


def drop_all(client: vault_client.VaultClient) -> object:
    """Sweep all disks that a vault names."""
    return [
        client.delete_disk(object_names.VaultDisk(DISK.owner, disk))
        for disk in client.list_disks(DISK.owner)
    ]


def many_disks(tls: ssl.SSLSocket, head: bytes) -> None:
    if head.startswith(b"GET"):
        listed = [f"0b9d4a5e-3c1f-4f0e-8d57-{n:012x}" for n in range(quota.MAX_DISKS)]
        tls.sendall(ok("\n".join(listed).encode()))
    else:
        time.sleep(0.2)
        tls.sendall(ok(b"1"))


ATTACKS: dict[str, tuple[hostile_vault.Answer, Work]] = {
    "silent": (silent, put),
    "drips a head": (lambda tls, _head: drip(tls, ok(b"x" * 1000)), ask),
    "drips a body": (
        lambda tls, _head: [tls.sendall(ok(bytes(300))[:-300]), drip(tls, bytes(300))],
        ask,
    ),
    "a body without end": (endless, ask),
    "a head without end": (ever_longer_head, ask),
    "hints without end": (hints, ask),
    "something always goes": (lambda tls, _head: tls.sendall(ok(b"5000")), drop),
    "a number of a million digits": (lambda tls, _head: tls.sendall(ok(b"9" * 1_000_000)), drop),
    "unrequested names": (lambda tls, _head: tls.sendall(ok(OTHER)), ask),
    "disks without end": (lambda tls, _head: tls.sendall(ok(b"\n" * 2_000_000)), drop_all),
    "a server of another kind": (lambda tls, _head: tls.sendall(b"220 hello\r\n"), put),
}


SLOW: dict[str, tuple[hostile_vault.Answer, Work]] = {
    "slow each time": (slow(b"HTTP/1.1 204 No Content\r\n\r\n"), put),
    "slow lists": (slow(ok(b"")), ask),
    "disks that go slowly": (many_disks, drop_all),
}


@contextlib.contextmanager
def answering(
    folder: pathlib.Path, answer: hostile_vault.Answer, **more: int
) -> Iterator[tuple[hostile_vault.HostileVault, vault_client.VaultClient]]:
    """Run a vault of h2 with this response, and return a client of it for h1."""
    own, holder = (vaults.credentials_of(folder / name, name) for name in ("h1", "h2"))
    with hostile_vault.HostileVault(holder, answer) as hostile:
        limits = vault_client.ClientLimits(request_s=REQUEST_S, **more)
        client = vault_client.VaultClient(ids.HostId("h2"), hostile.address, own, limits)
        yield hostile, client


@pytest.mark.timed
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_vault_takes_bounded_time_and_memory(tmp_path: pathlib.Path, attack: str) -> None:
    answer, work = ATTACKS[attack]
    with answering(tmp_path, answer) as (_, client):
        began_s = time.monotonic()
        tracemalloc.start()
        try:
            with client, pytest.raises(FAULTS):
                work(client)
            assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
        finally:
            tracemalloc.stop()
        assert time.monotonic() - began_s < REQUEST_S + LATE_S


@pytest.mark.parametrize("attack", SLOW)
def test_vault_that_is_slow_in_each_request_times_out(tmp_path: pathlib.Path, attack: str) -> None:
    """Each request ends in time; their sum does not."""
    answer, work = SLOW[attack]
    with answering(tmp_path, answer) as (hostile, client):
        began_s = time.monotonic()
        with client, pytest.raises(holder_group.HolderSlow):
            holder_group.call_holders([client], work, 2 * REQUEST_S)
        assert time.monotonic() - began_s < 2 * REQUEST_S + LATE_S
        assert len(hostile.requests) > 1


def test_requests_to_a_distant_vault_are_not_limited_in_number(tmp_path: pathlib.Path) -> None:
    """All requests together take several times the limit of one request."""

    def answer(tls: ssl.SSLSocket, _head: bytes) -> None:
        time.sleep(0.1 * REQUEST_S)
        tls.sendall(ok(b""))

    with answering(tmp_path, answer) as (_, client), client:
        for _ in range(25):
            assert client.missing_chunks(DISK, [CHUNK.name]) == set()


def test_abandoned_client_does_not_connect_again(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        own = vaults.credentials_of(tmp_path / "h1", "h1")
        client = vault_client.VaultClient(ids.HostId("h2"), listening.getsockname(), own)
        client.abort()
        with client, pytest.raises(errors.SourceUnreachable, match="it was aborted"):
            put(client)
        with pytest.raises(TimeoutError):
            listening.accept()


ASK = """
import pathlib, sys
from acstor_checkpoint.holders import holder_group, vault_client
from acstor_checkpoint.vault_protocol import object_names
from acstor_common.model import ids
from tests.lab import vaults
own = vaults.credentials_of(pathlib.Path(sys.argv[1]), "h1")
clients = [
    vault_client.VaultClient(ids.HostId(f"h{n}"), (ip, 7202), own)
    for n, ip in enumerate(sys.argv[2:], 2)
]
try:
    holder_group.call_holders(clients, lambda one: one.list_disks(ids.HostId("h1")), 30.0)
except (vault_client.HostFault, holder_group.HolderFailed) as e:
    print(type(e).__name__, e)
"""


def test_missing_route_of_this_host_is_not_blamed_on_a_vault(tmp_path: pathlib.Path) -> None:
    """The host's own routing table decides, not a message that the vault's network could send."""
    vaults.credentials_of(tmp_path / "h1", "h1")
    with subnets.ipv6_hosts("h1") as [host]:
        ask = [sys.executable, "-c", ASK, str(tmp_path / "h1"), "fd00:ac:99::2"]
        said = host.run(ask)
        assert said.startswith("HolderFailed") and "unreachable" in said
        host.run(["ip", "-6", "route", "del", "default"])
        silent_neighbour = "fd00:ac:1::99"  # the host has a route to it
        said, of_two = host.run(ask), host.run([*ask, silent_neighbour])
    assert said.startswith("NoRoute") and "unreachable" in said
    assert of_two.startswith("HolderFailed h2")


def test_lack_of_descriptors_of_this_host_is_not_blamed_on_a_vault(tmp_path: pathlib.Path) -> None:
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    client = vault_client.VaultClient(ids.HostId("h2"), ("127.0.0.1", 1), own)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        while (last := stack.enter_context(pathlib.Path("/dev/null").open())).fileno() < 100:
            pass
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, before[1]))
        with pytest.raises(vault_client.HostFault, match="Too many open files"):
            holder_group.call_holders([client], lambda one: one.list_disks(DISK.owner), 5.0)


def test_missing_certificate_of_this_host_is_not_blamed_on_a_vault(tmp_path: pathlib.Path) -> None:
    files = identity_files.IdentityFiles(ids.HostId("h1"), identity_files.files_in(tmp_path))
    own = credentials.Credentials(files, tls_channel.PROTOCOL, certificates.GRACE_S)
    client = vault_client.VaultClient(ids.HostId("h2"), ("127.0.0.1", 1), own)
    with pytest.raises(vault_client.HostFault, match="no certificate yet"):
        holder_group.call_holders([client], lambda one: one.list_disks(DISK.owner), 5.0)


def test_vault_that_receives_bytes_slowly_times_out(tmp_path: pathlib.Path) -> None:
    """It receives bytes all the time, below the minimum rate."""
    with answering(tmp_path, silent, min_bytes_per_s=8 << 20) as (hostile, client), client:
        hostile.take_bytes = 16384
        began_s = time.monotonic()
        with pytest.raises(errors.SourceUnreachable):
            client.put(DISK, [CHUNK] * 400)
        assert time.monotonic() - began_s < REQUEST_S + 24 / 8 + LATE_S
