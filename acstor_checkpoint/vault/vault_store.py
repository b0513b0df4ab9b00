# SPDX-License-Identifier: Apache-2.0
"""Storage of a vault: sealed chunks and manifests of other hosts' disks.

Chunks are ``<folder>/<owner>/<disk>/<first byte of the name>/<name>``, manifests
``<folder>/<owner>/<disk>/manifests/<name>``, each followed by the BLAKE3 of its bytes.  There is no
index: the files are the state, also after a kill; a file gets its name after its data is durable.
"""

import contextlib
import itertools
import logging
import os
import pathlib
import threading
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import IO
from typing import Final

from acstor_checkpoint.vault import connection_fencing
from acstor_checkpoint.vault import group_sync
from acstor_checkpoint.vault import lookup_rate
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_files
from acstor_checkpoint.vault import vault_health
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

MAX_REMOVED: Final = 5000  # per request: 20 s on a busy disk
_AT_ONCE: Final = 64  # objects handled while a new connection waits


class StoredObject:
    """An open, verified object with ``length`` bytes of data."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self.length = file, length

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield its data in pieces."""
        self._file.seek(0)
        yield from vault_files.pieces_of(self._file, self.length)


class VaultStore:
    """Storage in a locked folder; thread-safe; methods raise OSError if the disk fails."""

    def __init__(self, folder: pathlib.Path, limits: quota.VaultLimits, host: ids.HostId) -> None:
        self.folder = folder
        self.quota = quota.Quota(limits, host)
        self.lookup_rate = lookup_rate.LookupRate()
        self.corrupt_files = 0  #: corrupt files since the start
        self._numbers = itertools.count()
        self._folders_lock = threading.RLock()
        self._fencing = connection_fencing.ConnectionFencing()
        self.group_sync = group_sync.GroupSync(folder)
        self.unsynced = group_sync.UnsyncedLimit()
        try:
            self.group_sync.wait_synced()  # names that a killed process gave may not be durable
            self._count_all()
        except OSError:
            self.close()
            raise
        self.health = vault_health.VaultHealth(self.quota, self.group_sync)

    def _count_all(self) -> None:
        for owner in vault_files.owners_in(self.folder):
            self.quota.count_existing(owner, quota.BLOCK_BYTES)
            for disk in vault_files.disks_in(self.folder / owner):
                for size_bytes in vault_files.sizes_in(self.folder / owner / disk):
                    self.quota.count_existing(owner, size_bytes)

    def close(self) -> None:
        """Close the folder's file system."""
        self.group_sync.close()

    @contextlib.contextmanager
    def open_batch(
        self, disk: object_names.VaultDisk, connection: int = 0, size_bytes: int = 0
    ) -> Iterator["Batch"]:
        """Yield a batch for a disk; its objects are durable when the block ends.

        :param connection: see :meth:`begin_connection`
        :param size_bytes: of its objects; it waits while the owner has too much unsynced data
        :raises errors.VaultFull: limit reached; nothing is stored
        """
        made = Batch(self, self._folder_for(disk), disk.owner)
        self.begin_connection(disk, connection)
        with self.unsynced.hold_unsynced(disk.owner, size_bytes):
            try:
                yield made
                made.commit_batch()
            finally:
                made.close()

    def begin_connection(self, disk: object_names.VaultDisk, connection: int) -> None:
        """Fence deletions of connections with lower numbers; delay a host above its rate."""
        self.lookup_rate.spend_lookups(disk.owner, lookup_rate.OF_REQUEST)
        if self._folder_of(disk).is_dir():
            self._fencing.begin_generation(disk, connection)

    def latest_connection(self, disk: object_names.VaultDisk) -> int:
        """Return the last connection of a disk since the start; 0: none."""
        return self._fencing.latest_connection(disk)

    def missing_chunks(self, disk: object_names.VaultDisk, asked: Sequence[bytes]) -> list[bytes]:
        """Return which chunks, at most object_names.MAX_NAMES, are missing."""
        self.lookup_rate.spend_lookups(disk.owner, len(asked))
        folder = str(self._folder_of(disk))
        return [name for name in asked if not os.path.exists(vault_files.chunk_path(folder, name))]

    @contextlib.contextmanager
    def open_object(
        self, disk: object_names.VaultDisk, kind: object_names.ObjectKind, name: bytes
    ) -> Iterator[StoredObject]:
        """Yield a verified object, or raise ChunkMissing; ChunkInvalid: corrupt, and removed."""
        path = vault_files.path_of(self._folder_of(disk), kind, name)
        what = f"{kind} {name.hex()} of {disk.disk}"
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise errors.ChunkMissing(what, str(path)) from None
        with file:
            length = vault_files.checked_length(file)
            if length is None:
                LOG.error("%s: corrupt; removed", path)
                self.remove(disk, kind, name)
                raise errors.ChunkInvalid(what, str(path), "its data is corrupt")
            yield StoredObject(file, length)

    def remove(
        self, disk: object_names.VaultDisk, kind: object_names.ObjectKind, name: bytes
    ) -> int:
        """Remove a corrupt object; return 1, or 0 if it does not exist."""
        path = vault_files.path_of(self._folder_of(disk), kind, name)
        gone = self._remove(disk.owner, path)
        self.corrupt_files += gone
        return gone

    def list_manifests(self, disk: object_names.VaultDisk) -> list[bytes]:
        """Return the names of a disk's manifests, ascending."""
        return sorted(
            vault_files.names_in(self._folder_of(disk) / object_names.ObjectKind.MANIFEST)
        )

    def list_disks(self, owner: ids.HostId) -> list[ids.ImageId]:
        """Return the disks of a host."""
        return sorted(vault_files.disks_in(self.folder / owner))

    def iter_all(self) -> Iterator[tuple[object_names.VaultDisk, object_names.ObjectKind, bytes]]:
        """Yield all objects of readable folders, maybe without those that change meanwhile."""
        for owner in vault_files.owners_in(self.folder):
            for disk in map(
                object_names.VaultDisk, itertools.repeat(owner), self.list_disks(owner)
            ):
                for part in vault_files.parts_of(self._folder_of(disk)):
                    is_shard = part.name != object_names.ObjectKind.MANIFEST
                    kind = (
                        object_names.ObjectKind.CHUNK
                        if is_shard
                        else object_names.ObjectKind.MANIFEST
                    )
                    yield from ((disk, kind, name) for name in _listed(part))

    def retain_only(
        self,
        disk: object_names.VaultDisk,
        retained: object_names.NameList,
        connection: int = 0,  # see :meth:`begin_connection`
        within: range = object_names.ALL_FIRST_BYTES,  # first bytes of names to delete
        limit: int = MAX_REMOVED,  # if it returns this, there may be more
    ) -> int:
        """Delete a disk's objects except for ``retained``; return how many.

        Objects stored meanwhile over the same connection may be deleted, too.

        :raises errors.VaultRefused: fenced by a later connection
        """
        gone = 0
        self.lookup_rate.spend_lookups(disk.owner, len(retained))
        for part in vault_files.parts_of(self._folder_of(disk)):
            is_shard = part.name != object_names.ObjectKind.MANIFEST
            if is_shard and int(part.name, 16) not in within:
                continue
            staying = retained.names_with_first_byte(int(part.name, 16)) if is_shard else retained
            found = (name for name in vault_files.names_in(part) if name[0] in within)
            for some in _dozens(found):
                self.lookup_rate.spend_lookups(disk.owner, len(some))
                with self._fencing.hold_generation(disk, connection):
                    for name in some:
                        if gone >= limit:
                            return gone
                        if name not in staying:
                            gone += self._remove(disk.owner, os.path.join(part, name.hex()))
            self._remove_folder(disk.owner, part)
        return gone

    def delete_disk(self, disk: object_names.VaultDisk, connection: int = 0) -> int:
        """Delete a disk; return the number of objects as :meth:`retain_only`."""
        gone = self.retain_only(disk, object_names.NameList(b""), connection)
        folder = self._folder_of(disk)
        for empty in (folder, folder.parent):
            self._remove_folder(disk.owner, empty)
        if not folder.is_dir():
            self._fencing.forget_disk(disk)
        return gone

    def make_folder(self, owner: ids.HostId, folder: pathlib.Path) -> None:
        """Create a host's folder if it does not exist, or raise VaultFull."""
        if folder.is_dir():
            return
        with self._folders_lock:
            if folder.is_dir():
                return
            self.quota.reserve(owner, quota.BLOCK_BYTES)
            try:
                os.mkdir(folder, mode=0o700)
            except OSError:
                self.quota.release(owner, quota.BLOCK_BYTES)
                raise

    def next_path(self, folder: pathlib.Path) -> pathlib.Path:
        """Return a temporary path in the folder of a disk."""
        return folder / f"{atomic_file.INCOMING}{next(self._numbers)}"

    def _folder_of(self, disk: object_names.VaultDisk) -> pathlib.Path:
        return self.folder / disk.owner / disk.disk

    def _folder_for(self, disk: object_names.VaultDisk) -> pathlib.Path:
        folder = self._folder_of(disk)
        if folder.is_dir():
            return folder
        most = self.quota.limits.disks
        self.lookup_rate.spend_lookups(disk.owner, most)  # it lists all disks
        with self._folders_lock:
            if len(self.list_disks(disk.owner)) >= most:
                raise errors.VaultFull(
                    disk.owner, f"the limit of {most} disks of one host is reached"
                )
            self.make_folder(disk.owner, folder.parent)
            self.make_folder(disk.owner, folder)
        return folder

    def _remove_folder(self, owner: ids.HostId, folder: pathlib.Path) -> None:
        with self._folders_lock, contextlib.suppress(OSError):
            folder.rmdir()
            self.quota.release(owner, quota.BLOCK_BYTES)

    def _remove(self, owner: ids.HostId, path: str | pathlib.Path) -> int:
        try:
            size_bytes = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return 0
        self.quota.release(owner, size_bytes)
        return 1


