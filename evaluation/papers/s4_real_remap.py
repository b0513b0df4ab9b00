# SPDX-License-Identifier: Apache-2.0
"""5.7 on real agents: a remap with warm caches, its misses and their servers.

Four images have two thirds of their chunks in common, at different offsets.  Hosts read all of them
on idle links; then traffic makes two hosts busy and the service remaps; then the idle hosts read
all of them, with O_DIRECT.  The images, the traffic and the order are the same in every way.  In
the paper's ways hosts ask only homes, and only homes cache chunks, so each reading asks the homes
again.  In ways with caches on readers, half of the hosts read first, and the idle hosts of the
other half then.

A name is an image and a chunk of it.  A *miss* is a chunk read from the source in the second
reading: the first one has read everything, so only a remap can cause a miss.
"""

import collections
import contextlib
import statistics
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_policies import place_identity
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import p7_remap
from tests.lab import local
from tests.lab import traffic

HOSTS = 8
LINK_MBIT = 25
IMAGES = 4
COMMON_CHUNKS, OWN_CHUNKS = 32, 16
IMAGE_ID = "57570000-0000-4000-8000-00000000000{}"
"""Always the same, so names have the same ring positions in each run."""
SHIFT_CHUNKS = 4
"""Shift of the common part from one image to the next."""
PAPER = "no-advertisements,no-referrals,no-hedges,no-source-first,homes-keep"
WAYS: dict[str, tuple[str, bool]] = {
    "by place": (f"{PAPER},by-place", True),
    "by OID": (f"{PAPER},by-oid", True),
    "by OID, no remap": (f"{PAPER},by-oid", False),
    "by content": (PAPER, True),
    "acstor": ("", True),
}
"""Variants, and whether v-nodes may move."""
NAMINGS: dict[str, type[identity.Identity]] = {
    "by-place": place_identity.ByPlace,
    "by-oid": place_identity.ByOid,
}


def contents() -> list[bytes]:
    """Return the images: their common part is at different offsets."""
    size = geometry.DEFAULT_CHUNK_BYTES
    common = local.random_bytes(COMMON_CHUNKS * size, seed=57)
    own = [local.random_bytes(OWN_CHUNKS * size, seed=570 + n) for n in range(IMAGES)]
    cuts = [number * SHIFT_CHUNKS * size for number in range(IMAGES)]
    return [part[:at] + common + part[at:] for part, at in zip(own, cuts, strict=True)]


@contextlib.contextmanager
def made() -> Iterator[collective.Images]:
    """Write the images to a folder for the block."""
    with collective.images() as images:
        for number, data in enumerate(contents()):
            images.ids.append(images.files.add(data, IMAGE_ID.format(number)))
        yield images


def outcome(say: harness.Say, way: str) -> dict[str, Any]:
    """Let hosts read, the service remap, and idle hosts read.

    :param way: one of WAYS
    """
    chosen, remap = WAYS[way]
    options: dict[str, object] = {"variants": chosen}
    shares = traffic.loads(HOSTS, p7_remap.MEAN, p7_remap.CV)
    busy = [number for number, share in enumerate(shares) if share > p7_remap.MEAN]
    with (
        made() as images,
        p7_remap.running(images, options, remap, HOSTS, LINK_MBIT) as scene,
    ):
        for number in range(IMAGES):
            scene.cloud.attach(dict.fromkeys(range(HOSTS), _whole(images, number)))
        readers, later = _readers(chosen, busy)
        first = _reading(scene, busy, readers)
        tables = scene.watch.rings()[-1:]
        with p7_remap.beside(scene.cloud.network, shares, LINK_MBIT):
            p7_remap.settle(scene, remap)
            tables += scene.watch.rings()[-1:]
            second = _reading(scene, busy, later)
            again = _reading(scene, busy, later, range(1))
            scene.service.kill()
            without = _reading(scene, busy, later, range(1))
        maps = [images.files.map_of(image_id) for image_id in images.ids]
        found = {"first": first, "second": second, "again": again, "without service": without}
        found |= expected(maps, tables, _naming(chosen))
    say(
        f"{way}: {found['moved']} of {found['names']} names moved; {second['source_chunks']} "
        f"misses (foreseen {found['misses_if_asked_once']}), mean {second['mean_s']:.1f} s, busy "
        f"hosts gave {second['busy_share']:.0%} of the chunks (before {first['busy_share']:.0%})"
    )
    return found


