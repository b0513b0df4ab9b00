# SPDX-License-Identifier: Apache-2.0
"""The boot set is cached as frames of the boot image, as chunks of the image, or as both."""

from acstor_agent.core.boot import boot_set
from acstor_common.formats import boot_image
from acstor_common.model import geometry
from acstor_common.model import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = geometry.MIN_CHUNK_BYTES
CHUNKS = [bytes([n + 1]) * CHUNK for n in range(7)]
CIDS = [ids.cid_of(data) for data in CHUNKS]


def head(last=7 * CHUNK, of_profile=None):
    """Return the head of a boot image with frames of two chunks, one maybe a profile's."""
    cut = geometry.Geometry(last, CHUNK)
    writer = boot_image.Writer(boot_image.Binding(IMAGE, cut), 1, frame_bytes=2 * CHUNK)
    for chunk_no in (5, 3, 1, 0, 6):
        profile = ids.profile_key_of("db" if chunk_no == of_profile else "")
        writer.add(chunk_no, CHUNKS[chunk_no][: cut.chunk_length(chunk_no)], profile)
    return boot_image.parse_head(b"".join(writer.iter_parts()), "a boot image")


def count(made, cache, pause=lambda: None):
    return boot_set.count(made, CIDS.__getitem__, cache, pause)


def test_boot_set_bytes_cached_as_frame_and_chunk_count_once():
    made = head()
    frames = [frame.cid for frame in made.frames]
    assert count(made, set()) == (5 * CHUNK, 0)
    assert count(made, {frames[0]}) == (5 * CHUNK, 2 * CHUNK)
    assert count(made, {frames[0], CIDS[5], CIDS[3]}) == (5 * CHUNK, 2 * CHUNK)
    assert count(made, {CIDS[1], CIDS[6], CIDS[4]}) == (5 * CHUNK, 2 * CHUNK)
    assert count(made, {*frames}) == count(made, {*CIDS}) == (5 * CHUNK, 5 * CHUNK)


def test_chunks_of_profiles_are_not_part_of_the_boot_set():
    made = head(of_profile=6)
    assert count(made, {*CIDS}) == (4 * CHUNK, 4 * CHUNK)


def test_cached_bytes_never_exceed_the_boot_set():
    made = head(last=7 * CHUNK - 1000)  # the last chunk is short
    total_bytes = 5 * CHUNK - 1000
    assert count(made, {*CIDS}) == (total_bytes, total_bytes)


def test_long_boot_images_are_counted_with_pauses():
    made = head()
    frame = made.frames[0]
    frames = tuple(frame._replace(number=n) for n in range(3 * boot_set.FRAMES_IN_A_ROW))
    pauses = []
    parts = {ids.NO_PROFILE: range(2 * len(frames))}
    count(made._replace(frames=frames, parts=parts), set(), lambda: pauses.append(None))
    assert len(pauses) == 3
