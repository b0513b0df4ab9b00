# SPDX-License-Identifier: Apache-2.0
"""A chunk map of acstor-prehash for a qcow2 file lets an agent read the bytes that QEMU reads."""

import pathlib
import random
import uuid

import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_agent.sources.wrappers import layout_source
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.cmd import prehash
from tests.fakes import qcow2_corpus

KEY = ids.ScopeKey(bytes(range(32)))

pytestmark = pytest.mark.skipif(
    not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"
)


def prepared(variant: qcow2_corpus.Variant, folder: pathlib.Path, chunk_size: str) -> ids.ImageId:
    """Make a qcow2 file with its chunk map, as an operator does, in a folder for images."""
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    image = variant.make(folder).rename(folder / f"{image_id}.qcow2")
    key_file = folder / "key"
    key_file.touch(0o600)
    key_file.write_text(KEY.hex())
    words = [image, "--quiet", "--chunk-size", chunk_size, "--scope-key-file", key_file]
    assert prehash.main([str(word) for word in words]) == 0
    return image_id


def pieces_of(found: chunk_map.ChunkMap) -> list[base.BlobPiece]:
    """Return all chunks of an image with their expected content, including zeros."""
    cut = found.geometry
    pieces = []
    for number in range(len(found)):
        at = number * cut.chunk_bytes
        length = min(cut.chunk_bytes, cut.size_bytes - at)
        content = None if found.is_zero(number) else found.content_of(number)
        pieces.append(base.BlobPiece(at, length, content))
    return pieces


async def read(
    source: base.Source, image_id: ids.ImageId, pieces: list[base.BlobPiece]
) -> list[bytes]:
    """Return the bytes of each piece; fail if one is missing or delivered twice."""
    reported: list[tuple[int, base.Outcome]] = []
    await source.read_pieces(
        base.PieceRequest(base.Blob(image_id, base.BlobKind.IMAGE), pieces, reported.extend)
    )
    assert sorted(number for number, _ in reported) == list(range(len(pieces)))
    outcomes = dict(reported)
    assert not [one for one in outcomes.values() if isinstance(one, Exception)]
    return [bytes(outcomes[number]) for number in range(len(pieces))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=variant.name)
        for variant in qcow2_corpus.variants()
        if not variant.has_subclusters and variant.size_bytes
    ],
)
async def test_agent_reads_with_the_map_of_prehash_the_disk_of_qemu(
    tmp_path: pathlib.Path, nursery: trio.Nursery, variant: qcow2_corpus.Variant
) -> None:
    dice = random.Random(variant.name)
    image_id = prepared(variant, tmp_path, dice.choice(("16K", "64K", "1M")))
    raw = qcow2_corpus.raw_bytes(tmp_path / f"{image_id}.qcow2")
    found = chunk_map.ChunkMap.parse((tmp_path / f"{image_id}.acmap").read_bytes(), "map")
    source = layout_source.LayoutSource(
        file.FileSource(str(tmp_path)),
        lambda image: found.layout if image == image_id else None,
        nursery,
    )
    blob = base.Blob(image_id, base.BlobKind.IMAGE)
    assert await source.size_bytes(blob) == found.geometry.size_bytes == len(raw)
    pieces = pieces_of(found)
    assert b"".join(await read(source, image_id, pieces)) == raw
    shuffled = dice.sample(pieces, len(pieces))
    for piece, data in zip(shuffled, await read(source, image_id, shuffled), strict=True):
        assert data == raw[piece.offset : piece.offset + piece.length]
        if not any(data):
            assert piece.content is None, "a chunk of zeros is known as such"
    for _ in range(20 if raw else 0):
        at = dice.randrange(len(raw))
        length = min(dice.choice((1, 511, 4096, 100_000, geometry.MIB)), len(raw) - at)
        assert await source.read(blob, at, length) == raw[at : at + length]
