# SPDX-License-Identifier: Apache-2.0
"""State files of this host's disks and their last checkpoints.

``<folder>/<instance>/state.json``, with the sealed manifests beside it.  Resources are recorded
before they are created, so that they can be released after a kill.
"""

import logging
import os
import pathlib
import secrets
import shutil
import uuid
from collections.abc import Collection
from collections.abc import Iterator
from typing import Annotated

import msgspec

from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

VERSION = 1
_MAX_STATE_BYTES = 1 << 16
_MAX_BITMAPS = 1000
_STATE = "state.json"
_SUFFIX = ".manifest"
_DISTINCT = 4  # manifests assumed to have distinct names
_Bitmaps = Annotated[list[str], msgspec.Meta(max_length=_MAX_BITMAPS)]


class DiskState(msgspec.Struct, forbid_unknown_fields=True):
    """State of one disk."""

    version: int
    disk: str  # its ID in vaults; a new one if its image changes
    base: str
    key: text_constraints.Hex64
    chunk_bytes: int
    number: int = 0  # of the last started checkpoint
    bitmap: str = ""  # dirty bitmap since the last one; "": none
    manifest: str = ""  # name of the last one's manifest, in hex; "": none
    holders: list[str] = msgspec.field(default_factory=list)
    taken_ms: int = 0
    obsolete_bitmaps: _Bitmaps = msgspec.field(default_factory=list)
    may_be_frozen: bool = False  # an aborted checkpoint may have left file systems frozen
    is_partial: bool = False  # ``manifest`` is a partial capture, no checkpoint
    unread_bytes: int = 0  # of the last part
    stalled_parts: int = 0  # parts without progress since the last checkpoint
    may_lack_chunks: bool = False  # garbage collection may have deleted chunks of ``manifest``
    full_read_reason: str = ""  # of a full first part, for the record


_decoder = msgspec.json.Decoder(DiskState)


def new_state(base: ids.ImageId, chunk_bytes: int) -> DiskState:
    """Return the state of a disk without checkpoint."""
    key = secrets.token_bytes(checkpoint_encryption.KEY_BYTES).hex()
    return DiskState(VERSION, str(uuid.uuid4()), base, key, chunk_bytes)


