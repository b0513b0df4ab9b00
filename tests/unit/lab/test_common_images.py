# SPDX-License-Identifier: Apache-2.0
from acstor_common.model import geometry
from tests.lab import common_images

CHUNK = geometry.DEFAULT_CHUNK_BYTES

LISTING = """\
Filesystem type is: ef53
File size of common.tar.gz is 25178169 (6147 blocks of 4096 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..    6143:      34816..     40959:   6144:
   1:     6144..    6146:      34787..     34789:      3:      40960: last,eof
common.tar.gz: 2 extents found
"""


def test_extents_are_disk_offsets_in_file_order() -> None:
    assert common_images.extents(LISTING) == (
        (34816 * 4096, 6144 * 4096),
        (34787 * 4096, 3 * 4096),
    )


def test_common_chunks_are_found_at_any_chunk_aligned_offset() -> None:
    package = b"a" * CHUNK + b"b" * CHUNK
    first = package, [(0, 2 * CHUNK)]
    moved = bytes(CHUNK) + package, [(CHUNK, 2 * CHUNK)]
    shifted = bytes(4096) + package, [(4096, 2 * CHUNK)]
    assert common_images.common_share(first, moved) == 1.0
    assert common_images.common_share(first, shifted) == 0.0


def test_chunk_shared_with_another_file_counts_as_different() -> None:
    first = b"a" * CHUNK + b"b" * CHUNK, [(0, CHUNK + 4096)]
    second = b"a" * CHUNK + b"b" * 4096 + b"c" * (CHUNK - 4096), [(0, CHUNK + 4096)]
    assert common_images.common_share(first, second) == 0.5
