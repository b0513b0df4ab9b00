# SPDX-License-Identifier: Apache-2.0
"""The qcow2 file of a checkpoint: computed tables, with chunks as data clusters.

Ranges without a chunk come from the raw backing file, the image's mirror. Guest bytes are only in
data clusters, so they are never parsed as metadata.
"""

import array
from collections.abc import Iterator
from typing import Final

from acstor_common import errors
from acstor_common.disks import qcow2_header
from acstor_common.disks import qcow2_writer
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import layout
from acstor_common.model import ids

MAX_CLUSTER_BYTES: Final = 1 << qcow2_header.MAX_CLUSTER_BITS
HEAD_BYTES: Final = 32
_AT_SIZE: Final = 24


def cluster_bytes(manifest: checkpoint_manifest.Manifest) -> int:
    """Return the cluster size: a chunk, or half of one if it exceeds qcow2's limit."""
    return min(manifest.subject.cut.chunk_bytes, MAX_CLUSTER_BYTES)


def data_clusters(manifest: checkpoint_manifest.Manifest) -> "array.array[int]":
    """Return the disk cluster of each data cluster of the file."""
    found = array.array("Q")
    size = cluster_bytes(manifest)
    for run in _runs(manifest):
        if not run.is_zero:
            found.extend(range(run.at // size, (run.at + run.length) // size))
    return found


def plan(manifest: checkpoint_manifest.Manifest, backing: str) -> qcow2_writer.Plan:
    """Return the layout of the file."""
    what = "the disk of a checkpoint"
    if not backing.startswith("/") or {"\0", "\n"} & set(backing):
        raise errors.Unusable(what, f"its backing file {backing[:80]!r} is not an absolute path")
    try:
        return qcow2_writer.Plan(
            manifest.subject.cut.size_bytes,
            cluster_bytes(manifest),
            layout.Codec.STORED,
            lambda: _runs(manifest),
            backing,
        )
    except ValueError as e:
        raise errors.Unusable(what, str(e)) from e


def disk_bytes(head: bytes) -> int:
    """Return the size of the disk from the first HEAD_BYTES of a file."""
    return int.from_bytes(head[_AT_SIZE:HEAD_BYTES])


def _runs(manifest: checkpoint_manifest.Manifest) -> Iterator[qcow2_writer.DiskRun]:
    cut, size = manifest.subject.cut, cluster_bytes(manifest)
    for chunk_no, name in manifest:
        length = -(-cut.chunk_length(chunk_no) // size) * size
        is_zero = name == ids.ZERO_CID
        yield qcow2_writer.DiskRun(cut.chunk_offset(chunk_no), length, is_zero=is_zero)
