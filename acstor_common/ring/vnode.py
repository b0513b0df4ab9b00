# SPDX-License-Identifier: Apache-2.0
"""Names of v-nodes, and compact sets of them.

A v-node is a point on the ring.  Its permanent name, the host it was created for and a number
(``h1#7``), determines its position.  A remap moves only the points that change owner.
"""

import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

from acstor_common.model import ids

MAX_NUMBER = 1 << 20  # v-node numbers are below this

_RUNS = re.compile(r"[0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*")


class VNode(NamedTuple):
    """The name of a v-node."""

    made_for: ids.HostId
    number: int

    def __str__(self) -> str:
        return f"{self.made_for}#{self.number}"


def point_of(vnode: VNode) -> int:
    """Return the 64-bit ring position of a v-node.

    >>> point_of(VNode(ids.HostId("h1"), 0)) == xxhash.xxh3_64_intdigest(b"h1#0")
    True
    """
    return xxhash.xxh3_64_intdigest(f"{vnode.made_for}#{vnode.number}".encode())


def first_vnodes(host: ids.HostId, count: int) -> frozenset[VNode]:
    """Return the first ``count`` v-nodes created for a host."""
    return frozenset(VNode(host, number) for number in range(count))


def format_runs(numbers: Iterable[int]) -> str:
    """Return a set of numbers as runs.

    >>> format_runs([3, 0, 1, 2, 7])
    '0-3,7'
    """
    runs = []
    for _, group in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ",".join(runs)


def parse_runs(text: str) -> Iterator[int]:
    """Yield the numbers of runs; ValueError if malformed or not ascending.

    >>> list(parse_runs("0-3,7"))
    [0, 1, 2, 3, 7]
    """
    if not _RUNS.fullmatch(text):
        raise ValueError(f"not numbers of v-nodes (such as 0-3,7): {text[:64]!r}")
    last = -1
    for run in text.split(","):
        low, _, high = run.partition("-")
        if not last < int(low) <= int(high or low) < MAX_NUMBER:
            raise ValueError(f"numbers of v-nodes are not in ascending order: {run!r}")
        last = int(high or low)
        yield from range(int(low), last + 1)


def pack(names: Iterable[VNode]) -> dict[str, str]:
    """Return v-nodes as runs of numbers, by the host they were created for.

    >>> pack(first_vnodes(ids.HostId("h1"), 3))
    {'h1': '0-2'}
    """
    by_host = sorted(names)
    return {
        host: format_runs(name.number for name in group)
        for host, group in itertools.groupby(by_host, lambda name: name.made_for)
    }


def unpack(packed: Mapping[str, str]) -> Iterator[VNode]:
    """Yield packed v-nodes, or raise ValueError."""
    for host, runs in packed.items():
        made_for = ids.parse_host_id(host)
        for number in parse_runs(runs):
            yield VNode(made_for, number)
