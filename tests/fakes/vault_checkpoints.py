# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in vaults, made from a disk's chunks."""

import uuid
from collections.abc import Callable
from typing import TypeVar

from acstor_agent.core.disks import restore_record
from acstor_agent.disks import checkpoint_client
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest as manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import vault_paths

T = TypeVar("T")

KEY = bytes(range(1, 33))
OWNER = ids.HostId("h1")
INSTANCE = ids.parse_image_id("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
VAULT_DISK = ids.parse_image_id("6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")


def subject(
    disk: ids.ImageId,
    instance: ids.ImageId,
    base: ids.ImageId,
    cut: geometry.Geometry,
    number: int = 1,
) -> manifest.Subject:
    """Return the subject of a checkpoint's manifest.

    :param disk: its name in vaults
    """
    crash, unknown = manifest.Consistency.CRASH, chunk_map.UNKNOWN_OS_HASH
    return manifest.Subject(disk, instance, "p", base, unknown, cut, number, crash, number)


class StoredCheckpoint:
    """A checkpoint: its sealed manifest, and its sealed chunks by name."""

    def __init__(
        self,
        image: ids.ImageId,
        cut: geometry.Geometry,
        chunks: dict[int, bytes],
        os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    ) -> None:
        seal = checkpoint_encryption.Seal(KEY)
        names = {chunk_no: seal.chunk_name(plain) for chunk_no, plain in sorted(chunks.items())}
        self.chunks = {
            name: seal.close(name, chunks[chunk_no])
            for chunk_no, name in names.items()
            if name != ids.ZERO_CID
        }
        subject = manifest.Subject(
            VAULT_DISK,
            INSTANCE,
            "a-project",
            image,
            os_hash,
            cut,
            1_800_000_000_000,
            manifest.Consistency.CRASH,
            1,
        )
        entries = (manifest.Entry(*entry) for entry in names.items())
        self.manifest = seal.close_manifest(manifest.build(subject, entries))
        self.image = image

    def recovery(self, **changed: object) -> restore_record.RestoreRecord:
        """Return the restore record that an agent receives."""
        reported = {
            "checkpoint_id": str(uuid.UUID(int=7)),
            "instance_id": INSTANCE,
            "image_id": self.image,
            "owner": OWNER,
            "vault_disk": VAULT_DISK,
            "manifest_name": checkpoint_encryption.manifest_name(self.manifest).hex(),
            "holders": [("h2", "10.0.0.2:7205"), ("h3", "10.0.0.3:7205")],
            "key": KEY.hex(),
        }
        return restore_record.restore_record_of(**{**reported, **changed})


class Link:
    """A client of vaults without a network.

    :param kept: the checkpoint in all vaults
    """

    def __init__(self, kept: StoredCheckpoint, deadline_s: float = 5.0) -> None:
        self.deadline_s = deadline_s
        self.times = checkpoint_client.ResponseTimes()
        self.asked: list[tuple[str, str]] = []
        self.faults: dict[str, Exception | Callable[[bytes], bytes]] = {}
        """Faults by a vault's address: an exception, or a change of its response."""
        self.things = {
            vault_paths.chunk(OWNER, VAULT_DISK, name): data for name, data in kept.chunks.items()
        }
        name = checkpoint_encryption.manifest_name(kept.manifest)
        self.things[vault_paths.manifest(OWNER, VAULT_DISK, name)] = kept.manifest

    def check_credentials(self) -> None:
        """Accept this host's credentials."""

    async def get(self, url: str, limit_bytes: int) -> bytes:
        """Return an object of a vault."""
        address, _, path = url.removeprefix("https://").partition("/")
        path = f"/{path}"
        self.asked.append((address, path))
        fault = self.faults.get(address)
        if isinstance(fault, Exception):
            raise fault
        if path not in self.things:
            raise errors.ChunkMissing(path, address, "it is not stored here")
        data = self.things[path]
        assert len(data) <= limit_bytes
        return fault(data) if fault else data

    async def in_thread(self, work: Callable[[bytes, str], T], sealed: bytes, where: str) -> T:
        """Call ``work`` in this task."""
        return work(sealed, where)

    async def aclose(self) -> None:
        """Do nothing."""
