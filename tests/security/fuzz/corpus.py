# SPDX-License-Identifier: Apache-2.0
"""What is kept: inputs that writers make, and files of what reached or broke something once.

The rule: a file's name is the beginning of its BLAKE3, so that the same input is kept once.
"""

import pathlib
import random
from collections.abc import Iterator

import blake3

from tests.security.fuzz import mutations
from tests.security.fuzz.target import Target

FOLDER = pathlib.Path(__file__).parent / "corpus"


def name_of(data: bytes) -> str:
    """Return what a file with this input is called."""
    return blake3.blake3(data).hexdigest()[:12]


def inputs(target: Target) -> list[bytes]:
    """Return what is kept for a target: seeds first, then its files in the order of their names."""
    files = sorted((FOLDER / target.name).glob("*"))
    return [*target.seeds(), *(path.read_bytes() for path in files)]


def damaged(target: Target, seed: int) -> Iterator[bytes]:
    """Yield inputs without end, the same ones for one seed: each is a kept one, damaged.

    In two of three the checksums are right.
    """
    rng = random.Random(seed)
    kept = inputs(target)
    while True:
        data = mutations.mutate(rng.choice(kept), kept, rng)[: target.max_bytes]
        if rng.randrange(3):
            target.mend(data)
        yield bytes(data)
