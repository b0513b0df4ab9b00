# SPDX-License-Identifier: Apache-2.0
"""D1: the source bytes of two tenants' snapshots under ``dedup_scope = project``.

A real agent reads, in sequence, a public image and a snapshot of it from each of two projects.  In
both snapshots a fifth of the chunks has changed: most of them equally, as by the same update, the
rest differently.  The source sends common changes once under ``cloud``, once per project under
``project``; it sends the snapshots' unchanged chunks once in both.  The value is the source's bytes
under ``project``, divided by their minimum.
"""

import pathlib
import random
import tempfile

from acstor_common.image import deduplication
from acstor_common.model import geometry
from evaluation.bench import harness
from tests.fakes import hosts
from tests.lab import local

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CHUNKS = 1024
CHANGED_SHARE, ALIKE_SHARE = 0.2, 0.75
SECRET = bytes(range(deduplication.SECRET_BYTES))
PROJECTS = ("a", "b")


@harness.measures("D1")
def run(say: harness.Say) -> harness.Result:
    """Read base and snapshots in each scope; compare the source's bytes."""
    rng = random.Random(1)
    base = [rng.randbytes(CHUNK) for _ in range(CHUNKS)]
    changed = rng.sample(range(CHUNKS), round(CHANGED_SHARE * CHUNKS))
    alike = changed[: round(ALIKE_SHARE * len(changed))]
    update = {number: rng.randbytes(CHUNK) for number in alike}
    snapshots = [
        snapshot(base, update, changed[len(alike) :], random.Random(project))
        for project in PROJECTS
    ]
    found = {}
    for dedup_scope in deduplication.DedupScope:
        found[dedup_scope.value] = source_bytes(base, snapshots, dedup_scope)
        say(f"{dedup_scope}: {found[dedup_scope.value] / geometry.MIB:.1f} MiB from the source")
    own = len(changed) - len(alike)
    must_be = (CHUNKS + 2 * len(alike) + 2 * own) * CHUNK
    details = {
        "source_bytes": found,
        "project_over_cloud": found["project"] / found["cloud"],
        "image_bytes": CHUNKS * CHUNK,
        "changed_share": CHANGED_SHARE,
        "alike_share": ALIKE_SHARE,
    }
    say(f"project over cloud: {details['project_over_cloud']:.3f}")
    return harness.Result({"D1": found["project"] / must_be}, details)


def snapshot(
    base: list[bytes], update: dict[int, bytes], own: list[int], rng: random.Random
) -> bytes:
    """Return an image like ``base`` with an update and chunks of its own."""
    chunks = [update.get(number, data) for number, data in enumerate(base)]
    for number in own:
        chunks[number] = rng.randbytes(CHUNK)
    return b"".join(chunks)


def source_bytes(
    base: list[bytes], snapshots: list[bytes], dedup_scope: deduplication.DedupScope
) -> int:
    """Return the source's bytes when base and snapshots are read whole."""
    with tempfile.TemporaryDirectory(prefix="acstor-d1-") as text:
        folder = pathlib.Path(text)
        images = local.ImageFolder(folder / "images")
        of = {images.add(b"".join(base)): b"".join(base)}
        base_map = images.map_of(next(iter(of)))
        for project, data in zip(PROJECTS, snapshots, strict=True):
            naming = deduplication.Naming(deduplication.key_of(SECRET, project), base_map)
            is_plain = dedup_scope is deduplication.DedupScope.CLOUD
            of[images.add(data, naming=deduplication.PLAIN if is_plain else naming)] = data
        with hosts.running(folder / "h1", images) as agent:
            for image_id, data in of.items():
                if agent.image_path(image_id).read_bytes() != data:
                    raise harness.CannotRun(f"image {image_id} has wrong bytes")
            read = [found["fetched"] for found in agent.status()["images"].values()]
    return sum(origin["source"]["bytes"] for origin in read)
