# SPDX-License-Identifier: Apache-2.0
"""Deduplication scopes: the images whose equal chunks have equal CIDs.

Plain CIDs let a tenant test whether some image contains guessed bytes: an own image with them comes
from a cache (Harnik et al. 2010, "Side channels in cloud services: deduplication in cloud
storage").  So the CIDs of private and shared images are keyed with their project's key (Storer et
al. 2008, "Secure data deduplication").

An image keeps the CID of its base's chunk at the same offset, if its owner may read the base.  At
other offsets a base's owner could fill it with guesses and find them in other tenants' snapshots.
"""

import enum
from collections.abc import Collection

import blake3

from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.image import image_record
from acstor_common.model import ids

Data = bytes | bytearray | memoryview

SECRET_BYTES = 32
BASE_IMAGE = "base_image_ref"
"""Nova's property with a snapshot's original image.

Snapshots of snapshots name the first image.  Untrusted: tenants may write it."""
OPEN_VISIBILITIES = frozenset({"public", "community"})
_CONTEXT = "acstor 2026-11 scope of deduplication: key of a project"


class DedupScope(enum.StrEnum):
    """Value of the option ``dedup_scope``: which private images share chunks."""

    CLOUD = "cloud"
    PROJECT = "project"


def key_of(secret: bytes, project_id: str) -> ids.ScopeKey:
    """Return the key of a project's scope ("": images without owner) under the cloud's secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {SECRET_BYTES} bytes is needed, not of {len(secret)}")
    material = secret + project_id.encode()
    return ids.ScopeKey(blake3.blake3(material, derive_key_context=_CONTEXT).digest())


def is_open(image: image_record.Image) -> bool:
    """Return whether every project may read an image, so that its CIDs are plain."""
    return image.visibility in OPEN_VISIBILITIES


def scope_of(image: image_record.Image, dedup_scope: DedupScope) -> DedupScope:
    """Return an image's scope; a shared image has its owner's, because members use its map."""
    return DedupScope.CLOUD if is_open(image) else dedup_scope


def may_read(project_id: str, image: image_record.Image, members: Collection[str] = ()) -> bool:
    """Return whether a project may read an image, shared with ``members`` (accepted or not)."""
    if is_open(image):
        return True
    if not project_id:
        return False
    is_shared = image.visibility == "shared"
    return image.owner == project_id or (is_shared and project_id in members)


class Naming:
    """Computes the CIDs of one image's chunks.

    :param own: key of the image's scope; None: CIDs are plain
    :param base: chunk map of the base image, which the owner may read
    """

    def __init__(
        self, own: ids.ScopeKey | None = None, base: chunk_map.ChunkMap | None = None
    ) -> None:
        self._own, self._base = own, base
        inherited = base.scope_keys if base is not None else ()
        keys = dict.fromkeys((own, *inherited) if own is not None else inherited)
        self.scope_keys: chunk_map.ScopeKeys = tuple(keys)[: chunk_map_header.MAX_SCOPE_KEYS]
        """Keys for the image's chunk map; surplus inherited keys are dropped."""

    @property
    def fingerprint(self) -> bytes:
        """Hash (32 bytes) of all that determines CIDs; does not reveal the keys."""
        base = self._base.checksum if self._base is not None else b""
        return blake3.blake3(b"".join(self.scope_keys) + base).digest()

    def cid_of(self, chunk_no: int, data: Data) -> ids.Cid:
        """Return the CID of a chunk that is not all zeros."""
        base = self._base
        if base is not None and chunk_no < len(base):
            cid = base.cid_of(chunk_no)
            if ids.Content(cid, self.scope_keys).matches_data(data):
                return cid
        return ids.cid_of(data, self._own)


PLAIN = Naming()  # computes plain CIDs
