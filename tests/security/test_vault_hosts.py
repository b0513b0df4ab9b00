# SPDX-License-Identifier: Apache-2.0
"""Hosts that misuse a real vault block no other host, and stay within their quota."""

import contextlib
import itertools
import os
import pathlib
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault import authorized_hosts
from acstor_checkpoint.vault import connection_limit
from acstor_checkpoint.vault import lookup_rate
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault_protocol import object_names
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.model import ids
from tests.fakes import file_systems
from tests.lab import background
from tests.lab import local
from tests.lab import runs
from tests.lab import vaults

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
CROWD = [
    f"c{n}" for n in range(connection_limit.CONNECTIONS // connection_limit.CONNECTIONS_OF_HOST)
]
UPLOAD_S = 5.0
"""Limit for one chunk over a new connection, on a busy machine; alone it takes 0.03 s."""
PUT = "PUT /v1/{host}/{disk}/chunks HTTP/1.1\r\nhost: v\r\ncontent-length: 1000000\r\n\r\n"

ASKING_S = 8.0

Start = Callable[..., vaults.Vault]
Ask = Callable[[vault_client.VaultClient, object_names.VaultDisk, list[bytes]], object]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Return a function that starts the vault of h2; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(**options: object) -> vaults.Vault:
            vault = vaults.Vault(tmp_path / "h2", "h2", **options)
            vault.others = tuple(CROWD)
            stack.callback(vault.close)
            vault.start()
            return vault

        yield begin


@pytest.fixture
def h1(tmp_path: pathlib.Path) -> vaults.Vault:
    return vaults.Vault(tmp_path / "h1", "h1")


def chunk(number: int) -> object_names.SealedChunk:
    plain = number.to_bytes(8, "big") * 8192
    name = SEAL.chunk_name(plain)
    return object_names.SealedChunk(name, SEAL.close(name, plain))


@pytest.mark.parametrize("is_busy", [False, True])
def test_hosts_that_hold_all_connections_block_no_other_host(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path, is_busy: bool
) -> None:
    """16 hosts hold 16 connections each: idle ones, or ones with a request that never ends."""
    h2 = start()
    with contextlib.ExitStack() as stack:
        for name in CROWD:
            host = vaults.Vault(tmp_path / name, name)
            for _ in range(connection_limit.CONNECTIONS_OF_HOST):
                tls = stack.enter_context(host.dial(h2))
                if is_busy:
                    tls.sendall(PUT.format(host=name, disk=DISK).encode())
        for number in range(3):
            began_s = time.monotonic()
            with h1.client(h2) as client:
                client.put(object_names.VaultDisk(h1.name, DISK), [chunk(number)])
            assert time.monotonic() - began_s < UPLOAD_S
    assert "Traceback" not in h2.log()


class Asking(background.Background):
    """Continuously requests unknown names from a vault, or a scan of a disk."""

    def __init__(self, host: vaults.Vault, vault: vaults.Vault, ask: Ask) -> None:
        self.names = 0
        self._host, self._vault, self._ask = host, vault, ask
        self._asked = sorted(os.urandom(32) for _ in range(object_names.MAX_NAMES))
        super().__init__([self._run] * 8)

    def _run(self) -> None:
        disk = object_names.VaultDisk(self._host.name, DISK)
        with contextlib.suppress(errors.AcstorError), self._host.client(self._vault) as client:
            while not self.is_over.is_set():
                self._ask(client, disk, self._asked)
                self.names += len(self._asked)


def keep(client: vault_client.VaultClient, disk: object_names.VaultDisk, stay: list[bytes]) -> None:
    client.retain_only(disk, object_names.RetainedNames(object_names.ALL_FIRST_BYTES, stay))


def list_disks(
    client: vault_client.VaultClient, disk: object_names.VaultDisk, _names: list[bytes]
) -> None:
    for _ in range(object_names.MAX_NAMES // lookup_rate.OF_REQUEST):
        client.list_disks(disk.owner)


@pytest.mark.parametrize(
    "ask",
    [
        vault_client.VaultClient.missing_chunks,
        keep,
        pytest.param(list_disks, marks=[pytest.mark.timed, pytest.mark.nightly]),
    ],
)
def test_name_lookups_of_a_host_are_rate_limited(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path, ask: Ask
) -> None:
    h2, rate = start(), lookup_rate.OF_HOST
    with h1.client(h2) as client:
        client.put(object_names.VaultDisk(h1.name, DISK), [chunk(1)])
    other, began_s = vaults.Vault(tmp_path / "h3", "h3"), time.monotonic()
    with Asking(h1, h2, ask) as asking, other.client(h2) as client:
        for number in range(int(ASKING_S)):
            put_s = time.monotonic()
            client.put(object_names.VaultDisk(other.name, DISK), [chunk(number)])
            assert time.monotonic() - put_s < UPLOAD_S
            time.sleep(1.0)
        took_s, asked = time.monotonic() - began_s, asking.names
    assert rate.burst / 2 < asked <= 1.01 * (rate.burst + rate.per_s * took_s)
    print(f"{asked / took_s:.0f} names a second")


@pytest.mark.parametrize("is_there", [True, False])
def test_reads_of_a_host_are_rate_limited(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path, is_there: bool
) -> None:
    """Also of missing chunks, and over many connections."""
    cost, rate, took, ended = 6400, lookup_rate.OF_HOST, list[int](), threading.Event()
    h2 = start(constants={"acstor_checkpoint.vault.lookup_rate.OF_REQUEST": cost})
    disk, other = object_names.VaultDisk(h1.name, DISK), vaults.Vault(tmp_path / "h3", "h3")
    with h1.client(h2) as client:
        client.put(disk, [chunk(1)])

    def read() -> None:
        with h1.client(h2) as client:
            while not ended.is_set():
                with contextlib.suppress(errors.ChunkMissing):
                    client.fetch_chunk(disk, chunk(1 if is_there else 2).name)
                took.append(1)

    threads = [threading.Thread(target=read) for _ in range(8)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    with other.client(h2) as client:
        for number in range(5):
            put_s = time.monotonic()
            client.put(object_names.VaultDisk(other.name, DISK), [chunk(number)])
            assert time.monotonic() - put_s < UPLOAD_S
            time.sleep(1.0)
    ended.set()
    for thread in threads:
        thread.join()
    most = (rate.burst + rate.per_s * (time.monotonic() - began_s)) / cost
    assert rate.burst / cost / 2 < len(took) <= 1.01 * most
    print(f"{len(took)} requests, {most:.0f} at most")


def begin_put(tls: ssl.SSLSocket) -> None:
    tls.sendall(
        PUT.format(host="h1", disk=DISK).encode() + object_names.CHUNK_HEADER.pack(bytes(32), 65536)
    )


def drips(tls: ssl.SSLSocket, within_s: float) -> float:
    """Put a chunk byte by byte until the vault closes the connection; return how long it took."""
    began_s = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began_s < within_s:
            tls.sendall(b"x")
            time.sleep(0.2)
    return time.monotonic() - began_s


def kept_in(vault: vaults.Vault) -> list[pathlib.Path]:
    return [path for path in vault.folder.glob("*/**/*") if path.is_file()]


def test_host_revoked_during_a_put_is_disconnected(start: Start, h1: vaults.Vault) -> None:
    h2, within_s = start(), authorized_hosts.CHECK_INTERVAL_S + 5.0
    assert within_s < tls_channel.LIMITS.body_s(1_000_000)
    with h1.dial(h2) as tls:
        begin_put(tls)
        time.sleep(0.5)
        h2.write_table("h2")
        assert drips(tls, within_s + 5.0) < within_s
    runs.wait_for(lambda: not kept_in(h2), 5, "the end of the batch", h2.log)
    assert "Traceback" not in h2.log()


def test_trickling_put_times_out(start: Start, h1: vaults.Vault) -> None:
    h2 = start()
    within_s = tls_channel.LIMITS.body_s(1_000_000) + 3.0
    with h1.dial(h2) as tls:
        begin_put(tls)
        assert drips(tls, within_s + 5.0) < within_s
    with h1.client(h2) as client:
        client.put(object_names.VaultDisk(h1.name, DISK), [chunk(1)])
    assert "Traceback" not in h2.log()


def small_chunks(disk_no: int) -> tuple[object_names.VaultDisk, list[object_names.SealedChunk]]:
    """Return the smallest possible chunks, one for each folder of a disk."""
    disk = object_names.VaultDisk(ids.HostId("h1"), ids.parse_image_id(str(uuid.UUID(int=disk_no))))
    length = checkpoint_encryption.SEAL_BYTES + 1
    return disk, [object_names.SealedChunk(bytes([n]) * 32, bytes(length)) for n in range(256)]


def taken(folder: pathlib.Path) -> tuple[int, int]:
    """Return how many inodes and bytes a folder tree uses on the disk."""
    found = [folder.lstat(), *(path.lstat() for path in folder.rglob("*"))]
    return len(found), sum(status.st_blocks * 512 for status in found)


def test_inodes_and_bytes_of_a_host_stay_within_its_quota(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path
) -> None:
    """It fills folders, drops their content, and continues with the next disk."""
    size_bytes = 26 << 20
    inodes = size_bytes // quota.INODE_BYTES
    h2 = start(vault_limit_bytes=2 * size_bytes, vault_quota_per_host_bytes=size_bytes)
    with h1.client(h2) as client, contextlib.suppress(errors.VaultFull):
        for disk_no in range(1, 7):
            disk, chunks = small_chunks(disk_no)
            client.put(disk, chunks)
            client.retain_only(
                disk,
                object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [chunks[disk_no].name]),
            )
        for disk_no in range(7, 40):
            client.put(*small_chunks(disk_no))
    mine = taken(h2.folder / "h1")
    assert inodes * 0.5 < mine[0] <= inodes * 1.01
    assert mine[1] <= size_bytes * 1.01
    h2.kill()
    h2.start()  # counts its objects anew
    with h1.client(h2) as client, contextlib.suppress(errors.VaultFull):
        client.put(*small_chunks(99))
    assert taken(h2.folder / "h1")[0] <= inodes * 1.01
    h3 = vaults.Vault(tmp_path / "h3", "h3")
    disk = object_names.VaultDisk(h3.name, DISK)
    with h3.client(h2) as client:
        client.put(disk, [chunk(number) for number in range(100)])
    assert sum(path.is_file() for path in (h2.folder / "h3").rglob("*")) == 100


NAMES, LINKS = 120_000, 40_000
LISTING_BYTES = 16 << 20
"""Most memory for all listings; a list of the names takes as much by itself."""
RECORDS_S = 6.0


def fill_one_folder(vault: vaults.Vault) -> None:
    """Give all chunks of a disk of h1 names with the same beginning, as an owner can."""
    part = vault.folder / "h1" / DISK / "00"
    part.mkdir(mode=0o700, parents=True)
    vault.folder.chmod(0o700)
    for number in range(NAMES):
        path = part / f"{number:064x}"
        if number % LINKS:
            os.link(part / f"{number - number % LINKS:064x}", path)
        else:
            path.write_bytes(bytes(100))


def most_memory_bytes(vault: vaults.Vault) -> int:
    assert vault.process is not None
    status = pathlib.Path(f"/proc/{vault.process.pid}/status").read_text()
    [line] = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def test_listing_a_folder_with_all_chunks_of_a_host_takes_bounded_memory(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path
) -> None:
    """Connections that may drop nothing have it listed repeatedly."""
    (tmp_path / "h2").mkdir(exist_ok=True)
    fill_one_folder(vaults.Vault(tmp_path / "h2", "h2"))
    h2 = start()
    disk, ended = object_names.VaultDisk(h1.name, DISK), threading.Event()
    stay = object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [bytes(32)])

    def list_again(client: vault_client.VaultClient) -> None:
        while not ended.is_set():
            with contextlib.suppress(errors.AcstorError):
                client.retain_only(disk, stay)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(h1.client(h2)) for _ in range(8)]
        for client in clients:
            client.missing_chunks(disk, [bytes(32)])
        latest = stack.enter_context(h1.client(h2))
        latest.missing_chunks(disk, [bytes(32)])
        before_bytes = most_memory_bytes(h2)
        with pytest.raises(errors.VaultRefused, match="a later connection"):
            clients[0].retain_only(disk, stay)
        threads = [threading.Thread(target=list_again, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(3.0)
        ended.set()
        for thread in threads:
            thread.join()
    assert most_memory_bytes(h2) - before_bytes < LISTING_BYTES
    assert "Traceback" not in h2.log()


def processor_s(vault: vaults.Vault) -> float:
    assert vault.process is not None
    stat = pathlib.Path(f"/proc/{vault.process.pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("is_body", [True, False])
def test_host_that_sends_one_byte_records_takes_bounded_processor_time(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path, is_body: bool
) -> None:
    """A small record costs as much as a large one; another host is served meanwhile."""
    h2, ended = start(), threading.Event()
    head = PUT.format(host="h1", disk=DISK)
    head = head if is_body else head.replace("host: v", f"host: {'v' * 12000}")

    def send_records() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), h1.dial(h2) as tls:
                if is_body:
                    tls.sendall(head.encode())
                for byte in itertools.cycle(head.encode()):
                    if ended.is_set():
                        break
                    tls.sendall(bytes([byte]))

    other = vaults.Vault(tmp_path / "h3", "h3")
    threads = [threading.Thread(target=send_records) for _ in range(4)]
    began_s, used_s = time.monotonic(), processor_s(h2)
    for thread in threads:
        thread.start()
    with other.client(h2) as client:
        while time.monotonic() - began_s < RECORDS_S:
            put_s = time.monotonic()
            client.put(object_names.VaultDisk(other.name, DISK), [chunk(1)])
            assert time.monotonic() - put_s < UPLOAD_S
            time.sleep(0.5)
    used_s = processor_s(h2) - used_s
    ended.set()
    for thread in threads:
        thread.join()
    assert used_s < 0.5 * (time.monotonic() - began_s)
    print(f"{used_s:.2f} s of a processor")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_vault_with_a_full_disk_refuses_serves_and_drops(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path
) -> None:
    size_bytes = 2 << 20
    disk = object_names.VaultDisk(h1.name, DISK)
    chunks = [object_names.SealedChunk(bytes([n]) * 32, os.urandom(60000)) for n in range(50)]
    with file_systems.small_disk(tmp_path / "h2" / "vault", size_bytes, mode="0700"):
        h2 = start()
        with h1.client(h2) as client:
            put = 0
            with pytest.raises(errors.VaultFull):
                for put, sealed in enumerate(chunks):  # noqa: B007 - the last number counts
                    client.put(disk, [sealed])
            assert put > 10
            (h2.folder / "filler").write_bytes(b"")
            with contextlib.suppress(OSError), (h2.folder / "filler").open("wb", 0) as filler:
                while filler.write(bytes(4096)):
                    pass
            assert client.missing_chunks(disk, [one.name for one in chunks[:put]]) == set()
            assert client.fetch_chunk(disk, chunks[0].name) == chunks[0].data
            assert (
                client.retain_only(
                    disk, object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [chunks[0].name])
                )
                == put - 1
            )
            client.put(disk, chunks[1:3])
        assert "Traceback" not in h2.log()
        h2.close()


def test_second_daemon_does_not_start_in_the_same_folder(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path
) -> None:
    h2 = start()
    options = f"vault_listen = 127.0.0.1:{local.unused_port()}\n"
    config = tmp_path / "h2" / "acstor-checkpoint.conf"
    second = tmp_path / "second.conf"
    second.write_text(
        "".join(
            options if line.startswith("vault_listen") else line
            for line in config.read_text().splitlines(keepends=True)
        )
    )
    argv = [sys.executable, "-m", "acstor_checkpoint.cmd.checkpointd", "--config-file", str(second)]
    reported = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert reported.returncode == 1 and "another process uses this vault" in reported.stderr
    with h1.client(h2) as client:
        client.put(object_names.VaultDisk(h1.name, DISK), [chunk(1)])
