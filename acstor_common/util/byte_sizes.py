# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes with units, parsed and formatted."""

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?b)?|b)?", re.IGNORECASE | re.ASCII)


_NAMES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def in_units(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it.

    >>> in_units(20 << 30), in_units(1), in_units(0)
    ('20GiB', '1', '0')
    """
    for factor, unit in _NAMES:
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def parse(text: str) -> int:
    """Parse a size, or raise ValueError: G and GiB are binary as in QEMU, GB decimal.

    >>> parse("20GiB") == parse("20 g") == parse("20480M") == 20 << 30, parse("1.5GB"), parse("512")
    (True, 1500000000, 512)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a size: write bytes, or a number with KiB, MiB, GiB or TiB"
        )
    number, unit, ending = match.groups()
    base = 1000 if (ending or "").lower() == "b" else 1024
    factor = base ** (1 + "kmgtp".index(unit.lower())) if unit else 1
    return int(number) * factor if number.isdigit() else int(float(number) * factor)
