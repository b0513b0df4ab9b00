# SPDX-License-Identifier: Apache-2.0
"""A hostile vault delays checkpoints and garbage collection only up to its budget."""

import contextlib
import functools
import pathlib
import threading
import time
import types
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import pytest

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.schedule import garbage_collection
from acstor_checkpoint.schedule import worker_pool
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_server
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common.formats import checkpoint_encryption
from acstor_common.identity import credentials
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.util import supervision
from tests.fakes import hostile_holder
from tests.lab import runs
from tests.lab import vaults

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
SERVER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
INTERVAL_S = 600
NAMED = b"\n".join(str(uuid.uuid4()).encode() for _ in range(quota.MAX_DISKS))


class Places:
    """A hostile vault and an honest one; the hostile one comes first."""

    def __init__(
        self, proof: credentials.Credentials, *holders: checkpoint_record.VaultHolder
    ) -> None:
        self._proof, self._holders = proof, holders
        self.avoided: list[tuple[str, bool]] = []

    def other_hosts(self) -> tuple[checkpoint_record.VaultHolder, ...]:
        return self._holders

    def client_of(self, holder: checkpoint_record.VaultHolder) -> vault_client.VaultClient:
        address = addresses.parse(holder.address)
        return vault_client.VaultClient(holder.host, address, self._proof)

    def record_failure(self, holder: ids.HostId, *, is_costly: bool) -> None:
        self.avoided.append((holder, is_costly))


class NoServers:
    """A host without servers."""

    def __init__(self) -> None:
        self.failures = failures.Failures()

    def list_servers(self) -> set[ids.ImageId]:
        return set()

    @contextlib.contextmanager
    def hold_server(self, _instance: ids.ImageId, _end_block: object = None) -> Iterator[bool]:
        yield True


@pytest.fixture
def honest(tmp_path: pathlib.Path) -> Iterator[vaults.Vault]:
    vault = vaults.Vault(tmp_path / "h3", "h3")
    vault.start()
    yield vault
    vault.close()


@pytest.fixture
def proof(tmp_path: pathlib.Path, honest: vaults.Vault) -> credentials.Credentials:
    return vaults.credentials_of(tmp_path / "owner", "owner")


def of(vault: vaults.Vault) -> checkpoint_record.VaultHolder:
    return checkpoint_record.VaultHolder(vault.name, f"127.0.0.1:{vault.port}")


def sealed(count: int) -> list[object_names.SealedChunk]:
    chunks = [number.to_bytes(8) * 8192 for number in range(1, count + 1)]
    named = sorted((SEAL.chunk_name(plain), plain) for plain in chunks)
    return [object_names.SealedChunk(name, SEAL.close(name, plain)) for name, plain in named]


@pytest.mark.parametrize("is_slow", [True, False])
def test_vault_that_names_thousands_of_disks_uses_only_its_own_budget(
    tmp_path: pathlib.Path,
    honest: vaults.Vault,
    proof: credentials.Credentials,
    monkeypatch: pytest.MonkeyPatch,
    is_slow: bool,
) -> None:
    """It trickles each response to a DELETE, or sends each at once; the honest one has its turn.

    The trickling one is avoided for a while, and named.

    """
    call_holders = functools.partial(holder_group.call_holders, stalled_s=1.5)
    monkeypatch.setattr(holder_group, "call_holders", call_holders)

    def answer(line: str, tls: object) -> bytes | None:
        if line.startswith("GET"):
            return NAMED
        if is_slow:
            hostile_holder.drip(tls, 0.5, hostile.ended)
        return b"0"

    with hostile_holder.HostileHolder(tmp_path / "h2", "h2", answer) as hostile:
        places, servers = Places(proof, of(honest), hostile.holder), NoServers()
        with places.client_of(of(honest)) as client:
            client.put(object_names.VaultDisk(ids.HostId("owner"), DISK), sealed(4))
        collection = garbage_collection.GarbageCollection(
            ids.HostId("owner"),
            disk_states.DiskStates(tmp_path / "states"),
            places,
            dict,
            servers,
            threading.Event(),
            limits=garbage_collection.CollectionLimits(holder_s=3.0),
        )
        began_s = time.monotonic()
        assert collection.collect()
        took_s = time.monotonic() - began_s
        with places.client_of(of(honest)) as client:
            assert client.list_disks(ids.HostId("owner")) == []
    asked = sum(line.startswith("DELETE") for line in hostile.asked)
    assert took_s < 3.0 + 4.0
    assert 1 <= asked <= garbage_collection.LIMITS.holder_disks
    assert places.avoided == [("h2", True)] * is_slow
    assert servers.failures.by_holder() == ({("h2", "holder_slow"): 1} if is_slow else {})
    print(f"{asked} of {quota.MAX_DISKS} disks asked for, the pass took {took_s:.1f} s")


