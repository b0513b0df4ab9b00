# SPDX-License-Identifier: Apache-2.0
"""Responses of a QEMU damaged, dropped, repeated and reordered: 2,000 conversations.

``ACSTOR_FUZZ_CASES`` sets their number, and ``ACSTOR_FUZZ_SEED`` the seed (1).

"""

import collections
import gc
import os
import pathlib
import random
import struct
import threading
import time
from collections.abc import Collection

from tests.security.fuzz import corpus
from tests.security.fuzz import mutations
from tests.security.fuzz import nbd_answers

CASES = int(os.environ.get("ACSTOR_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("ACSTOR_FUZZ_SEED", "1"))
MEASURED = 200
"""One conversation of so many is measured for memory, which makes it several times slower."""
GROWTH_BYTES = 48 << 20
GREETING_BYTES = 18
OPTION_MAGIC = struct.pack(">Q", 0x3E889045565A9)
HEADER_BYTES, LENGTH_AT = 20, 16
"""Header of responses to options and to requests; its last four bytes are the body's length."""
FIELDS = {True: ((8, 4), (12, 4), (16, 4)), False: ((4, 2), (6, 2), (8, 8), (16, 4))}
"""Offset and size of header fields: of a response to an option, and to a request."""
LENGTHS = (0, 1, 511, 512, 4096, 65536, 1 << 20, 1 << 30, 1 << 31, (1 << 32) - 512, (1 << 32) - 1)


def parts(said: bytes) -> list[bytes]:
    """Return the greeting and each response."""
    found, at = [said[:GREETING_BYTES]], GREETING_BYTES
    while at < len(said):
        stop = at + HEADER_BYTES + int.from_bytes(said[at + LENGTH_AT : at + HEADER_BYTES])
        found.append(said[at:stop])
        at = stop
    return found


def damaged(part: bytes, rng: random.Random) -> bytes:
    """Return a response with a wrong header, or another body of the stated length."""
    header, body = bytearray(part[:HEADER_BYTES]), part[HEADER_BYTES:]
    if len(header) < HEADER_BYTES or rng.randrange(4) == 0:
        return bytes(mutations.mutate(part, (), rng))
    if rng.randrange(2):
        at, size = rng.choice(FIELDS[header.startswith(OPTION_MAGIC)])
        was = int.from_bytes(header[at : at + size])
        near = (was + 1, was - 1, was ^ 0x8000)
        value = rng.choice((*mutations.EDGES, *mutations.WIDE_EDGES, *near))
        header[at : at + size] = (value % (1 << 8 * size)).to_bytes(size)
        return bytes(header) + body
    body = extents(rng) if rng.randrange(2) else bytes(mutations.mutate(body, (), rng))
    header[LENGTH_AT:] = len(body).to_bytes(4)
    return bytes(header) + body


def extents(rng: random.Random) -> bytes:
    """Return the body of a status: few extents or many, of every kind."""
    pool = [
        struct.pack(">II", rng.choice(LENGTHS), rng.choice((0, 1, 2, 3, 1 << 31)))
        for _ in range(rng.randrange(1, 6))
    ]
    return struct.pack(">I", rng.choice((7, 7, 7, 8))) + b"".join(
        rng.choice(pool) for _ in range(rng.choice((1, 3, 30, 2000)))
    )


def changed(conversations: list[list[bytes]], rng: random.Random) -> bytes:
    """Return one of the conversations, damaged in one to five places."""
    said = list(rng.choice(conversations))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        at = max(rng.randrange(len(said)), rng.randrange(len(said)))  # prefer late refusals
        match rng.randrange(8):
            case 0:
                said[at : at + 1] = []
            case 1:
                said[at:at] = said[at : at + rng.choice((1, 2))] * rng.choice((1, 2, 30))
            case 2:
                other = rng.randrange(len(said))
                said[at], said[other] = said[other], said[at]
            case 3:
                said[at] = said[at][: rng.randrange(len(said[at]) + 1)]
            case 4:
                said[at:at] = [rng.choice(rng.choice(conversations))]
            case _:
                said[at] = damaged(said[at], rng)
        said = said or [b""]
    return b"".join(said)[: nbd_answers.NBD_ANSWERS.max_bytes]


LOOKS, LOOK_S = 50, 0.1


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def held(known: Collection[threading.Thread]) -> tuple[int, int]:
    """Count descriptors and unknown threads, once closed connections are gone."""
    gc.collect()
    found: list[tuple[int, int]] = []
    for _ in range(LOOKS):
        threads = [thread for thread in threading.enumerate() if thread not in known]
        found.append((len(os.listdir("/proc/self/fd")), len(threads)))
        if found[-3:] == 3 * found[-1:]:
            break
        time.sleep(LOOK_S)
    return found[-1]


def test_nbd_messages_of_a_qemu_end_at_most_its_own_checkpoint() -> None:
    target, rng, found = nbd_answers.NBD_ANSWERS, random.Random(SEED), collections.Counter[bool]()
    inputs = [(parts(said), target.try_one(said)) for said in corpus.inputs(target)]
    assert sum(is_taken for _, is_taken in inputs) == 3  # what qemu-nbd said is one of them
    conversations = [said for said, is_taken in inputs for _ in range(1 + 9 * is_taken)]
    known = set(threading.enumerate())  # one that ends meanwhile hides no other
    before, used_bytes = held(known), 0
    for number in range(CASES):
        said = changed(conversations, rng)
        try:
            is_measured = number % MEASURED == 0
            found[(target.try_measured if is_measured else target.try_one)(said)] += 1
        except BaseException as e:
            e.add_note(f"conversation {number} of seed {SEED}")
            raise
        used_bytes = used_bytes or resident_bytes()
    assert held(known) == before
    assert resident_bytes() < used_bytes + GROWTH_BYTES
    print(f"{CASES} conversations: {found[True]} taken, {found[False]} refused")
    assert min(found[True], found[False]) > CASES // 50