def _listed(part: pathlib.Path) -> Iterator[bytes]:
    try:
        yield from vault_files.names_in(part)
    except OSError as e:
        LOG.error("%s", e)


def _dozens(found: Iterable[bytes]) -> Iterator[list[bytes]]:
    left = iter(found)
    while some := list(itertools.islice(left, _AT_ONCE)):
        yield some


class _Incoming:
    """A file without its final name."""

    def __init__(self, path: pathlib.Path, final: pathlib.Path, size_bytes: int) -> None:
        self.path, self.final, self.size_bytes = path, final, size_bytes
        self.is_kept = False


class Batch:
    """Objects of one disk, made durable together; a failed batch may leave some of them."""

    def __init__(self, vault: VaultStore, folder: pathlib.Path, owner: ids.HostId) -> None:
        self._vault, self._folder, self._owner = vault, folder, owner
        self._incoming: list[_Incoming] = []

    def add(
        self, kind: object_names.ObjectKind, name: bytes, length: int, pieces: vault_files.Pieces
    ) -> None:
        """Write an object of ``length`` bytes; ValueError for a wrong length or name."""
        final = vault_files.path_of(self._folder, kind, name)
        if final.exists():
            vault_files.discard(pieces, length)
            return
        is_manifest = kind is object_names.ObjectKind.MANIFEST
        if is_manifest:
            most = self._vault.quota.limits.manifests
            self._vault.lookup_rate.spend_lookups(self._owner, most)
            if len(list(vault_files.names_in(final.parent))) >= most:
                raise ValueError(f"the limit of {most} manifests of one disk is reached")
        self._vault.make_folder(self._owner, final.parent)
        size_bytes = length + vault_files.CHECKSUM_BYTES
        self._vault.quota.reserve(self._owner, size_bytes)
        incoming = _Incoming(self._vault.next_path(self._folder), final, size_bytes)
        self._incoming.append(incoming)
        vault_files.write(incoming.path, length, pieces, name if is_manifest else None)

    def commit_batch(self) -> None:
        """Sync the data, also of objects that existed before, link the names, sync again."""
        self._vault.group_sync.wait_synced()
        if not self._incoming:
            return
        for incoming in self._incoming:
            # retain_only() removes empty folders.
            self._vault.make_folder(self._owner, incoming.final.parent)
            with contextlib.suppress(FileExistsError):  # stored by another connection meanwhile
                os.link(incoming.path, incoming.final)
                incoming.is_kept = True
        self._vault.group_sync.wait_synced()

    def close(self) -> None:
        """Remove temporary files, and release the space of failed ones."""
        for incoming in self._incoming:
            try:
                incoming.path.unlink(missing_ok=True)
            except OSError as e:  # removed by the next start; it counts until then
                LOG.warning("%s", e)
                if incoming.is_kept:
                    self._vault.quota.count_existing(self._owner, incoming.size_bytes)
            else:
                if not incoming.is_kept:
                    self._vault.quota.release(self._owner, incoming.size_bytes)
