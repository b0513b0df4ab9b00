# SPDX-License-Identifier: Apache-2.0
"""The demo's image server: a published image, its chunk map and boot image.

acstor's own commands make both from the server's file, as the services beside Glance do after an
upload; nothing is converted.
"""

import bisect
import dataclasses
import json
import pathlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from tests.lab import agents
from tests.lab import image_server
from tests.lab import runs

IMAGE_ID = "0b7c5d1e-2f63-4a87-9d10-6c1f5e8a4b32"
QCOW2_NAME = f"{IMAGE_ID}.qcow2"
RAW_NAME = f"{IMAGE_ID}.raw"
BOOT_IMAGE_NAME = f"{IMAGE_ID}.acboot"


@dataclasses.dataclass(frozen=True)
class BootImage:
    """A boot image, and the cost of building it."""

    seconds: float
    chunks: int
    raw_bytes: int
    stored_bytes: int
    end: str
    """The builder's criterion for the end of the boot."""


class Piece(NamedTuple):
    """A part of a file, and the number of disk bytes in it."""

    offset: int
    stored_bytes: int
    length: int


def make_chunk_map(file: pathlib.Path) -> None:
    """Make an image's chunk map beside its file.

    :raises errors.Unusable: it cannot be made
    """
    map_path = file.with_suffix(".acmap")
    runs.tool([agents.BIN / "acstor-prehash", "--quiet", file, "-o", map_path])


def build_boot_image(file: pathlib.Path) -> BootImage:
    """Boot an image in a temporary guest; put its boot image beside its file.

    :raises errors.Unusable: it cannot be built, or the boot showed no login prompt
    """
    words = runs.tool([agents.BIN / "acstor-boot-image", "build", file, "--json", "--quiet"])
    facts = json.loads(words)
    if facts["end"] != "marker":
        raise errors.Unusable("the boot image", f"its boot ended otherwise: {facts['end']}")
    return BootImage(
        seconds=round(facts["seconds_s"], 1),
        chunks=facts["chunks"],
        raw_bytes=facts["raw_bytes"],
        stored_bytes=facts["stored_bytes"],
        end=facts["end"],
    )


def bytes_as_raw(requests: Iterable[image_server.Request], folder: pathlib.Path) -> int:
    """Return the sent disk bytes after decompression.

    Files without disk data, such as a chunk map, count with their own bytes; the tables of a qcow2
    file do not count.

    :param folder: served files, with the chunk map
    """
    pieces = {f"/{name}": found for name, found in _pieces(folder)}
    total = 0.0
    for request in requests:
        of_file = pieces.get(request.uri)
        start, stop = request.span
        total += stop - start if of_file is None else weigh(of_file, start, stop)
    return round(total)


def _pieces(folder: pathlib.Path) -> Iterator[tuple[str, list[Piece]]]:
    map_path, boot_path = folder / f"{IMAGE_ID}.acmap", folder / BOOT_IMAGE_NAME
    if map_path.exists() and (folder / QCOW2_NAME).exists():
        found = chunk_map.ChunkMap.parse(map_path.read_bytes(), str(map_path)).layout
        extents = found.find(0, found.size_bytes)
        yield QCOW2_NAME, in_order(Piece(e.offset, e.stored_bytes, e.length) for e in extents)
    if boot_path.exists():
        head = boot_image.parse_head(boot_path.read_bytes(), str(boot_path))
        frames = [Piece(f.offset, f.stored_bytes, f.raw_bytes) for f in head.frames]
        yield BOOT_IMAGE_NAME, in_order(frames)


def in_order(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces in file order, without overlaps.

    A qcow2 entry gives the last sector of a compressed cluster; the next cluster may start in it.

    >>> [tuple(piece) for piece in in_order([Piece(700, 512, 4096), Piece(0, 1024, 4096)])]
    [(0, 700, 4096), (700, 512, 4096)]
    """
    found = sorted(pieces)
    stops = [piece.offset for piece in found[1:]]
    return [
        piece._replace(stored_bytes=min(piece.stored_bytes, stop - piece.offset))
        for piece, stop in zip(found, [*stops, 1 << 62], strict=True)
    ]


def weigh(pieces: Sequence[Piece], start: int, stop: int) -> float:
    """Return the number of disk bytes in a range of a file.

    >>> weigh([Piece(100, 50, 1000), Piece(150, 50, 50)], 125, 175)
    525.0
    """
    first = bisect.bisect_right(pieces, start, key=lambda piece: piece.offset + piece.stored_bytes)
    total = 0.0
    for piece in pieces[first:]:
        if piece.offset >= stop:
            break
        end = piece.offset + piece.stored_bytes
        held = min(stop, end) - max(start, piece.offset)
        total += piece.length * held / piece.stored_bytes
    return total