class DiskStates:
    """State files of this host's disks; one thread per disk.

    The folder is created with mode 0700, because it has keys; this may raise OSError.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def list_instances(self) -> list[ids.ImageId]:
        """Return the instances with a state."""
        found = []
        for path in self._folder.iterdir():
            try:
                found.append(ids.parse_image_id(path.name))
            except ValueError:
                continue  # not a state
        return sorted(found)

    def load(self, instance: ids.ImageId) -> DiskState | None:
        """Return the state of a disk; None if missing or unreadable (logged)."""
        try:
            return self.read(instance)
        except OSError as e:
            LOG.warning("%s: %s; its next checkpoint is a full one", self._of(instance), e)
            return None

    def read(self, instance: ids.ImageId) -> DiskState | None:
        """Return the state of a disk; None if missing or malformed; OSError if unreadable now."""
        path = self._of(instance) / _STATE
        try:
            with path.open("rb") as file:
                state = _decoder.decode(file.read(_MAX_STATE_BYTES))
            ids.parse_image_id(state.disk), ids.parse_image_id(state.base)
        except FileNotFoundError:
            return None
        except (ValueError, msgspec.DecodeError) as e:
            LOG.warning("%s: %s; its next checkpoint is a full one", path, e)
            return None
        return state if state.version == VERSION else None

    def save(self, instance: ids.ImageId, state: DiskState) -> None:
        """Write the state durably, or raise Unusable."""
        folder = self._of(instance)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with atomic_file.atomic_write(folder / _STATE, 0o600) as file:
                file.write(msgspec.json.encode(state))
        except OSError as e:
            raise errors.Unusable(str(folder), str(e)) from e

    def save_manifest(self, instance: ids.ImageId, sealed: bytes | bytearray) -> str:
        """Write a sealed manifest; return its name, or raise Unusable."""
        name = checkpoint_encryption.manifest_name(sealed).hex()
        path = self._path(instance, name)
        try:
            with atomic_file.atomic_write(path, 0o600) as file:
                file.write(sealed)
        except OSError as e:
            raise errors.Unusable(str(path), str(e)) from e
        return name

    def read_manifest(
        self, instance: ids.ImageId, state: DiskState, name: str
    ) -> checkpoint_manifest.Manifest | None:
        """Return a local manifest; None if missing or damaged (logged)."""
        try:
            return self._manifest(instance, state, name)
        except errors.Unusable as e:
            LOG.warning("%s", e)
            return None

    def iter_needed(
        self,
        instance: ids.ImageId,
        state: DiskState,
        retained: Collection[str],
        names_at_once: int = checkpoint_manifest.NAMES_AT_ONCE,
    ) -> Iterator[object_names.RetainedNames]:
        """Yield, in parts, names of ``retained`` manifests and all chunks they refer to.

        Only one manifest and one part are in memory; parts grow if more than _DISTINCT manifests
        have few names in common.

        :raises errors.Unusable: a manifest is missing or damaged
        """
        counts = [self._count(instance, name) for name in retained]
        count = min(sum(counts), _DISTINCT * max(counts, default=0))
        for within in checkpoint_manifest.name_ranges(count, names_at_once):
            part = {name for name in map(bytes.fromhex, retained) if name[0] in within}
            for name in retained:
                part |= self._manifest(instance, state, name).names_within(within)
            yield object_names.RetainedNames(within, part)

    def _count(self, instance: ids.ImageId, name: str) -> int:
        path = self._path(instance, name)
        try:
            size_bytes = path.stat().st_size - checkpoint_manifest.HEADER_BYTES
            return size_bytes // checkpoint_manifest.ENTRY_BYTES
        except OSError as e:
            raise errors.Unusable(str(path), str(e)) from e

    def _manifest(
        self, instance: ids.ImageId, state: DiskState, name: str
    ) -> checkpoint_manifest.Manifest:
        path = self._path(instance, name)
        seal = checkpoint_encryption.Seal(bytes.fromhex(state.key))
        try:
            plain = seal.open_manifest_in_place(_read(path), checkpoint_manifest.MAX_BYTES)
            return checkpoint_manifest.Manifest.parse(plain, str(path))
        except (OSError, errors.NotAuthenticated, errors.FormatError) as e:
            raise errors.Unusable(str(path), str(e)) from e

    def retain_only(self, instance: ids.ImageId, retained: Collection[str]) -> None:
        """Delete all manifests but those in ``retained``."""
        atomic_file.remove_leftovers(self._of(instance))
        for path in self._of(instance).glob(f"*{_SUFFIX}"):
            if path.name.removesuffix(_SUFFIX) not in retained:
                path.unlink(missing_ok=True)

    def set_aside(self, instance: ids.ImageId) -> None:
        """Rename an unreadable state, so that the next checkpoint is a full one."""
        aside = self._folder / f"{instance}.unreadable"
        shutil.rmtree(aside, ignore_errors=True)
        self._of(instance).rename(aside)
        LOG.error("%s cannot be read and was renamed to %s", self._of(instance), aside.name)

    def delete_state(self, instance: ids.ImageId) -> None:
        """Delete the state of a disk."""
        shutil.rmtree(self._of(instance), ignore_errors=True)

    def _of(self, instance: ids.ImageId) -> pathlib.Path:
        return self._folder / instance

    def _path(self, instance: ids.ImageId, name: str) -> pathlib.Path:
        return self._of(instance) / f"{name}{_SUFFIX}"


def _read(path: pathlib.Path) -> bytearray:
    with path.open("rb") as file:
        data = bytearray(os.fstat(file.fileno()).st_size)
        del data[file.readinto(data) :]
    return data