class CheckpointedServer:
    """One server of this host with immediate checkpoints."""

    def __init__(self) -> None:
        disk = domain_xml.RootDisk("vda", "/disk", SERVER)
        self.server, self.took_s = domain_xml.Server(SERVER, "p", disk, {}, False), list[float]()

    def list_servers(self) -> domain_xml.ServerList:
        return domain_xml.ServerList([self.server])

    def clean_up(self, _server: domain_xml.Server) -> None:
        """Clean up nothing."""

    def take_checkpoint(self, _server: domain_xml.Server, interval_s: int) -> types.SimpleNamespace:
        self.took_s.append(time.monotonic())
        names = "checkpoint_id", "full_read_reason", "slow_holder"
        counts = dict.fromkeys(("read_bytes", "sent_bytes"), 1)
        return types.SimpleNamespace(
            instance_id=SERVER, interval_s=interval_s, **dict.fromkeys(names, ""), **counts
        )


@pytest.mark.parametrize("is_requested", [True, False])
def test_due_checkpoint_does_not_wait_for_a_slow_deletion(
    tmp_path: pathlib.Path, is_requested: bool
) -> None:
    """Garbage collection gives the disk up at once, and continues with the next vault."""

    def answer(line: str, tls: object) -> bytes | None:
        if line.startswith("GET"):
            return DISK.encode()
        hostile_holder.drip(tls, 0.5, hostile.ended)
        return None

    states, taker = disk_states.DiskStates(tmp_path / "states"), CheckpointedServer()
    state = disk_states.new_state(DISK, 65536)
    state.disk, state.holders = DISK, ["h2", "h3"]
    state.taken_ms = time.time_ns() // 1_000_000 - (0 if is_requested else INTERVAL_S - 10) * 1000
    states.save(SERVER, state)
    pool = worker_pool.WorkerPool(taker, taker, states, INTERVAL_S, look_every_s=0.2)
    ended = threading.Event()
    with (
        hostile_holder.HostileHolder(tmp_path / "h2", "h2", answer) as hostile,
        hostile_holder.HostileHolder(
            tmp_path / "h3", "h3", lambda line, _: DISK.encode() if line[0] == "G" else b"0"
        ) as honest,
    ):
        proof = vaults.credentials_of(tmp_path / "owner", "owner")
        places = Places(proof, honest.holder, hostile.holder)
        collection = garbage_collection.GarbageCollection(
            ids.HostId("owner"), states, places, dict, pool, ended
        )
        worker = supervision.start_once("a worker", pool.run)
        runs.wait_for(lambda: pool.list_servers() is not None, 10.0, "the servers", str)
        collecting = supervision.start_once("garbage collection", collection.collect)
        runs.wait_for(lambda: len(hostile.asked) == 2, 10.0, "the DELETE", str)
        began_s = time.monotonic()
        assert not taker.took_s
        if is_requested:
            pool.request_checkpoint(SERVER)
        runs.wait_for(lambda: taker.took_s, 30.0, "the checkpoint", str)
        collecting.join(30.0)
        pool.stop()
        worker.join(10.0)
        assert not collecting.is_alive() and not worker.is_alive()
        assert len(honest.asked) == 2
    assert taker.took_s[0] - began_s < garbage_collection.LIMITS.holder_s / 3
    assert places.avoided == []


@pytest.mark.parametrize("how", ["is silent", "drips", "takes no bytes"])
def test_slow_vault_is_replaced_after_the_request_timeout(
    tmp_path: pathlib.Path,
    honest: vaults.Vault,
    proof: credentials.Credentials,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    def answer(line: str, tls: object) -> bytes | None:
        if how == "drips":
            hostile_holder.drip(tls, 0.3, hostile.ended)
        hostile.ended.wait(600.0)
        return None

    with hostile_holder.HostileHolder(tmp_path / "h2", "h2", answer) as hostile:
        if how == "takes no bytes":
            monkeypatch.setattr(hostile, "_request", lambda _tls: hostile.ended.wait(600.0) or "")
        places = Places(proof)
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(places.client_of(holder))
                for holder in (hostile.holder, of(honest))
            ]
            owned = object_names.VaultDisk(ids.HostId("owner"), DISK)
            limits = holder_group.HolderLimits(slack_s=2.0)
            disk = holder_group.HolderGroup(owned, clients, limits=limits)
            chunks = {chunk.name: chunk.data for chunk in sealed(64)}
            began_s = time.monotonic()
            with pytest.raises(
                holder_group.HolderFailed, match="h2 keeps no checkpoint: it is too slow"
            ):
                disk.put(sorted(chunks), chunks.__getitem__, 64 * 65536)
            assert time.monotonic() - began_s < 2.0 + 4.0 + 2.0  # 4 s are those of 4 MiB
        with places.client_of(of(honest)) as client:  # its request ran concurrently
            assert (
                client.missing_chunks(object_names.VaultDisk(ids.HostId("owner"), DISK), chunks)
                == set()
            )


class Denying(vault_store.VaultStore):
    """Stores its input, and claims that each chunk is missing."""

    def missing_chunks(self, disk: object_names.VaultDisk, asked: Sequence[bytes]) -> list[bytes]:
        return list(asked)


class Slow(vault_store.VaultStore):
    """Stores its input, a little slower than others."""

    def begin_connection(self, disk: object_names.VaultDisk, connection: int) -> None:
        time.sleep(0.2)
        super().begin_connection(disk, connection)


