# SPDX-License-Identifier: Apache-2.0
"""Verifies the artefacts of an image in Glance, without changes."""

import dataclasses
import hashlib
import io
import tempfile

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_glance import mapped_file
from acstor_glance.boot import boot_builder
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import service_hashing
from acstor_glance.prepare import stream_prehash

CHUNK_MAP, BOOT_IMAGE = artefacts.Kind.CHUNK_MAP, artefacts.Kind.BOOT_IMAGE


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for one image; ``fault`` is empty if its artefacts are valid."""

    image_id: str
    state: str
    fault: str
    bad_boot_image: str = ""


def verify_image(
    images: glance_client.GlanceClient,
    image: image_record.Image,
    *,
    is_thorough: bool = False,
    progress: image_preparer.Progress = lambda done_bytes: None,
) -> Verdict:
    """Check the artefacts of one image; ``is_thorough``: read it and compare CIDs."""
    state = artefacts.state_of(image)
    why_not = image_record.why_not_served(image)
    fault, bad = ("", "") if why_not else _fault(images, image, is_thorough, progress)
    if why_not and any(kind.pointer in image.properties for kind in artefacts.Kind):
        fault = f"it points to artefacts, but {why_not}"
    refused = state is artefacts.State.REFUSED and CHUNK_MAP.pointer not in image.properties
    return Verdict(image.id, state.value if state else "none", "" if refused else fault, bad)


def _fault(
    images: glance_client.GlanceClient,
    image: image_record.Image,
    is_thorough: bool,
    progress: image_preparer.Progress,
) -> tuple[str, str]:
    try:
        for kind in artefacts.Kind:
            _check_pointer(images, image, kind)
        with tempfile.TemporaryFile() as stored:
            with images.open_image_data(image.text(CHUNK_MAP.pointer)) as pieces:
                stored.writelines(pieces)
            with mapped_file.map_file(stored) as view:
                read = stored_bytes.find_stored_bytes(images, image)
                image_map = artefacts.parse_chunk_map(read.image, view)
                if is_thorough:
                    _compare(images, read, image_map, stored, progress)
                _check_boot_image(images, image, image_map)
    except (errors.AcstorError, ValueError) as exc:
        if isinstance(exc, errors.ImageServiceUnreachable):
            raise
        is_boot_image = isinstance(exc, errors.BootImageFormatError)
        return str(exc), image.text(BOOT_IMAGE.pointer) if is_boot_image else ""
    return "", ""


def _check_boot_image(
    images: glance_client.GlanceClient, image: image_record.Image, image_map: chunk_map.ChunkMap
) -> None:
    artefact_id = artefacts.pointer_of(image, BOOT_IMAGE)
    if artefact_id is None:
        return
    what = f"boot image {artefact_id}"
    with images.open_image_data(artefact_id) as pieces:
        raw = b"".join(pieces)
    head = boot_frames.check_boot_image([raw], what, image_map.scope_keys)
    boot_builder.check_chunks(raw, head, image_map, what)


def _check_pointer(
    images: glance_client.GlanceClient, image: image_record.Image, kind: artefacts.Kind
) -> None:
    pointer = artefacts.pointer_of(image, kind)
    if pointer is None:
        if kind is CHUNK_MAP or kind.pointer in image.properties:
            raise errors.Unusable(f"{kind.pointer}", "it names no artefact")
        return
    version = glance_client.FORMAT_VERSIONS[kind]
    artefacts.check_belongs(image, images.get_image(pointer), kind, images.project_id, version)


def _compare(
    images: glance_client.GlanceClient,
    read: stored_bytes.StoredBytes,
    image_map: chunk_map.ChunkMap,
    stored: io.BufferedIOBase,
    progress: image_preparer.Progress,
) -> None:
    """Raise if the image's bytes, named as in the stored map, give another map."""
    naming = deduplication.Naming(next(iter(image_map.scope_keys), None), image_map)
    chunk_bytes = image_map.geometry.chunk_bytes
    with tempfile.TemporaryFile() as fresh, images.open_image_data(read.glance_id) as pieces:
        hashing = service_hashing.ServiceHashing(chunk_bytes, naming, progress)
        stream_prehash.write_map(read.image, pieces, fresh, hashing, bytes_hash=read.other_hash)
        for file in (fresh, stored):
            file.seek(0)
        digests = {hashlib.file_digest(file, "sha256").digest() for file in (fresh, stored)}
        if len(digests) != 1:
            raise errors.Unusable(
                f"chunk map of image {read.image.id}", "differs from the one of its data"
            )
