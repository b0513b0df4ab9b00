# SPDX-License-Identifier: Apache-2.0
"""Streams images out of Glance into a folder that the sources ``file`` and ``http`` read.

For stores without range reads: one host streams each image once, for all.  The one
rule: a name in the folder stands for a whole file of the right bytes; the chunk map
comes last, so an image that has one there is complete.

The folder holds the bytes of every tenant's images: only its owner and group may
read what is in it.
"""

import enum
import hashlib
import logging
import os
import pathlib
from collections.abc import Collection

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes
from acstor_glance.prepare import image_preparer

LOG = logging.getLogger(__name__)

IMAGE_ENDINGS = {one: f".{one}" for one in image_record.SERVED_DISK_FORMATS}
ENDINGS = {artefacts.Kind.BOOT_IMAGE: ".acboot", artefacts.Kind.CHUNK_MAP: ".acmap"}
"""In the order in which they are written."""
MODE = 0o640


class ExportOutcome(enum.StrEnum):
    """What came of exporting an image."""

    EXPORTED = "exported"
    THERE = "there"  # all of it was there already
    UNPREPARED = "unprepared"  # it has no chunk map yet, or is not served


def export(
    images: glance_client.GlanceClient,
    image: image_record.Record,
    folder: pathlib.Path,
    progress: image_preparer.Progress = lambda done_bytes: None,
) -> ExportOutcome:
    """See to it that an image and its artefacts are in ``folder``.

    :raises errors.Unusable: its bytes are not those that Glance has a hash of
    :raises errors.FormatError: an artefact is damaged
    :raises errors.ImageServiceError: Glance does not do its part
    :raises OSError: the folder cannot be written
    """
    if image_record.why_not_served(image):
        return ExportOutcome.UNPREPARED
    found = {kind: images.artefact_of(image, kind) for kind in ENDINGS}
    if found[artefacts.Kind.CHUNK_MAP] is None:
        return ExportOutcome.UNPREPARED
    stem = folder / image_record.image_id_of(image)
    outcome = ExportOutcome.THERE
    stored = stored_bytes.find_stored_bytes(images, image)
    disk_format = image_record.text_of(stored.record, "disk_format")
    path = stem.with_suffix(IMAGE_ENDINGS[disk_format])
    if not path.exists():
        _write_image(images, stored, path, progress)
        outcome = ExportOutcome.EXPORTED
    read = {kind: _read(images, artefact["id"]) for kind, artefact in found.items() if artefact}
    image_map = artefacts.parse_chunk_map(stored.record, read[artefacts.Kind.CHUNK_MAP])
    if raw := read.get(artefacts.Kind.BOOT_IMAGE):
        boot_frames.check_boot_image(
            [raw], f"boot image of image {image['id']}", image_map.scope_keys
        )
    for kind, raw in read.items():
        if _write_artefact(raw, stem.with_suffix(ENDINGS[kind])):
            outcome = ExportOutcome.EXPORTED
    return outcome


def remove_unserved(folder: pathlib.Path, served: Collection[str]) -> list[str]:
    """Delete the files of images that are not among ``served``; return their ids.

    What is in the folder and is not named like an image stays.
    """
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
        for piece in pieces:
            hasher.update(piece)
            if any(piece):
                file.write(piece)
            else:
                file.seek(len(piece), os.SEEK_CUR)  # a hole
            progress(file.tell())
        file.truncate(file.tell())
        if hasher.digest() != os_hash.value:
            why = f"its data does not have the {os_hash.algo} that Glance says"
            raise errors.ContentMismatch(f"image {stored.record['id']}", why)


def _read(images: glance_client.GlanceClient, artefact_id: str) -> bytes:
    with images.open_image_data(artefact_id) as pieces:
        return b"".join(pieces)


def _write_artefact(raw: bytes, path: pathlib.Path) -> bool:
    """Write an artefact unless it is there already; say whether that was needed."""
    if path.exists() and path.read_bytes() == raw:
        return False
    with atomic_file.atomic_write(path, MODE) as file:
        file.write(raw)
    return True
