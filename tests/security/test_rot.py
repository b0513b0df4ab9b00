# SPDX-License-Identifier: Apache-2.0
"""Bit rot on the cache's disk after a read: no reader gets wrong bytes.

The tests change slab files through the page cache, as the agent sees them.

"""

import os
import pathlib
import random
import subprocess

import pytest

from acstor_agent.cache import cache_files
from acstor_agent.core.cache import cache_slab
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

KIB, MIB = 1024, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(4 * MIB)


def rot(folder: pathlib.Path, dice: random.Random, flips: int, data: bytes) -> set[int]:
    """Flip bits of ``data`` in slab files; return the affected chunks."""
    hit = set()
    for path in sorted(folder.glob("slab-*.acslab")):
        raw = path.read_bytes()
        with path.open("r+b") as file:
            for chunk_no in dice.sample(range(len(data) // CHUNK), len(data) // CHUNK):
                at = raw.find(data[chunk_no * CHUNK : (chunk_no + 1) * CHUNK])
                if at >= 0 and len(hit) < flips:
                    where = at + dice.randrange(CHUNK)
                    file.seek(where)
                    file.write(bytes([raw[where] ^ 1 << dice.randrange(8)]))
                    hit.add(chunk_no)
    assert len(hit) == flips
    return hit


def read_at(path: pathlib.Path, offset: int, length: int) -> bytes:
    """Read past the page cache of the mirror, from any offset."""
    argv = ["dd", f"if={path}", f"bs={length}", "count=1", f"skip={offset}", "status=none"]
    argv.append("iflag=skip_bytes,direct")
    return subprocess.run(argv, check=True, capture_output=True, timeout=20).stdout


def fill(agent: agents.Agent, image_id: str) -> None:
    """Read the whole image twice: the second time from the cache."""
    assert read_at(agent.image_path(image_id), 0, len(DATA)) == DATA
    hosts.wait_written(agent)
    before = agent.status()["read"]["cache"]["bytes"]
    assert read_at(agent.image_path(image_id), 0, len(DATA)) == DATA
    assert agent.status()["read"]["cache"]["bytes"] - before == len(DATA)


@hosts.needs_fuse
@pytest.mark.parametrize("length", [4 * KIB, CHUNK, MIB])
def test_guests_never_get_corrupted_bytes_of_the_cache(tmp_path, length):
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(DATA)
    dice = random.Random(length)
    with hosts.running(tmp_path / "h1", images) as agent:
        fill(agent, image_id)
        path, healed = agent.image_path(image_id), 0
        for _ in range(3):
            hit = rot(agent.folder / "cache", dice, 4, DATA)
            offsets = range(0, len(DATA), length)
            if length < CHUNK:  # all blocks of the affected chunks
                offsets = [n * CHUNK + at for n in sorted(hit) for at in range(0, CHUNK, length)]
            for offset in offsets:
                assert read_at(path, offset, length) == DATA[offset : offset + length]
            healed += len(hit)
            assert agent.status()["cache"]["corrupt_chunks"] == healed
            hosts.wait_written(agent)
        before = agent.status()["read"]["cache"]["bytes"]
        assert read_at(path, 0, len(DATA)) == DATA
        assert agent.status()["read"]["cache"]["bytes"] - before == len(DATA)  # all restored
        assert agent.log().count("is damaged in slab file") == healed
        assert agent.status()["images"][image_id]["failed_reads"] == 0


@hosts.needs_fuse
def test_peers_never_get_corrupted_bytes_of_the_cache(tmp_path):
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        giver, taker = cloud["h1"], cloud["h2"]
        fill(giver, image_id)
        rot(giver.folder / "cache", random.Random(1), 32, DATA)
        assert read_at(taker.image_path(image_id), 0, len(DATA)) == DATA
        assert taker.status()["exchange"]["invalid_chunks"] == 0
        assert giver.status()["cache"]["corrupt_chunks"] > 0
        assert giver.status()["exchange"]["served_chunks"] > 0


SIZES = (64 * KIB, 256 * KIB, 5000, 70_000, 4096)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.allow_log("is damaged in slab file")
async def test_ranges_of_a_corrupted_cache_equal_the_stored_bytes(tmp_path, seed):
    dice = random.Random(seed)
    chunks = [dice.randbytes(SIZES[n % len(SIZES)]) for n in range(30)]
    stored = {ids.cid_of(chunk): chunk for chunk in chunks}
    cache = cache_files.CacheFiles.open(tmp_path, 8 * MIB, MIB)
    for cid, chunk in stored.items():
        assert cache.store_chunk(cid, chunk)
    await cache._write_behind.flush()
    seen_bad = 0
    for _ in range(400):
        if dice.random() < 0.1:
            flip_anything(tmp_path, dice)
        parts, expected = some_parts(cache, stored, dice)
        buffer = memoryview(bytearray(len(expected)))
        if not cache.read_slots_nowait(parts, buffer):
            bad = await cache.read_parts(parts, buffer)
            seen_bad += len(bad)
            for cid in bad:
                assert cid not in cache and cache.store_chunk(cid, stored[cid])
            if bad:
                continue
            assert not bad
        assert bytes(buffer) == expected
    assert seen_bad and cache.statistics.corrupt_chunks == seen_bad
    await cache.aclose()


def some_parts(cache, stored, dice):
    """Choose ranges of chunks, mostly adjacent ones."""
    first, count = dice.randrange(len(stored)), dice.randint(1, 6)
    parts, expected = [], b""
    for cid in list(stored)[first : first + count]:
        chunk = stored[cid]
        start = dice.choice([0, 0, dice.randrange(len(chunk))])
        stop = dice.choice([len(chunk), dice.randint(start + 1, len(chunk))])
        parts.append((cache.lookup(cid), start, stop))
        expected += chunk[start:stop]
    return parts, expected


def flip_anything(folder: pathlib.Path, dice: random.Random) -> None:
    """Flip a bit of some slab file, of its data or its checksums."""
    path = dice.choice(sorted(folder.glob("slab-*.acslab")))
    with path.open("r+b") as file:
        raw = file.read()
        layout = cache_slab.unpack_header(raw[:64], len(raw), path.name)
        at = dice.randrange(layout.sums_offset, len(raw))
        os.pwrite(file.fileno(), bytes([raw[at] ^ 1 << dice.randrange(8)]), at)
