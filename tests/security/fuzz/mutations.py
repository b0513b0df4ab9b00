# SPDX-License-Identifier: Apache-2.0
"""Format-aware damage: of numbers, lengths, pieces, and JSON values.

The same seed makes the same damage, so that a number identifies a finding.

"""

import json
import random
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 1 << 20, (1 << 22) + 4)
WIDE_EDGES = ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53) + 1, (1 << 63) - 1, (1 << 64) - 1)
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 53, 1 << 63, 1 << 64, 10**40, -0.0, 1e308, float("nan"),
    float("inf"), "", "\0", "\ud800", "..", "a" * 300, "\u0663", "10.0.0.1:0", "0-9999999999",
    [], {}, [[]], {"": None},
)  # fmt: skip
ODD_TEXT = (b"NaN", b"1e999", b"[" * 3000, b'{"a":' * 1500, b'"\\ud800"', b"\xff\xfe", b"\n", b"-0")

Mutation = Callable[[bytearray, random.Random], None]


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(data: bytearray, rng: random.Random) -> None:
    """Write a boundary value, or a neighbour of the present value, where a number may be."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - width + 1))
    if rng.random() < 0.7:
        at -= at % width
    order = rng.choice(("little", "big"))
    was = int.from_bytes(data[at : at + width], order)
    value = rng.choice((*EDGES, *WIDE_EDGES, was + 1, was - 1, was * 2, len(data)))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, order)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_out(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 32, rng.randrange(1, len(data) + 1)))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    piece = data[at : at + rng.choice((1, 4, 8, 32, 200))]
    data[at:at] = piece * rng.choice((1, 2, 30))


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((*ODD_TEXT, bytes(rng.randrange(1, 40)), rng.randbytes(4)))


PLAIN: tuple[Mutation, ...] = (_flip, _overwrite, _number, _truncate, _cut_out, _repeat, _insert)


def change_json(thing: Any, rng: random.Random) -> Any:
    """Return ``thing`` with one of its values, names or lengths changed."""
    if isinstance(thing, dict) and thing and rng.random() < 0.9:
        name = rng.choice(list(thing))
        changed = dict(thing)
        match rng.randrange(8):
            case 0:
                del changed[name]
            case 1:
                changed[rng.choice(("", "host", name + "x"))] = changed[name]
            case _:
                changed[name] = change_json(thing[name], rng)
        return changed
    if isinstance(thing, list) and thing and rng.random() < 0.9:
        at = rng.randrange(len(thing))
        if rng.randrange(4) == 0:
            return thing[:at] + thing[at : at + 1] * rng.choice((0, 2, 50)) + thing[at + 1 :]
        return [*thing[:at], change_json(thing[at], rng), *thing[at + 1 :]]
    if isinstance(thing, int) and rng.random() < 0.5:
        return thing + rng.choice((-1, 1, 1 << 32, -(1 << 62)))
    if isinstance(thing, str) and thing and rng.random() < 0.5:
        return _text(thing, rng)
    return rng.choice(ODD_VALUES)


def _json(data: bytes, rng: random.Random) -> bytes | None:
    """Return JSON with changed values; None if ``data`` is not JSON."""
    try:
        thing = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.choice((1, 1, 2, 4))):
        thing = change_json(thing, rng)
    return json.dumps(thing).encode()


def _text(text: str, rng: random.Random) -> str:
    """Damage a string of JSON: as JSON if it contains JSON, else its letters."""
    changed = _json(text.encode(errors="replace"), rng) if text[:1] in ("{", "[") else None
    damaged = bytearray(changed or text.encode(errors="replace"))
    if changed is None:
        rng.choice(PLAIN[:-1])(damaged, rng)
    return damaged.decode(errors="replace")


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytearray:
    """Return ``data`` damaged in one to five ways; ``others`` are inputs to splice with."""
    if data[:1] in (b"{", b"[") and rng.random() < 0.6:
        changed = _json(data, rng)
        if changed is not None:
            return bytearray(changed)
    damaged = bytearray(data)
    if others and rng.random() < 0.15:
        other = rng.choice(others)
        damaged = damaged[: rng.randrange(len(damaged) + 1)]
        damaged += other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if not damaged:
            damaged += bytes(1)
        rng.choice(PLAIN)(damaged, rng)
    return damaged
