# SPDX-License-Identifier: Apache-2.0
"""Files of the mirror opened and listed while others are attached, detached, opened and closed."""

import contextlib
import ctypes
import itertools
import os
import pathlib
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from http import server
from typing import NamedTuple

from tests.fakes import hosts
from tests.fakes import http_server
from tests.functional import test_agent_many_images as many
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

IMAGES = 80  # several times as many as entries in one answer to the kernel
DETACHED = 12
TOGETHER = 64
UNANSWERED = 8
OPENS = 1000
OPEN_AND_CLOSE = f"""
import os, sys
for _ in range({OPENS}):
    image = os.open(sys.argv[1], os.O_RDONLY)
    os.pread(image, 4096, 0)
    os.close(image)
"""
OTHERS = 8  # descriptors of the agent that come and go
GROWTH_BYTES = 4 << 20


class Entry(NamedTuple):
    """An entry of a folder."""

    inode: int
    position: int  # of the next entry
    name: str


_LIBC = ctypes.CDLL(None, use_errno=True)
_HEAD = struct.Struct("=QqHB")  # inode, position, length, kind: struct linux_dirent64


def entries(folder: int) -> Iterator[Entry]:
    """Yield the entries of an open folder, which the kernel asks for some at a time."""
    buffer = ctypes.create_string_buffer(1024)
    while (count := _LIBC.getdents64(folder, buffer, len(buffer))) > 0:
        at = 0
        while at < count:
            inode, position, length, _ = _HEAD.unpack_from(buffer, at)
            name, _, _ = buffer.raw[at + _HEAD.size : at + length].partition(b"\0")
            yield Entry(inode, position, name.decode())
            at += length


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[int]:
    """Open a folder for the block."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def answer_together(count: int) -> http_server.Behaviour:
    """Let the first requests wait for one another, then respond correctly."""
    gate, numbers = threading.Barrier(count, timeout=30.0), itertools.count()

    def behave(handler: server.BaseHTTPRequestHandler, asked: http_server.ClientRequest) -> None:
        if next(numbers) < count:
            gate.wait()
        http_server.fine(handler, asked)

    return behave


def attach_all(agent: agents.Agent, images: local.ImageFolder) -> None:
    """Look up all images."""
    for image in images.folder.glob("*.raw"):
        agent.image_path(image.stem).stat()


def test_listing_misses_no_image_while_others_are_detached(images, start):
    added = many.add_images(images, IMAGES)
    agent = start(life_s=many.LIFE_S)
    attach_all(agent, images)
    listed: list[str] = []
    with opened(agent.mount_point / "images") as folder:
        for entry in entries(folder):
            listed.append(entry.name)
            if len(listed) == DETACHED:
                for name in listed:
                    agent.ctl("detach", pathlib.PurePath(name).stem)
    assert sorted(listed) == sorted(f"{image_id}.raw" for image_id in added)
    left = set(listed[DETACHED:])
    assert set(os.listdir(agent.mount_point / "images")) == left
    assert set(agent.status()["images"]) == {pathlib.PurePath(name).stem for name in left}


def test_listing_continues_at_any_of_its_positions(images, start):
    many.add_images(images, IMAGES)
    agent = start(life_s=many.LIFE_S)
    attach_all(agent, images)
    with opened(agent.mount_point / "images") as folder:
        found = list(entries(folder))
        for number in (IMAGES - 1, IMAGES // 2, 0):
            os.lseek(folder, found[number].position, os.SEEK_SET)
            assert list(entries(folder)) == found[number + 1 :]


def test_inode_numbers_of_a_listing_are_distinct_and_those_of_stat(images, start):
    many.add_images(images, IMAGES)
    agent = start(life_s=many.LIFE_S)
    attach_all(agent, images)
    numbers = []
    for path in (agent.mount_point, agent.mount_point / "images"):
        with opened(path) as folder:
            for entry in entries(folder):
                assert (path / entry.name).stat().st_ino == entry.inode
                numbers.append(entry.inode)
    assert len(set(numbers)) == len(numbers) == IMAGES + 2


def test_images_opened_at_the_same_moment_are_attached_together_and_read(images, start):
    added = many.add_images(images, TOGETHER)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    moment = threading.Barrier(TOGETHER)

    def read(image_id: str) -> bytes:
        moment.wait()
        return agent.image_path(image_id).read_bytes()

    with http_server.serve(files) as running, futures.ThreadPoolExecutor(TOGETHER) as readers:
        agent = start(life_s=many.LIFE_S, **hosts.http_options(running.url))
        running.always = answer_together(UNANSWERED)
        assert list(readers.map(read, added)) == [many.body(n) for n in added.values()]
    assert len(agent.status()["images"]) == TOGETHER


def held(agent: agents.Agent) -> tuple[int, int]:
    """Return an agent's descriptors and memory."""
    return len(os.listdir(f"/proc/{agent.worker_pid()}/fd")), agent.own_memory_bytes()


def test_repeated_opens_leave_no_descriptors_and_little_memory(images, start):
    image_id = images.add(local.random_bytes(1 << 16))
    agent = start(life_s=many.LIFE_S)

    def open_and_close(processes: int) -> None:
        argv = [sys.executable, "-S", "-c", OPEN_AND_CLOSE, agent.image_path(image_id)]
        for _ in range(processes):
            subprocess.run(argv, check=True)

    open_and_close(2)
    before = held(agent)
    open_and_close(10)
    after = held(agent)
    assert after[0] <= before[0] + OTHERS
    assert after[1] - before[1] < GROWTH_BYTES
