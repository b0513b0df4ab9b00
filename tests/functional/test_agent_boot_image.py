# SPDX-License-Identifier: Apache-2.0
"""Boot images in a real agent: origins of reads, and right bytes under every fault."""

import os
import pathlib
import random
import threading

import msgspec
import pytest

from acstor_agent.core.boot import boot_recorder
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import trace_message
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CHUNKS = 200
DATA = local.random_bytes(CHUNKS * CHUNK + 777, seed=3, zero_share=0.2)
TRACE = random.Random(1).sample(range(CHUNKS), 80)


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


def boot(agent: agents.Agent, image_id: ids.ImageId) -> bytes:
    """Read the chunks of the boot trace as a guest does: in order, past the page cache."""
    with open(agent.image_path(image_id), "rb", buffering=0, opener=directly) as file:
        return b"".join(os.pread(file.fileno(), CHUNK, chunk_no * CHUNK) for chunk_no in TRACE)


def directly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT)


WANTED = b"".join(DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK] for chunk_no in TRACE)


def state(agent: agents.Agent, image_id: ids.ImageId) -> str | None:
    try:
        shown = agent.status()["images"].get(image_id, {}).get("boot_image")
    except errors.Unusable:  # a new worker does not respond yet
        return None
    return shown["state"] if shown else None


def wait_state(agent: agents.Agent, image_id: ids.ImageId, wanted: str) -> None:
    hosts.wait_until(lambda: state(agent, image_id) == wanted, f"a boot image that is {wanted}")


def test_boot_is_served_from_memory_that_is_freed_after_it(images, image_id, start):
    head = images.add_boot_image(image_id, TRACE)
    agent = start(constants={tuned.BOOT_IDLE_S: 1})
    agents.request(agent.control_socket, "attach-image", image_id=image_id)
    wait_state(agent, image_id, "ready")
    assert agent.status()["boot"]["memory_bytes"] == head.raw_bytes
    images.path(image_id).unlink()  # from here on no read can come from the source
    assert boot(agent, image_id) == WANTED
    status = agent.status()
    assert status["read"]["boot"]["bytes"] == head.raw_bytes
    assert status["read"]["zero"]["bytes"] == len(WANTED) - head.raw_bytes
    assert status["fetched"]["source"]["bytes"] == head.size_bytes - head.header.head_bytes
    wait_state(agent, image_id, "dropped")
    assert agent.status()["boot"]["memory_bytes"] == 0
    images.boot_image_path(image_id).unlink()
    assert boot(agent, image_id) == WANTED  # from this host's own cache


def test_immediate_boot_fetches_each_byte_over_the_network_once(images, image_id, start):
    head = images.add_boot_image(image_id, TRACE)
    agent = start()
    assert boot(agent, image_id) == WANTED
    wait_state(agent, image_id, "ready")
    fetched = agent.status()["fetched"]["source"]["bytes"]
    assert fetched == head.size_bytes - head.header.head_bytes


@hosts.needs_take_over
def test_guest_reads_right_bytes_while_the_worker_is_killed_in_its_boot(images, image_id, start):
    images.add_boot_image(image_id, TRACE)
    agent = start()
    seen = []
    booting = threading.Thread(target=lambda: seen.extend(boot(agent, image_id) for _ in range(40)))
    booting.start()
    for _ in range(2):
        hosts.wait_until(lambda: state(agent, image_id) == "ready", "the boot image")
        killed = agent.worker_pid()
        hosts.kill(killed)
        hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")  # noqa: B023
    booting.join(60)
    assert seen == [WANTED] * 40
    assert boot(agent, image_id) == WANTED
    wait_state(agent, image_id, "ready")


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:300],
        lambda raw: raw[:-1],
        lambda raw: raw[:5000] + b"\xff" * 5000 + raw[10000:],
        lambda raw: b"#!/bin/sh\n" * 100,
    ],
    ids=["short", "cut", "flipped", "foreign"],
)
def test_guest_reads_right_bytes_when_the_boot_image_is_damaged(images, image_id, start, damage):
    images.add_boot_image(image_id, TRACE)
    path: pathlib.Path = images.boot_image_path(image_id)
    path.write_bytes(damage(path.read_bytes()))
    agent = start()
    assert boot(agent, image_id) == WANTED
    assert agent.image_path(image_id).read_bytes() == DATA
    hosts.wait_until(
        lambda: state(agent, image_id) in ("ignored", "failed", "none"), "the boot image's refusal"
    )


def test_simultaneous_boots_read_the_boot_image_from_the_source_once(tmp_path, images, image_id):
    head = images.add_boot_image(image_id, TRACE)
    frames_bytes = head.size_bytes - head.header.head_bytes
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3")) as cloud:
        read = []
        threads = [
            threading.Thread(target=lambda agent=agent: read.append(boot(agent, image_id)))
            for agent in cloud.agents.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert read == [WANTED] * 3
        for agent in cloud.agents.values():
            wait_state(agent, image_id, "ready")
        statuses = cloud.statuses().values()
    assert sum(status["exchange"]["source_bytes"] for status in statuses) == frames_bytes


def test_each_boot_is_recorded_separately(images, image_id, start):
    agent = start(constants={tuned.RECORD_IDLE_S: 1})
    again = list(reversed(TRACE))
    with (
        open(agent.image_path(image_id), "rb", buffering=0, opener=directly) as one,
        open(agent.image_path(image_id), "rb", buffering=0, opener=directly) as two,
    ):
        for chunk_no, other_no in zip(TRACE, again, strict=True):
            os.pread(one.fileno(), CHUNK, chunk_no * CHUNK)
            os.pread(two.fileno(), CHUNK, other_no * CHUNK)
    hosts.wait_until(lambda: agent.status()["boot"]["recorded"] == 2, "two boots")
    traces = agent.folder / "state/traces"
    # Boots are counted and written when they end.
    hosts.wait_until(lambda: len(list(traces.glob("*.actrace"))) == 2, "their files")
    files = traces.glob("*.actrace")
    messages = [
        msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace) for path in files
    ]
    assert sorted(message.trace for message in messages) == sorted([tuple(TRACE), tuple(again)])
    assert {message.image_id for message in messages} == {image_id}


def test_boot_is_recorded_after_many_opens_without_a_boot(images, image_id, start):
    """Nova opens an image more often before its first boot than there are recording slots."""
    agent = start(constants={tuned.RECORD_IDLE_S: 2})
    for _ in range(2 * boot_recorder.OPENERS):
        with agent.image_path(image_id).open("rb", buffering=0) as looked:
            looked.read(CHUNK)
    with open(agent.image_path(image_id), "rb", buffering=0, opener=directly) as guest:
        for chunk_no in TRACE:
            os.pread(guest.fileno(), CHUNK, chunk_no * CHUNK)
    hosts.wait_until(lambda: agent.status()["boot"]["recorded"] == 1, "the boot")
