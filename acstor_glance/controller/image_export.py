# SPDX-License-Identifier: Apache-2.0
"""Exports images into a folder for the sources ``file`` and ``http``; the chunk map is last.

Every name is a complete verified file.  Only its owner and group may read it: the folder has images
of all tenants.
"""

import enum
import hashlib
import logging
import pathlib
from collections.abc import Collection
from collections.abc import Iterator

from acstor_common.formats import boot_frames
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes
from acstor_glance.prepare import image_file
from acstor_glance.prepare import image_preparer

LOG = logging.getLogger(__name__)

IMAGE_ENDINGS = {disk_format: f".{disk_format}" for disk_format in image_record.SERVED_DISK_FORMATS}
ENDINGS = {artefacts.Kind.BOOT_IMAGE: ".acboot", artefacts.Kind.CHUNK_MAP: ".acmap"}
"""In the order of writing."""
MODE = 0o640


class ExportOutcome(enum.StrEnum):
    """Result of the export of an image."""

    EXPORTED = "exported"
    PRESENT = "present"  # was complete
    UNPREPARED = "unprepared"  # no chunk map, or not served


def export(
    images: glance_client.GlanceClient,
    image: image_record.Image,
    folder: pathlib.Path,
    progress: image_preparer.Progress = lambda done_bytes: None,
) -> ExportOutcome:
    """Export an image and its artefacts into ``folder``, where they are missing.

    :raises errors.Unusable: the image's bytes do not have Glance's hash
    :raises errors.FormatError: an artefact is damaged
    """
    if image_record.why_not_served(image):
        return ExportOutcome.UNPREPARED
    found = {kind: images.artefact_of(image, kind) for kind in ENDINGS}
    if found[artefacts.Kind.CHUNK_MAP] is None:
        return ExportOutcome.UNPREPARED
    stem = folder / image.id
    outcome = ExportOutcome.PRESENT
    stored = stored_bytes.find_stored_bytes(images, image)
    disk_format = stored.image.disk_format
    path = stem.with_suffix(IMAGE_ENDINGS[disk_format])
    if not path.exists():
        _write_image(images, stored, path, progress)
        outcome = ExportOutcome.EXPORTED
    read = {kind: _read(images, artefact.id) for kind, artefact in found.items() if artefact}
    image_map = artefacts.parse_chunk_map(stored.image, read[artefacts.Kind.CHUNK_MAP])
    if raw := read.get(artefacts.Kind.BOOT_IMAGE):
        boot_frames.check_boot_image([raw], f"boot image of image {image.id}", image_map.scope_keys)
    for kind, raw in read.items():
        if _write_artefact(raw, stem.with_suffix(ENDINGS[kind])):
            outcome = ExportOutcome.EXPORTED
    return outcome


def remove_unserved(folder: pathlib.Path, served: Collection[str]) -> list[str]:
    """Delete files of images that are not in ``served``; return the images' IDs."""
    removed = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (*IMAGE_ENDINGS.values(), *ENDINGS.values()) or path.stem in served:
            continue
        try:
            removed.append(str(ids.parse_image_id(path.stem)))
        except ValueError:
            continue
        path.unlink()
    return sorted(set(removed))


def _write_image(
    images: glance_client.GlanceClient,
    stored: stored_bytes.StoredBytes,
    path: pathlib.Path,
    progress: image_preparer.Progress,
) -> None:
    os_hash = stored.os_hash
    hasher = hashlib.new(os_hash.algo)
    atomic_file.remove_leftovers(path.parent, path.name)
    with (
        atomic_file.atomic_write(path, MODE) as file,
        images.open_image_data(stored.glance_id) as pieces,
    ):
        image_file.write_sparse(file, _hashed(pieces, hasher, progress))
        if hasher.digest() != os_hash.value:
            raise image_file.hash_mismatch(f"image {stored.image.id}", os_hash)


def _hashed(
    pieces: Iterator[bytes], hasher: "hashlib._Hash", progress: image_preparer.Progress
) -> Iterator[bytes]:
    done_bytes = 0
    for piece in pieces:
        hasher.update(piece)
        done_bytes += len(piece)
        yield piece
        progress(done_bytes)


def _read(images: glance_client.GlanceClient, artefact_id: str) -> bytes:
    with images.open_image_data(artefact_id) as pieces:
        return b"".join(pieces)


def _write_artefact(raw: bytes, path: pathlib.Path) -> bool:
    if path.exists() and path.read_bytes() == raw:
        return False
    atomic_file.remove_leftovers(path.parent, path.name)
    with atomic_file.atomic_write(path, MODE) as file:
        file.write(raw)
    return True
