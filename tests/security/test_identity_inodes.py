# SPDX-License-Identifier: Apache-2.0
"""A tenant chooses an image id that a host confuses with another one.

With unkeyed inode numbers this took no search: XXH3 of 16 bytes can be solved for its input, so one
half is chosen and the other one computed.

"""

import os
import struct
import uuid

import pytest
import xxhash

from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

LENGTH = 300_000
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
"""The beginning of XXH3's constants (XXH3_kSecret, xxHash's specification, section XXH3)."""
ALL = (1 << 64) - 1


def forged(victim: ids.ImageId) -> ids.ImageId:
    """Return another id with the same XXH3-64.

    XXH3 of 9 to 16 bytes mixes one word, length + swapped low + high + folded product of both.
    With a low half of 0 that is length + high.
    """
    a, b, c, d = struct.unpack_from("<4Q", SECRET, 24)
    flip_low, flip_high = a ^ b, c ^ d
    low, high = struct.unpack("<QQ", ids.image_id_bytes(victim))
    low, high = low ^ flip_low, high ^ flip_high
    product = low * high
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    wanted = swapped + high + (product & ALL ^ product >> 64) & ALL
    return ids.image_id_from_bytes(struct.pack("<QQ", flip_low, wanted ^ flip_high))


@pytest.fixture
def pair(images):
    """Two images, one of them forged to collide with the other, and their bytes."""
    victim = ids.parse_image_id(str(uuid.uuid4()))
    attacker = forged(victim)
    numbers = {xxhash.xxh3_64_intdigest(ids.image_id_bytes(one)) for one in (victim, attacker)}
    assert len(numbers) == 1 and victim != attacker
    made = {victim: local.random_bytes(LENGTH, 1), attacker: local.random_bytes(LENGTH, 2)}
    for image_id, data in made.items():
        images.add(data, image_id)
    return made


@pytest.mark.parametrize("first", ["victim", "attacker"])
def test_forged_id_never_shows_bytes_of_another_image(pair, start, first):
    agent = start()
    order = list(pair) if first == "victim" else list(reversed(pair))
    numbers = set()
    files = {image_id: os.open(agent.image_path(image_id), os.O_RDONLY) for image_id in order}
    try:
        for _ in range(2):  # by the worker that opened them, and by the next one
            for image_id, fd in files.items():
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(fd, LENGTH, 0) == pair[image_id]
                assert agent.image_path(image_id).read_bytes() == pair[image_id]
                numbers.add(os.fstat(fd).st_ino)
            worker_pid = agent.worker_pid()
            hosts.kill(worker_pid)
            hosts.wait_until(
                lambda gone=worker_pid: agent.worker_pid() not in (None, gone), "the next worker"
            )
    finally:
        for fd in files.values():
            os.close(fd)
    assert len(numbers) == 2


def test_inode_numbers_differ_between_hosts(images, start):
    image_id = images.add(b"x" * 5000)
    numbers = {start(name).image_path(image_id).stat().st_ino for name in ("h1", "h2")}
    assert len(numbers) == 2
    unkeyed = xxhash.xxh3_64_intdigest(ids.image_id_bytes(image_id)) | 1 << 63
    assert unkeyed not in numbers


def test_inode_numbers_survive_a_restart_of_the_agent(images, start):
    image_id = images.add(b"x" * 5000)
    agent = start()
    number = agent.image_path(image_id).stat().st_ino
    agent.stop()
    agent.start()
    agent.wait_ready()
    assert agent.image_path(image_id).stat().st_ino == number