def _naming(chosen: str) -> identity.Identity:
    names = next((NAMINGS[one] for one in chosen.split(",") if one in NAMINGS), None)
    return (names or identity.ByContent)()


def _readers(chosen: str, busy: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the first and the later readers: disjoint, if readers cache chunks."""
    every = range(HOSTS) if "homes-keep" in chosen else range(0, HOSTS, 2)
    others = range(HOSTS) if "homes-keep" in chosen else range(1, HOSTS, 2)
    return list(every), [host for host in others if host not in busy]


def _whole(images: collective.Images, number: int) -> collective.Reading:
    return collective.Reading(((0, len(images.data(number))),), number)


def _reading(
    scene: p7_remap.Scene,
    busy: Sequence[int],
    readers: Sequence[int],
    numbers: Sequence[int] = range(IMAGES),
) -> dict[str, Any]:
    """Let hosts read images in sequence; return the time and the senders' chunks."""
    cloud = scene.cloud
    before, took = cloud.status(), 0.0
    for number in numbers:
        whole = dict.fromkeys(readers, _whole(cloud.images, number))
        seen = cloud.read(whole, is_direct=True)
        took += statistics.mean(one.took_s for one in seen.values())
    cloud.settle()
    return {**given(before, cloud.status(), busy), "mean_s": round(took, 2)}


def given(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], busy: Sequence[int]
) -> dict[str, Any]:
    """Return the chunks sent between two statuses of all agents, by sender and origin.

    :param busy: numbers of hosts
    """

    def grown(what: str) -> list[float]:
        return [
            (now["exchange"][what] - then["exchange"][what]) / geometry.DEFAULT_CHUNK_BYTES
            for then, now in zip(before, after, strict=True)
        ]

    origins = collections.Counter[str]()
    for then, now in zip(before, after, strict=True):
        for origin in collective.REMOTE_ORIGINS:
            grew = now["fetched"][origin]["bytes"] - then["fetched"][origin]["bytes"]
            origins[origin] += round(grew / geometry.DEFAULT_CHUNK_BYTES)
    served, from_source = grown("served_bytes"), grown("source_bytes")
    return {
        "source_chunks": round(sum(from_source)),
        "relayed_chunks": round(sum(grown("relayed_bytes"))),
        "served_chunks": round(sum(served)),
        "busy_served_chunks": round(sum(served[number] for number in busy)),
        "busy_share": round(sum(served[number] for number in busy) / max(1.0, sum(served)), 3),
        "fetched_chunks": dict(origins),
    }


def expected(
    maps: Sequence[chunk_map.ChunkMap], tables: Sequence[hash_ring.Ring], names: identity.Identity
) -> dict[str, Any]:
    """Return a remap's moves, and the homes' misses after it, by the tables alone.

    :param tables: the one before and the one after it
    :return: ``misses_if_asked_once`` is the homes' number of reads if each name is requested once
        and homes cache them: another OID with the same CID is a hit, except if names are places
    """
    before, after = tables
    is_apart = type(names) is place_identity.ByPlace
    homes: list[tuple[ids.Oid, ids.Cid]] = []
    for one in maps:
        offset_of = one.geometry.chunk_offset
        for number in range(len(one)):
            cid = one.cid_of(number)
            homes.append((names.oid_of(one.image_id, offset_of(number), cid), cid))
    there = {(before.home_at(oid), oid if is_apart else cid) for oid, cid in homes}
    moved = [(oid, cid) for oid, cid in homes if before.home_at(oid) != after.home_at(oid)]
    needed = {(after.home_at(oid), oid if is_apart else cid) for oid, cid in moved}
    hits = [oid for oid, cid in moved if (after.home_at(oid), oid if is_apart else cid) in there]
    return {
        "names": len(homes),
        "contents": len({cid for _, cid in homes}),
        "moved": len(moved),
        "moved_hits": len(hits),
        "misses_if_asked_once": len(needed - there),
    }
