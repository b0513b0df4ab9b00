# SPDX-License-Identifier: Apache-2.0
"""Chunk maps of images that tests make up."""

from collections.abc import Iterable

from acstor_common import chunk_map
from acstor_common import geometry
from acstor_common import ids
from acstor_common import layout
from acstor_common import map_builder


def made(
    image_id: ids.ImageId,
    cut: geometry.Geometry,
    cids: Iterable[bytes],
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    scope_keys: chunk_map.ScopeKeys = (),
    stored: layout.Stored | None = None,
    entries: Iterable[bytes] = (),
) -> bytes:
    """Return a chunk map; see :func:`map_builder.parts`.

    :param stored: the stored file; None: it is raw
    """
    stored = stored or layout.raw(cut.size_bytes)
    subject = chunk_map.Subject(image_id, cut, os_hash, scope_keys, stored)
    return b"".join(map_builder.parts(subject, cids, entries))