@contextlib.contextmanager
def served(
    folder: pathlib.Path, name: str, kind: type[vault_store.VaultStore]
) -> Iterator[checkpoint_record.VaultHolder]:
    proof = vaults.credentials_of(folder / "identity", name)
    (folder / "vault").mkdir()
    kept = kind(folder / "vault", quota.VaultLimits(1 << 30, 1 << 30, 10000), ids.HostId(name))
    sock = vault_server.listen("127.0.0.1", 0)
    everybody: Any = types.SimpleNamespace(why_refused=lambda _: "", hosts_at=lambda _: 0)
    server = vault_server.VaultServer(sock, vault_api.VaultApi(kept), proof, everybody)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield checkpoint_record.VaultHolder(ids.HostId(name), f"127.0.0.1:{sock.getsockname()[1]}")
    server.close()
    thread.join(10.0)
    kept.close()


def test_vault_that_denies_acknowledged_chunks_gets_none_again(
    tmp_path: pathlib.Path, honest: vaults.Vault, proof: credentials.Credentials
) -> None:
    """It is asked for the names of the last checkpoint, and named; no chunk is read for it."""
    chunks = {chunk.name: chunk.data for chunk in sealed(holder_group.LIMITS.lost_chunks + 1)}
    cids = sorted(map(ids.Cid, chunks))
    with served(tmp_path / "h2", "h2", Denying) as hostile, contextlib.ExitStack() as stack:
        places, disk = Places(proof), object_names.VaultDisk(ids.HostId("owner"), DISK)
        holders = (hostile, of(honest))
        clients = [stack.enter_context(places.client_of(holder)) for holder in holders]
        first = holder_group.HolderGroup(disk, clients)
        assert first.missing_names(cids) == set(cids)  # a new vault lacks all chunks
        assert first.put(cids, chunks.__getitem__, 1) == 2 * sum(map(len, chunks.values()))
        acknowledged = [holder.host for holder in holders]
        with pytest.raises(
            holder_group.HolderLost, match="h2 keeps no checkpoint: it lacks 129 chunks"
        ):
            holder_group.HolderGroup(disk, clients, acknowledged).missing_names(cids)
        assert (
            holder_group.HolderGroup(disk, clients[1:], acknowledged).missing_names(cids) == set()
        )


def test_vault_just_above_the_minimum_rate_is_reported_as_slow(
    tmp_path: pathlib.Path, honest: vaults.Vault, proof: credentials.Credentials
) -> None:
    chunks = {chunk.name: chunk.data for chunk in sealed(8)}
    with served(tmp_path / "h2", "h2", Slow) as hostile, contextlib.ExitStack() as stack:
        holders = (of(honest), hostile)
        clients = [stack.enter_context(Places(proof).client_of(holder)) for holder in holders]
        owned, limits = (
            object_names.VaultDisk(ids.HostId("owner"), DISK),
            holder_group.HolderLimits(slow_s=1.0),
        )
        disk = holder_group.HolderGroup(owned, clients, limits=limits)
        for name in sorted(map(ids.Cid, chunks)):
            disk.put([name], chunks.__getitem__, 1)
    assert disk.slow_holder() == "h2"


@pytest.mark.parametrize("status", [301, 400, 403, 404, 409, 410, 411, 413, 500, 503, 507])
def test_vault_that_responds_with_an_error_is_replaced(
    tmp_path: pathlib.Path, proof: credentials.Credentials, status: int
) -> None:
    """An honest vault has no reason: each request of a checkpoint can succeed."""
    with hostile_holder.HostileHolder(tmp_path / "h2", "h2", lambda *_: b"no", status) as hostile:
        with Places(proof).client_of(hostile.holder) as client:
            disk = holder_group.HolderGroup(
                object_names.VaultDisk(ids.HostId("owner"), DISK), [client]
            )
            with pytest.raises(holder_group.HolderFailed, match="h2 keeps no checkpoint"):
                disk.put([SEAL.chunk_name(b"some")], bytes, 65536)
            with pytest.raises(holder_group.HolderFailed, match="h2 keeps no checkpoint"):
                disk.put_manifest(SEAL.close_manifest(bytearray(b"a manifest")))


@pytest.mark.parametrize("answer", [b"x" * 33, b"", b"x" * 32, b"9" * 5000, b"-1"])
def test_vault_with_a_malformed_response_is_replaced(
    tmp_path: pathlib.Path, proof: credentials.Credentials, answer: bytes
) -> None:
    with hostile_holder.HostileHolder(tmp_path / "h2", "h2", lambda *_: answer) as hostile:
        with Places(proof).client_of(hostile.holder) as client:
            disk = holder_group.HolderGroup(
                object_names.VaultDisk(ids.HostId("owner"), DISK), [client]
            )
            with pytest.raises(holder_group.HolderFailed, match="h2 keeps no checkpoint"):
                disk.retain_only(
                    [object_names.RetainedNames(object_names.ALL_FIRST_BYTES, [bytes(32)])]
                )
