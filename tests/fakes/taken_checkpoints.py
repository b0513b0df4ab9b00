# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of a disk in real vaults, made by the library alone."""

import pathlib
from collections.abc import Sequence

from acstor_checkpoint.vault_protocol import object_names
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest as manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from tests.lab import vaults

KEY = bytes(range(1, 33))


class TakenCheckpoint:
    """The first checkpoint of a disk.

    :param owner: the host that took it
    :param changed: the chunks that differ from the image
    """

    def __init__(
        self,
        owner: vaults.Vault,
        instance_id: str,
        image_id: str,
        cut: geometry.Geometry,
        changed: dict[int, bytes],
        project_id: str = "a-project",
    ) -> None:
        self.owner, self.disk = owner, ids.parse_image_id(instance_id)
        seal = checkpoint_encryption.Seal(KEY)
        entries = [
            manifest.Entry(n, seal.chunk_name(plain)) for n, plain in sorted(changed.items())
        ]
        self.subject = manifest.Subject(
            self.disk,
            ids.parse_image_id(instance_id),
            project_id,
            ids.parse_image_id(image_id),
            chunk_map.UNKNOWN_OS_HASH,
            cut,
            1_800_000_000_000,
            manifest.Consistency.CRASH,
            1,
        )
        self.manifest = seal.close_manifest(manifest.build(self.subject, entries))
        self.chunks = [
            object_names.SealedChunk(name, seal.close(name, changed[n]))
            for n, name in entries
            if name != ids.ZERO_CID
        ]

    @property
    def manifest_name(self) -> str:
        """The name of the sealed manifest."""
        return checkpoint_encryption.manifest_name(self.manifest).hex()

    def put(self, holders: Sequence[vaults.Vault]) -> None:
        """Store it in vaults."""
        for holder in holders:
            with self.owner.client(holder) as client:
                client.put(object_names.VaultDisk(self.owner.name, self.disk), self.chunks)
                client.put_manifest(
                    object_names.VaultDisk(self.owner.name, self.disk), self.manifest
                )

    def reported(
        self, checkpoint_id: str, holders: Sequence[vaults.Vault]
    ) -> messages.RegisteredCheckpoint:
        """Return its registration by its owner at the decision service."""
        subject = self.subject
        return messages.RegisteredCheckpoint(
            checkpoint_id=checkpoint_id,
            host=self.owner.name,
            instance_id=subject.instance,
            project_id=subject.project,
            vault_disk=self.disk,
            image_id=subject.base,
            taken_ms=subject.taken_ms,
            consistency="crash",
            number=subject.number,
            size_bytes=subject.cut.size_bytes,
            changed_bytes=len(self.chunks) * subject.cut.chunk_bytes,
            sent_bytes=sum(len(chunk.data) for chunk in self.chunks),
            manifest_name=self.manifest_name,
            holders=tuple(messages.RegisteredHolder(one.name, address_of(one)) for one in holders),
            key=KEY.hex(),
            sent_s=subject.taken_ms / 1000,
        )


def address_of(vault: vaults.Vault) -> str:
    """Return a vault's address."""
    return f"127.0.0.1:{vault.port}"


def changed_chunks(now: pathlib.Path, image: pathlib.Path, chunk_bytes: int) -> dict[int, bytes]:
    """Return the chunks of a raw disk that differ from its image of equal length."""
    is_now, was = now.read_bytes(), image.read_bytes()
    starts = range(0, len(is_now), chunk_bytes)
    return {
        start // chunk_bytes: is_now[start : start + chunk_bytes]
        for start in starts
        if is_now[start : start + chunk_bytes] != was[start : start + chunk_bytes]
    }
