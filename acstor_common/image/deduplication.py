# SPDX-License-Identifier: Apache-2.0
"""Scope of deduplication: among whom the same bytes have the same name.

A plain CID lets any tenant find out whether somebody's image has bytes that he can
guess: his image with them is served from a cache (Harnik et al. 2010, "Side channels
in cloud services: deduplication in cloud storage").  So the chunks of images that not
everybody may read are named with a key of their project, as in convergent encryption
with a salt for each tenant (Storer et al. 2008, "Secure data deduplication").

A chunk has a name that others know only if they may read that very chunk.  Those are
the chunks of images that everybody may read, and those that an image has, at the same
place, from an image that its owner may read.  At the same place: otherwise whoever
offers an image to boot from could fill it with guesses and recognise them in the
snapshots of others, wherever the guest has put them.
"""

import enum
from collections.abc import Collection

import blake3

from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.model import ids

Data = bytes | bytearray | memoryview

SECRET_BYTES = 32
BASE_IMAGE = "base_image_ref"
"""Property in which Nova names the image that a snapshot's server was made from: of a snapshot's
snapshot the first one.  A tenant may write it, too, so it proves nothing."""
OPEN_VISIBILITIES = frozenset({"public", "community"})
_CONTEXT = "acstor 2026-11 scope of deduplication: key of a project"


class DedupScope(enum.StrEnum):
    """Among whom private images share chunks; the value of the option ``dedup_scope``."""

    CLOUD = "cloud"
    PROJECT = "project"


def key_of(secret: bytes, project_id: str) -> ids.ScopeKey:
    """Return the key of a project's scope.

    :param secret: of the cloud, SECRET_BYTES long
    :param project_id: empty for images that nobody owns, which are a scope of their own
    :raises ValueError: the secret is none
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {SECRET_BYTES} bytes is needed, not of {len(secret)}")
    material = secret + project_id.encode()
    return ids.ScopeKey(blake3.blake3(material, derive_key_context=_CONTEXT).digest())


def is_open(image: image_record.Record) -> bool:
    """Say whether every project may read an image, so that its names need no key.

    >>> is_open({"visibility": "community"}), is_open({"visibility": "shared"}), is_open({})
    (True, False, False)
    """
    return image_record.text_of(image, "visibility") in OPEN_VISIBILITIES


def scope_of(image: image_record.Record, dedup_scope: DedupScope) -> DedupScope:
    """Return the scope in which the chunks of an image are to be named.

    A shared image keeps the scope of its owner, whoever its members are: they read it by its own
    chunk map.  Glance's default visibility is ``shared`` without members, which is private.
    """
    return DedupScope.CLOUD if is_open(image) else dedup_scope


def may_read(project_id: str, image: image_record.Record, members: Collection[str] = ()) -> bool:
    """Say whether a project may read an image.

    :param members: the projects that a ``shared`` image is shared with, whether they accepted it
        or not: Glance lets all of them read it
    """
    if is_open(image):
        return True
    if not project_id:
        return False
    is_shared = image_record.text_of(image, "visibility") == "shared"
    return image_record.text_of(image, "owner") == project_id or (
        is_shared and project_id in members
    )


class Naming:
    """Names the chunks of one image.

    :param own: key of the image's own scope; None: names are plain
    :param base: chunk map of what the image was made from, which its owner may read
    """

    def __init__(
        self, own: ids.ScopeKey | None = None, base: chunk_map.ChunkMap | None = None
    ) -> None:
        self._own, self._base = own, base
        inherited = base.scope_keys if base is not None else ()
        keys = dict.fromkeys((own, *inherited) if own is not None else inherited)
        self.scope_keys: chunk_map.ScopeKeys = tuple(keys)[: chunk_map.MAX_SCOPE_KEYS]
        """What the image's chunk map has to hold; the scopes that came first are left out when
        there are too many, and their names not used."""

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that are others if any chunk may get another name; they tell no key."""
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


PLAIN = Naming()
"""Every chunk has a plain CID."""
