# SPDX-License-Identifier: Apache-2.0
"""The corpus: inputs made by writers, and files that once reached new code or a fault.

A file's name is the beginning of its BLAKE3, so that equal inputs are stored once.

"""

import pathlib
import random
from collections.abc import Iterator

import blake3

from tests.security.fuzz import mutations
from tests.security.fuzz.target import Target

FOLDER = pathlib.Path(__file__).parent / "corpus"


def name_of(data: bytes) -> str:
    """Return the file name of this input."""
    return blake3.blake3(data).hexdigest()[:12]


def inputs(target: Target) -> list[bytes]:
    """Return the corpus of a target: seeds first, then its files in the order of their names."""
    files = sorted((FOLDER / target.name).glob("*"))
    return [*target.seeds(), *(path.read_bytes() for path in files)]


def damaged(target: Target, seed: int) -> Iterator[bytes]:
    """Yield endless damaged corpus inputs, the same ones for one seed.

    Two of three have right checksums.
    """
    rng = random.Random(seed)
    kept = inputs(target)
    while True:
        data = mutations.mutate(rng.choice(kept), kept, rng)[: target.max_bytes]
        if rng.randrange(3):
            target.fix_checksums(data)
        yield bytes(data)
