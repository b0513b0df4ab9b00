# SPDX-License-Identifier: Apache-2.0
"""Vault server and client: all waits have deadlines, and revoked hosts get no responses."""

import contextlib
import pathlib
import socket
import ssl
import threading
import time
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_server
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.identity import certificates
from acstor_common.model import ids
from tests.lab import runs
from tests.lab import vaults

H1, H2 = ids.HostId("h1"), ids.HostId("h2")
DISK = object_names.VaultDisk(H1, ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"))
CHUNKS = [object_names.SealedChunk(bytes([n]) * 32, bytes([n]) * 100) for n in range(1, 5)]
PUT = f"PUT /v1/h1/{DISK.disk}/chunks HTTP/1.1\r\nhost: v\r\ncontent-length: 1000000\r\n\r\n"

Fault = Callable[[certificates.HostCertificate], str]


class Served:
    """A vault server in this process, and its client."""

    def __init__(
        self, folder: pathlib.Path, fault: Fault, limits: vault_server.ServerLimits
    ) -> None:
        (folder / "vault").mkdir()
        self.vault = vault_store.VaultStore(
            folder / "vault", quota.VaultLimits(1 << 20, 1 << 20, 100), H2
        )
        sock = vault_server.listen("127.0.0.1", 0)
        self.address: tuple[str, int] = sock.getsockname()
        own = vaults.credentials_of(folder / "h2", "h2")
        hosts: Any = types.SimpleNamespace(why_refused=fault, hosts_at=lambda _ip: 0)
        api = vault_api.VaultApi(self.vault)
        self.server = vault_server.VaultServer(sock, api, own, hosts, limits)
        self.credentials = vaults.credentials_of(folder / "h1", "h1")
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def client(self, short_bytes: int = 4096) -> vault_client.VaultClient:
        limits = vault_client.ClientLimits(short_bytes=short_bytes)
        return vault_client.VaultClient(H2, self.address, self.credentials, limits)

    def tls(self) -> ssl.SSLSocket:
        sock = socket.create_connection(self.address, 10)
        return self.credentials.tls_context(is_server=False).wrap_socket(sock)

    def slow_tls(self) -> ssl.SSLSocket:
        """Connect with a small receive window."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.settimeout(10)
        sock.connect(self.address)
        return self.credentials.tls_context(is_server=False).wrap_socket(sock)

    def close(self) -> None:
        self.server.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.vault.close()


@pytest.fixture
def refused() -> list[str]:
    """Return the reasons for which all hosts are refused."""
    return []


@pytest.fixture
def limits() -> vault_server.ServerLimits:
    return vault_server.ServerLimits()


def limited(*channel: float, **limits: float) -> pytest.MarkDecorator:
    """Return a mark that sets the limits of the server and its channels."""
    made = vault_server.ServerLimits(**limits, channel=tls_channel.ChannelLimits(*channel))
    return pytest.mark.parametrize("limits", [made])


@pytest.fixture
def served(
    tmp_path: pathlib.Path, refused: list[str], limits: vault_server.ServerLimits
) -> Iterator[Served]:
    made = Served(tmp_path, lambda _certificate: "".join(refused), limits)
    yield made
    made.close()


def ends_within(sock: socket.socket, deadline_s: float) -> bool:
    sock.settimeout(deadline_s)
    try:
        while sock.recv(1000):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@limited(handshake_s=0.2)
def test_handshake_times_out(served: Served) -> None:
    with socket.create_connection(served.address) as sock:
        assert ends_within(sock, 5)
    with socket.create_connection(served.address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")  # not TLS
        assert ends_within(sock, 5)


@limited(idle_s=0.2)
def test_idle_connection_is_closed_and_the_client_reconnects(served: Served) -> None:
    with served.tls() as tls:
        assert ends_within(tls, 5)
    with served.client() as client:
        client.put(DISK, CHUNKS[:1])
        time.sleep(0.5)
        client.put(DISK, CHUNKS[1:])
        assert client.missing_chunks(DISK, [chunk.name for chunk in CHUNKS]) == set()


@limited(0.3, 1 << 30)
def test_client_that_trickles_a_body_is_disconnected(served: Served) -> None:
    with served.tls() as tls:
        tls.sendall(PUT.encode())
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 5:
                tls.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 5
    assert (
        served.vault.quota.usage_by_host()[H1].inodes == 2
    )  # the directories of the host and the disk


@limited(idle_s=0.5)
def test_client_that_trickles_a_request_is_disconnected(served: Served) -> None:
    with served.tls() as tls:
        tls.sendall(b"GET /v1/h1 HTTP/1.1\r\nhost: ")
        runs.wait_for(lambda: served.server.connection_count == 1, 10, "the connection", str)
        until_s = time.monotonic() + 6
        with contextlib.suppress(OSError):
            while served.server.connection_count and time.monotonic() < until_s:
                tls.sendall(b"v")
                time.sleep(0.05)
        assert served.server.connection_count == 0


@limited(0.2)
def test_client_that_stalls_in_a_body_is_disconnected(served: Served) -> None:
    with served.tls() as tls:
        tls.sendall(PUT.encode() + object_names.CHUNK_HEADER.pack(bytes(32), 5000) + b"some")
        assert ends_within(tls, 5)
    assert not any(path.is_file() for path in served.vault.folder.rglob("*"))


@limited(1.5, 1 << 30, 8 << 20)
def test_client_that_reads_slowly_is_disconnected(served: Served) -> None:
    """The client reads constantly but too slowly."""
    served.vault.quota.limits = quota.VaultLimits(1 << 30, 1 << 30, 100)
    manifest = bytes(8 << 20)
    name = checkpoint_encryption.manifest_name(manifest)
    with served.vault.open_batch(DISK) as batch:
        batch.add(object_names.ObjectKind.MANIFEST, name, len(manifest), [manifest])
    with served.slow_tls() as tls:
        tls.sendall(
            f"GET /v1/h1/{DISK.disk}/manifests/{name.hex()} HTTP/1.1\r\nhost: v\r\n\r\n".encode()
        )
        assert tls.recv(1)
        until_s = time.monotonic() + 6
        while served.server.connection_count and time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                tls.recv(1 << 16)
            time.sleep(0.05)
        assert served.server.connection_count == 0


def test_revoked_host_gets_no_further_response(served: Served, refused: list[str]) -> None:
    with served.client() as client:
        client.put(DISK, CHUNKS)
        refused.append("its certificate was revoked")
        with pytest.raises(errors.SourceUnreachable):
            client.fetch_chunk(DISK, CHUNKS[0].name)


def test_too_long_response_is_not_read(served: Served) -> None:
    with served.client(short_bytes=10) as client:
        client.put(DISK, CHUNKS)
        with pytest.raises(errors.SourceUnreachable, match="10 at most"):
            client._ask("GET", f"/v1/h1/{DISK.disk}/chunks/{CHUNKS[0].name.hex()}", [], 10)


def test_silent_vault_times_out(tmp_path: pathlib.Path) -> None:
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        limits = vault_client.ClientLimits(connect_s=0.3)
        with vault_client.VaultClient(H2, address, own, limits) as client:
            with pytest.raises(errors.SourceUnreachable):
                client.list_disks(H1)


def test_refused_connection_is_unreachable(tmp_path: pathlib.Path) -> None:
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    with vault_client.VaultClient(H2, address, own) as client:
        with pytest.raises(errors.SourceUnreachable, match="refused"):
            client.list_disks(H1)


def test_host_without_a_certificate_does_not_connect(tmp_path: pathlib.Path) -> None:
    (tmp_path / "h1").mkdir()
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with vault_client.VaultClient(H2, ("127.0.0.1", 9), own) as client:
        with pytest.raises(vault_client.HostFault, match="no certificate yet"):
            client.list_disks(H1)
