# SPDX-License-Identifier: Apache-2.0
"""Sizes of all tables of a host: containers that its objects hold, by their path."""

import collections
from collections.abc import Iterator
from typing import Any

TABLES = (dict, set, frozenset, list, collections.deque, tuple)
PRODUCT = "acstor_"


def sizes(root: object) -> collections.Counter[str]:
    """Return the length of each table of ``root`` and of the product's objects that it reaches.

    Tables of the members of a table count together, under one path.
    """
    found: collections.Counter[str] = collections.Counter()
    seen: set[int] = set()
    todo: collections.deque[tuple[str, object]] = collections.deque([("", root)])
    while todo:
        path, one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, TABLES):
            if not isinstance(one, (tuple, frozenset)):
                found[path] += len(one)
            todo.extend((path + "[]", member) for member in _members(one))
        elif one is root or _is_of_product(one):
            todo.extend((f"{path}.{name}", value) for name, value in _attributes(one))
    return found


def _members(table: Any) -> list[object]:
    members = [*table.values(), *table] if isinstance(table, dict) else list(table)
    return [one for one in members if isinstance(one, TABLES) or _is_of_product(one)]


def _is_of_product(one: object) -> bool:
    return not isinstance(one, type) and type(one).__module__.startswith(PRODUCT)


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(one, name):
                yield name, getattr(one, name)
