# SPDX-License-Identifier: Apache-2.0
"""No wait of a vault is without an end, and who is not believed any more is not answered."""

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
    """A server in this process, and who asks it."""

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
        """Connect with a small window."""
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
    """Why no host may speak any more."""
    return []


@pytest.fixture
def limits() -> vault_server.ServerLimits:
    return vault_server.ServerLimits()


def limited(*channel: float, **limits: float) -> pytest.MarkDecorator:
    """Return the mark of a test whose server has these limits, and its channels those."""
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
def test_silent_strangers_are_left(served: Served) -> None:
    with socket.create_connection(served.address) as sock:
        assert ends_within(sock, 5)
    with socket.create_connection(served.address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        assert ends_within(sock, 5)


@limited(idle_s=0.2)
def test_a_connection_with_nothing_to_say_ends_and_another_is_made(served: Served) -> None:
    with served.tls() as tls:
        assert ends_within(tls, 5)
    with served.client() as client:
        client.put(DISK, CHUNKS[:1])
        time.sleep(0.5)
        client.put(DISK, CHUNKS[1:])
        assert client.missing_chunks(DISK, [chunk.name for chunk in CHUNKS]) == set()


@limited(0.3, 1 << 30)
def test_who_drips_a_body_is_left(served: Served) -> None:
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
    )  # the folders of the host and the disk


@limited(idle_s=0.5)
def test_who_drips_a_request_is_left(served: Served) -> None:
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
def test_who_stops_in_a_body_is_left(served: Served) -> None:
    with served.tls() as tls:
        tls.sendall(PUT.encode() + object_names.CHUNK_HEADER.pack(bytes(32), 5000) + b"some")
        assert ends_within(tls, 5)
    assert not any(path.is_file() for path in served.vault.folder.rglob("*"))


@limited(1.5, 1 << 30, 8 << 20)
def test_who_takes_an_answer_slowly_is_left(served: Served) -> None:
    """He takes some all the time, and not all of it in time."""
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


def test_a_host_that_is_revoked_gets_no_further_answer(served: Served, refused: list[str]) -> None:
    with served.client() as client:
        client.put(DISK, CHUNKS)
        refused.append("its certificate was revoked")
        with pytest.raises(errors.SourceUnreachable):
            client.fetch_chunk(DISK, CHUNKS[0].name)


def test_an_answer_that_is_too_long_is_not_read(served: Served) -> None:
    with served.client(short_bytes=10) as client:
        client.put(DISK, CHUNKS)
        with pytest.raises(errors.SourceUnreachable, match="10 at most"):
            client._ask("GET", f"/v1/h1/{DISK.disk}/chunks/{CHUNKS[0].name.hex()}", [], 10)


def test_a_vault_that_says_nothing_is_left(tmp_path: pathlib.Path) -> None:
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        limits = vault_client.ClientLimits(connect_s=0.3)
        with vault_client.VaultClient(H2, address, own, limits) as client:
            with pytest.raises(errors.SourceUnreachable):
                client.list_disks(H1)


def test_where_nobody_listens_there_is_no_vault(tmp_path: pathlib.Path) -> None:
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    with vault_client.VaultClient(H2, address, own) as client:
        with pytest.raises(errors.SourceUnreachable, match="refused"):
            client.list_disks(H1)


def test_a_host_without_a_certificate_asks_nobody(tmp_path: pathlib.Path) -> None:
    (tmp_path / "h1").mkdir()
    own = vaults.credentials_of(tmp_path / "h1", "h1")
    with vault_client.VaultClient(H2, ("127.0.0.1", 9), own) as client:
        with pytest.raises(vault_client.HostFault, match="no certificate yet"):
            client.list_disks(H1)
