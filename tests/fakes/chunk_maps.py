# SPDX-License-Identifier: Apache-2.0
"""Chunk maps of generated images."""

from collections.abc import Iterable

from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids


def made(
    image_id: ids.ImageId,
    cut: geometry.Geometry,
    cids: Iterable[bytes],
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    scope_keys: chunk_map.ScopeKeys = (),
    stored: layout.StoredFile | None = None,
    entries: Iterable[bytes] = (),
    run_contents: int = chunk_map_writer.RUN_CONTENTS,
) -> bytes:
    """Return an encoded chunk map; see :func:`chunk_map_writer.write_map`.

    :param stored: the stored file; None: it is raw
    """
    stored = stored or layout.raw_file(cut.size_bytes)
    subject = chunk_map.Subject(image_id, cut, os_hash, scope_keys, stored)
    parts = chunk_map_writer.write_map(subject, cids, entries, run_contents=run_contents)
    return b"".join(parts)
