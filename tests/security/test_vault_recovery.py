# SPDX-License-Identifier: Apache-2.0
"""A compromised vault neither blocks nor slows a recovery from an honest one."""

import os
import pathlib
import ssl
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import trio

from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import checkpoint_restore
from acstor_checkpoint.vault_protocol import object_names
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hostile_vault
from tests.fakes import vault_checkpoints
from tests.lab import vaults

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CHUNKS = {n: os.urandom(CHUNK) for n in range(400)}
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CUT = geometry.Geometry(len(CHUNKS) * CHUNK, CHUNK)
OWNER = vault_checkpoints.OWNER
BEGINS_S = 10.0
SHARE = 0.5
DEADLINE_S = 60.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"

Given = dict[str, bytes]
"""Content of a vault, by path."""


class Hostile:
    """Behaviours of a compromised vault, which has the content of an honest one."""

    def __init__(self, given: Given) -> None:
        self.given, self.answered = given, 0

    def data(self, head: bytes) -> bytes:
        return self.given[head.split(b" ")[1].decode()]

    def drips(self, tls: ssl.SSLSocket, head: bytes) -> None:
        """Send a byte every 4 s, before the silence limit of 5 s."""
        data = self.data(head)
        tls.sendall(HEAD % len(data))
        for at in range(len(data)):
            tls.sendall(data[at : at + 1])
            time.sleep(4.0)

    def is_silent(self, tls: ssl.SSLSocket, _head: bytes) -> None:
        tls.recv(1)

    def is_slow(self, tls: ssl.SSLSocket, head: bytes) -> None:
        """Respond just before another vault gets the request."""
        time.sleep(0.8 * checkpoint_client.HEDGE_S)
        self.gives(tls, head)

    def becomes_slow(self, tls: ssl.SSLSocket, head: bytes) -> None:
        self.answered += 1
        if self.answered > 50:
            time.sleep(0.8 * checkpoint_client.HEDGE_S)
        self.gives(tls, head)

    def gives(self, tls: ssl.SSLSocket, head: bytes) -> None:
        data = self.data(head)
        tls.sendall(HEAD % len(data) + data)

    def lies(self, tls: ssl.SSLSocket, head: bytes) -> None:
        data = self.data(head)
        tls.sendall(HEAD % len(data) + bytes(len(data)))

    def has_none(self, tls: ssl.SSLSocket, _head: bytes) -> None:
        tls.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


ATTACKS: list[Callable[[Hostile, ssl.SSLSocket, bytes], None]] = [
    Hostile.drips,
    Hostile.is_silent,
    Hostile.is_slow,
    Hostile.becomes_slow,
    Hostile.lies,
    Hostile.has_none,
]


class World:
    """A checkpoint in a real vault, and its reader."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.kept = vault_checkpoints.StoredCheckpoint(IMAGE, CUT, CHUNKS)
        self.honest = vaults.Vault(folder / "h2", "h2")
        self.reader = vaults.credentials_of(folder / "h4", "h4")
        self.hostile = vaults.credentials_of(folder / "h3", "h3")

    def put(self, owner: vaults.Vault) -> None:
        disk = object_names.VaultDisk(OWNER, vault_checkpoints.VAULT_DISK)
        with owner.client(self.honest) as client:
            client.put(disk, [object_names.SealedChunk(*one) for one in self.kept.chunks.items()])
            client.put_manifest(disk, self.kept.manifest)

    def given(self) -> Given:
        return vault_checkpoints.Link(self.kept).things

    def read(self, *others: tuple[str, int]) -> tuple[float, float]:
        """Read all chunks in order; return how long the manifest and the rest took."""
        reported = [(f"h{3 + n}", f"{ip}:{port}") for n, (ip, port) in enumerate(others)]
        reported.append(("h2", f"127.0.0.1:{self.honest.port}"))
        recovery = self.kept.recovery(holders=reported)
        return trio.run(self._read, recovery)

    async def _read(self, recovery) -> tuple[float, float]:
        link = checkpoint_client.HolderConnections(self.reader, DEADLINE_S)
        of, began_s = checkpoint_client.CheckpointClient(link, recovery), trio.current_time()
        left = iter(self.kept.chunks)

        async def bring() -> None:
            for name in left:
                assert await of.fetch_chunk(ids.Cid(name), CHUNK)

        with trio.fail_after(DEADLINE_S):
            assert await of.fetch_manifest() == self.kept.manifest
            begun_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(checkpoint_restore.AT_ONCE):
                    nursery.start_soon(bring)
            ended_s = trio.current_time()
            await link.aclose()
        return begun_s - began_s, ended_s - begun_s


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("w")
    made = World(folder)
    try:
        made.honest.start()
        made.put(vaults.Vault(folder / OWNER, OWNER))
        yield made
    finally:
        made.honest.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_recovery_proceeds_beside_a_compromised_vault(
    world: World, attack: Callable[[Hostile, ssl.SSLSocket, bytes], None]
) -> None:
    doing = Hostile(world.given())

    def answer(tls: ssl.SSLSocket, head: bytes) -> None:
        attack(doing, tls, head)

    _, before_s = world.read()
    with hostile_vault.HostileVault(world.hostile, answer) as hostile:
        begins_s, took_s = world.read(hostile.address)
        assert hostile.requests
    _, after_s = world.read()
    alone_s = max(before_s, after_s)
    print(f"manifest after {begins_s:.2f} s, {took_s:.2f} s for all, {alone_s:.2f} s alone")
    assert begins_s < BEGINS_S
    assert took_s < alone_s / SHARE + checkpoint_client.LONGEST_HEDGE_S
