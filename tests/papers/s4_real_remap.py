# SPDX-License-Identifier: Apache-2.0
"""5.7 on real agents: a remap with warm caches, the misses that it makes, and who serves them.

Four images have two thirds of their chunks in common, at other offsets in each.  Half of the hosts
read one image each, while nothing else is on the links; then traffic makes two hosts busy and the
service remaps; then the other half read one image each.  The images, the traffic and the order are
the same in every way.  In the paper's ways hosts ask homes and nobody else, and homes alone keep
chunks, so what is counted in the second reading is what the homes had.

A name is an image and a chunk of it.  A *miss* is a chunk that is read from the source in the
second reading: in the first one all images were read, so only a remap can make one.  What a host
has in its own cache it finds by content in every way, so some names are never asked for.
"""

import collections
import contextlib
import statistics
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_agent.core.exchange import identity
from acstor_common import chunk_map
from acstor_common import geometry
from acstor_common import ids
from acstor_common import ring
from tests.bench import collective
from tests.bench import harness
from tests.bench import p7_remap
from tests.lab import local
from tests.lab import traffic

HOSTS = 8
LINK_MBIT = 25
IMAGES = 4
COMMON_CHUNKS, OWN_CHUNKS = 64, 32
IMAGE_ID = "57570000-0000-4000-8000-00000000000{}"
"""Always the same, so names have the same places on the ring in each run."""
SHIFT_CHUNKS = 8
"""So much later than in the one before the common part begins in an image."""
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
    "by-place": identity.ByPlace,
    "by-oid": identity.ByOid,
}


def contents() -> list[bytes]:
    """Return the images: what they have in common lies elsewhere in each."""
    size = geometry.DEFAULT_CHUNK_BYTES
    common = local.random_bytes(COMMON_CHUNKS * size, seed=57)
    own = [local.random_bytes(OWN_CHUNKS * size, seed=570 + n) for n in range(IMAGES)]
    cuts = [number * SHIFT_CHUNKS * size for number in range(IMAGES)]
    return [part[:at] + common + part[at:] for part, at in zip(own, cuts, strict=True)]


@contextlib.contextmanager
def made() -> Iterator[collective.Images]:
    """Keep the images in a folder until the block ends."""
    with collective.images() as images:
        for number, data in enumerate(contents()):
            images.ids.append(images.files.add(data, IMAGE_ID.format(number)))
        yield images


def outcome(say: harness.Say, way: str) -> dict[str, Any]:
    """Let half of the hosts read, the service remap, and the other half read.

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
        first = _reading(scene, busy, range(0, HOSTS, 2))
        tables = scene.watch.rings()[-1:]
        with p7_remap.beside(scene.cloud.network, shares, LINK_MBIT):
            p7_remap.settle(scene, remap)
            tables += scene.watch.rings()[-1:]
            second = _reading(scene, busy, range(1, HOSTS, 2))
            scene.service.kill()
            without = _reading(scene, busy, range(0, HOSTS, 2), turned=1)
        maps = [images.files.map_of(image_id) for image_id in images.ids]
        found = {"first": first, "second": second, "without service": without}
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


def _whole(images: collective.Images, number: int) -> collective.Reading:
    return collective.Reading(((0, len(images.data(number))),), number)


def _reading(
    scene: p7_remap.Scene, busy: Sequence[int], readers: Sequence[int], turned: int = 0
) -> dict[str, Any]:
    """Let each of some hosts read another image; return what that took, and who gave what."""
    cloud = scene.cloud
    numbers = {host: (n + turned) % IMAGES for n, host in enumerate(readers)}
    before = cloud.status()
    seen = cloud.read({host: _whole(cloud.images, number) for host, number in numbers.items()})
    cloud.settle()
    after = cloud.status()
    took = {host: one.took_s for host, one in seen.items()}
    return {
        **given(before, after, busy),
        "mean_s": round(statistics.mean(took.values()), 2),
        "idle_mean_s": round(statistics.mean(s for n, s in took.items() if n not in busy), 2),
    }


def given(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], busy: Sequence[int]
) -> dict[str, Any]:
    """Return who gave how many chunks between two looks at all agents.

    :param busy: hosts, by their numbers
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
    maps: Sequence[chunk_map.ChunkMap], tables: Sequence[ring.Ring], names: identity.Identity
) -> dict[str, Any]:
    """Return what a remap moves, and what homes lack after it, by the tables alone.

    :param tables: the one before and the one after it
    :return: ``misses_if_asked_once`` is what homes read if all names are asked for once, and homes
        keep what they read: another OID with the same CID is a hit, but where names are places
    """
    before, after = tables
    is_apart = type(names) is identity.ByPlace
    homes: list[tuple[ids.Oid, ids.Cid]] = []
    for one in maps:
        offset_of = one.geometry.chunk_offset
        for number in range(len(one)):
            cid = one.cid(number)
            homes.append((names.oid(one.image_id, offset_of(number), cid), cid))
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
