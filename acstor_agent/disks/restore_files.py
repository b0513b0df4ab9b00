# SPDX-License-Identifier: Apache-2.0
"""The two files beside a restored disk, named by its ID: its restore record and sealed manifest.

They exist before and after the disk, which would show zeros without them. All functions block.
"""

import contextlib
import pathlib

from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_common import errors
from acstor_common.util import atomic_file

RECORD_ENDING = ".acrecovery"
MANIFEST_ENDING = ".acmanifest"  # sealed, as the holders have it


def _record_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    return folder / f"{disk_id}{RECORD_ENDING}"


def _manifest_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    return folder / f"{disk_id}{MANIFEST_ENDING}"


def write(folder: pathlib.Path, record: restore_record.RestoreRecord, sealed: bytes) -> None:
    """Write both files durably."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with atomic_file.atomic_write(_manifest_path(folder, record.checkpoint_id), 0o600) as file:
        file.write(sealed)
    _write_record(folder, record)


def _write_record(folder: pathlib.Path, record: restore_record.RestoreRecord) -> None:
    with atomic_file.atomic_write(_record_path(folder, record.checkpoint_id), 0o600) as file:
        file.write(restore_record.pack(record))


def is_restored(folder: pathlib.Path, disk_id: disk_header.DiskId) -> bool:
    """Return whether a disk was restored from a checkpoint, even if all chunks are here since."""
    return _record_path(folder, disk_id).exists()


def read(folder: pathlib.Path, disk_id: disk_header.DiskId) -> restore_record.RestoreRecord | None:
    """Return a disk's record, None if it was not restored; raise FormatError if it is damaged."""
    path = _record_path(folder, disk_id)
    try:
        with path.open("rb") as file:
            found = restore_record.unpack(file.read(restore_record.MAX_BYTES), str(path))
    except FileNotFoundError:
        return None
    if found.checkpoint_id != disk_id:
        raise errors.FormatError(str(path), 0, f"this is of checkpoint {found.checkpoint_id}")
    return found


def read_manifest(folder: pathlib.Path, disk_id: disk_header.DiskId) -> bytes:
    """Return the sealed manifest, or raise FormatError if it is missing."""
    path = _manifest_path(folder, disk_id)
    try:
        return path.read_bytes()
    except FileNotFoundError as e:
        raise errors.FormatError(str(path), 0, "the checkpoint's manifest is missing") from e


def mark_complete(folder: pathlib.Path, record: restore_record.RestoreRecord) -> None:
    """Record that all chunks are here: remove the key, the holders and the manifest."""
    _write_record(folder, record._replace(key=b"", holders=()))
    remove_manifest(folder, record.checkpoint_id)


def remove_manifest(folder: pathlib.Path, disk_id: disk_header.DiskId) -> None:
    """Delete the manifest of a disk that needs it no more."""
    _manifest_path(folder, disk_id).unlink(missing_ok=True)


def remove(folder: pathlib.Path, disk_id: disk_header.DiskId) -> None:
    """Delete both files, after the disk."""
    _record_path(folder, disk_id).unlink(missing_ok=True)
    remove_manifest(folder, disk_id)


def leftover_disk_ids(folder: pathlib.Path, state_ending: str) -> list[disk_header.DiskId]:
    """Return the IDs of files whose disk has no file ``<disk ID><state_ending>``."""
    found = set()
    for ending in (RECORD_ENDING, MANIFEST_ENDING):
        for path in folder.glob(f"*{ending}"):
            with contextlib.suppress(ValueError):
                found.add(disk_header.parse_disk_id(path.stem))
    return [
        disk_id for disk_id in sorted(found) if not (folder / f"{disk_id}{state_ending}").exists()
    ]
