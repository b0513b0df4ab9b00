# SPDX-License-Identifier: Apache-2.0
"""Used images get fully cached and stay so, with real agents and sources that go down."""

import contextlib
import json
import os
import time

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
UNKNOWN = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
LIFE_S = 400.0
SOON_S = 120.0
"""Limit in seconds for each change on a loaded machine."""
BOOTS = {tuned.BOOT_IDLE_S: 1.0}
KEEPING = {"keep_images": "host", "constants": BOOTS, "life_s": LIFE_S}
DATA = local.random_bytes(12 * MIB + 12345, zero_share=0.1)


def wait_for(agent: agents.Agent, image_id: str, state: str) -> dict:
    hosts.wait_fill_state(agent, image_id, state, SOON_S)
    if state != "filling":  # else received chunks keep coming
        hosts.wait_written(agent)
    return hosts.fill_of(agent, image_id)


def read_back(agent: agents.Agent, image_id: str, data: bytes) -> None:
    """Compare every byte, and drop the read pages from the page cache."""
    with agent.image_path(image_id).open("rb") as file:
        assert file.read() == data
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def next_worker(agent: agents.Agent) -> None:
    killed = agent.worker_pid()
    hosts.kill(killed)
    hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker", SOON_S)
    agent.wait_ready()


@contextlib.contextmanager
def web_source(images: local.ImageFolder):
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        yield server


def test_opened_image_is_fully_cached_and_outlives_its_source(images, start):
    image_id = images.add(DATA)
    with web_source(images) as server:
        agent = start(**KEEPING, **hosts.http_options(server.url))
        with agent.image_path(image_id).open("rb") as guest:
            guest.read(CHUNK)
            shown = wait_for(agent, image_id, "fully_cached")
    assert (shown["remaining_bytes"], shown["cached_share"]) == (0, 1.0)
    assert agent.status()["exchange"]["source_bytes"] == shown["total_bytes"]  # each byte once
    next_worker(agent)
    wait_for(agent, image_id, "fully_cached")
    read_back(agent, image_id, DATA)
    agent.stop()
    agent.start()
    agent.wait_ready()
    wait_for(agent, image_id, "fully_cached")
    read_back(agent, image_id, DATA)
    assert agent.status()["exchange"]["source_bytes"] == 0


def test_reads_of_other_images_evict_no_pinned_chunk(images, start):
    image_id = images.add(DATA)
    others = [images.add(local.random_bytes(12 * MIB, seed)) for seed in (11, 12, 13)]
    room = {"cache_limit_bytes": 20 * MIB}
    with web_source(images) as server:
        agent = start(**KEEPING, **room, **hosts.http_options(server.url))
        with agent.image_path(image_id).open("rb") as guest:
            guest.read(CHUNK)
            wait_for(agent, image_id, "fully_cached")
            for other in others:
                agent.image_path(other).read_bytes()
                assert wait_for(agent, other, "no_space")["shortfall_bytes"] > 0
        assert agent.status()["cache"]["evictions"] > 0
    read_back(agent, image_id, DATA)
    cache = agent.status()["cache"]
    assert cache["disk_bytes"] <= cache["limit_bytes"]
    assert cache["pinned_missing_chunks"] == 0


def test_image_without_space_is_reported_and_earlier_pins_stay(images, start):
    first, second = images.add(DATA), images.add(local.random_bytes(12 * MIB, 5))
    agent = start(**KEEPING, cache_limit_bytes=20 * MIB)
    agent.ctl("attach", first)
    wait_for(agent, first, "fully_cached")
    agent.ctl("attach", second)
    shown = wait_for(agent, second, "no_space")
    assert f"lacks {shown['shortfall_bytes']} bytes" in shown["why"]
    assert "no space" in agent.ctl("status")
    assert f"image {second}: cannot be cached completely" in agent.log()
    with pytest.raises(errors.Unusable, match="lacks"):
        agents.request(agent.control_socket, "pre-seed", image_id=second)
    assert hosts.fill_of(agent, first)["state"] == "fully_cached"


def test_smaller_cache_after_a_restart_keeps_all_pins(images, tmp_path):
    first, second = images.add(DATA), images.add(local.random_bytes(12 * MIB, 5))
    with hosts.running(tmp_path / "h1", images, cache_limit_bytes=64 * MIB, **KEEPING) as agent:
        for image_id in (first, second):
            agent.ctl("attach", image_id)
            wait_for(agent, image_id, "fully_cached")
    images.path(first).unlink()
    images.path(second).unlink()
    with hosts.running(tmp_path / "h1", images, cache_limit_bytes=16 * MIB, **KEEPING) as agent:
        for image_id in (first, second):
            assert wait_for(agent, image_id, "fully_cached")["remaining_bytes"] == 0
        read_back(agent, first, DATA)
        cache = agent.status()["cache"]
        assert cache["reserved_bytes"] > cache["limit_bytes"]


@hosts.needs_take_over
def test_image_stays_fully_cached_when_one_of_two_instances_closes_it(images, start):
    image_id, newer = images.add(DATA), images.add(local.random_bytes(MIB, 5))
    agent = start(**KEEPING)
    one, two = (agent.image_path(image_id).open("rb") for _ in range(2))
    with two:
        with one:
            wait_for(agent, image_id, "fully_cached")
        next_worker(agent)  # the new worker must find the open handles itself
        next_worker(agent)
        agent.ctl("attach", newer)
        wait_for(agent, newer, "fully_cached")
        assert hosts.fill_of(agent, image_id)["state"] == "fully_cached"
        assert agent.status()["cache"]["reserved_bytes"] > 12 * MIB / 2


def test_pins_survive_a_restart_and_end_on_unpin(images, start):
    used, asked = images.add(DATA), images.add(local.random_bytes(MIB, 5))
    agent = start(**KEEPING)
    for image_id in (used, asked):
        agent.ctl("attach", image_id)
    agent.ctl("pre-seed", asked)
    wait_for(agent, used, "fully_cached")
    assert hosts.fill_of(agent, asked)["is_pinned"]
    agent.stop()
    agent.start()
    agent.wait_ready()  # Nova has touched nothing yet
    wait_for(agent, used, "fully_cached")
    assert wait_for(agent, asked, "fully_cached")["is_pinned"]
    assert "pinned" in agent.ctl("status")
    agent.ctl("unpin", asked)
    assert not wait_for(agent, asked, "fully_cached")["is_pinned"]
    agent.ctl("detach", used)
    hosts.wait_until(
        lambda: hosts.fill_of(agent, used) is None, "an image that is not kept", SOON_S
    )
    assert agent.status()["cache"]["reserved_bytes"] == MIB


def test_failed_detach_keeps_the_pin(images, start):
    image_id = images.add(DATA)
    agent = start(**KEEPING)
    agent.ctl("pre-seed", image_id)
    wait_for(agent, image_id, "fully_cached")
    its_map = agent.state_dir / "maps" / f"{image_id}.acmap"
    hidden = its_map.rename(its_map.with_suffix(".hidden"))
    its_map.mkdir()
    with pytest.raises(errors.Unusable, match="directory"):
        agents.request(agent.control_socket, "detach-image", image_id=image_id)
    assert wait_for(agent, image_id, "fully_cached")["is_pinned"]
    its_map.rmdir()
    hidden.rename(its_map)
    agent.ctl("detach", image_id)
    assert hosts.fill_of(agent, image_id) is None
    assert agent.status()["cache"]["reserved_bytes"] == 0


def test_fill_retries_a_source_until_the_image_is_fully_cached(images, start):
    image_id = images.add(DATA)
    agent = start(**KEEPING)
    agent.ctl("attach", image_id)
    hidden = images.path(image_id).with_suffix(".hidden")
    images.path(image_id).rename(hidden)
    shown = wait_for(agent, image_id, "failing")
    assert shown["remaining_bytes"] > 0 and shown["why"]
    agent.ctl("hydrate", image_id, "--deadline", "1s")
    hosts.wait_until(
        lambda: "missed its deadline of 1 s" in agent.log(), "a missed deadline", SOON_S
    )
    assert hosts.fill_of(agent, image_id)["is_late"]
    pid = agent.worker_pid()
    hidden.rename(images.path(image_id))
    wait_for(agent, image_id, "fully_cached")
    assert agent.worker_pid() == pid


def test_fill_can_be_paused_resumed_and_made_urgent(images, start):
    first, second = images.add(DATA), images.add(local.random_bytes(2 * MIB, 5))
    agent = start(**KEEPING, fill_rate_limit_mbit=1.0)
    for image_id in (first, second):
        agent.ctl("attach", image_id)
    wait_for(agent, first, "filling")
    agent.ctl("pause", first)
    wait_for(agent, first, "paused")
    agent.ctl("hydrate", second)
    wait_for(agent, second, "fully_cached")
    left_bytes = hosts.fill_of(agent, first)["remaining_bytes"]
    assert left_bytes > 8 * MIB  # at one megabit a second
    next_worker(agent)
    assert wait_for(agent, first, "paused")["remaining_bytes"] == left_bytes
    agent.ctl("resume", first)
    shown = wait_for(agent, first, "filling")
    assert shown["mode"] == "normal"
    agent.ctl("hydrate", first, "--deadline", "1h")
    next_worker(agent)
    shown = wait_for(agent, first, "filling")
    assert shown["mode"] == "urgent" and 3000 < shown["due_in_s"] <= 3600
    assert "due in" in agent.ctl("status")
    agent.ctl("hydrate", first, "--deadline", "6s")
    wait_for(agent, first, "fully_cached")
    hosts.wait_until(lambda: hosts.fill_of(agent, first)["due_in_s"] is None, "no deadline", SOON_S)
    with pytest.raises(errors.Unusable, match="cannot be cached completely"):
        agents.request(agent.control_socket, "set-fill-mode", image_id=UNKNOWN, mode="urgent")


def test_fill_rate_is_limited(images, start):
    image_id = images.add(DATA)
    agent = start(**KEEPING, fill_rate_limit_mbit=8.0)
    agent.ctl("attach", image_id)
    wait_for(agent, image_id, "filling")
    before, at_s = hosts.fill_of(agent, image_id)["remaining_bytes"], time.monotonic()
    time.sleep(4)
    left, took_s = hosts.fill_of(agent, image_id)["remaining_bytes"], time.monotonic() - at_s
    assert before - left <= 1_000_000 * took_s + 2 * MIB


@pytest.mark.parametrize("damage", ["lost", "rubbish"])
def test_lost_pins_are_restored_before_any_eviction(images, start, damage):
    image_id = images.add(DATA)
    agent = start(**KEEPING)
    agent.ctl("attach", image_id)
    wait_for(agent, image_id, "fully_cached")
    agent.stop()
    file = agent.state_dir / "pins.json"
    assert json.loads(file.read_bytes())["images"][0]["image_id"] == image_id
    if damage == "lost":
        file.unlink()
    else:
        file.write_bytes(b"{")
    images.path(image_id).unlink()
    agent.start()
    agent.wait_ready()
    wait_for(agent, image_id, "fully_cached")
    assert agent.status()["cache"]["pinned_bytes"] > 0
    read_back(agent, image_id, DATA)


def test_lost_chunks_of_a_fully_cached_image_are_fetched_again(images, start):
    image_id = images.add(DATA)
    agent = start(**KEEPING, cache_limit_bytes=32 * MIB)
    agent.ctl("attach", image_id)
    wait_for(agent, image_id, "fully_cached")
    cache_dir = agent.folder / "cache"
    sorted(cache_dir.glob("slab-*.acslab"))[0].unlink()
    hosts.wait_until(lambda: "was deleted" in agent.log(), "a slab that is missed", SOON_S)
    hosts.wait_until(lambda: not agent.status()["cache"]["pinned_missing_chunks"], "all", SOON_S)
    wait_for(agent, image_id, "fully_cached")


def test_detached_image_is_unpinned(images, start):
    image_id = images.add(DATA)
    agent = start(**KEEPING)
    agent.ctl("attach", image_id)
    wait_for(agent, image_id, "fully_cached")
    agent.ctl("detach", image_id)
    assert agent.status()["cache"]["reserved_bytes"] == 0
    assert json.loads((agent.state_dir / "pins.json").read_bytes())["images"] == []


def test_keep_images_none_fetches_and_pins_nothing(images, start):
    image_id = images.add(DATA)
    agent = start(keep_images="none", constants=BOOTS)
    agent.ctl("attach", image_id)
    with pytest.raises(errors.Unusable, match="keep_images is none"):
        agents.request(agent.control_socket, "unpin", image_id=image_id)
    time.sleep(4)
    status = agent.status()
    assert status["exchange"]["source_bytes"] == 0
    assert status["cache"]["reserved_bytes"] == 0


def test_fill_prefers_peers_to_the_source(images, tmp_path):
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, **KEEPING) as cloud:
        for agent in cloud.agents.values():
            agent.ctl("attach", image_id)
        total_bytes = [
            wait_for(a, image_id, "fully_cached")["total_bytes"] for a in cloud.agents.values()
        ]
        source_bytes = sum(one["exchange"]["source_bytes"] for one in cloud.statuses().values())
        assert source_bytes <= 1.1 * total_bytes[0]
        images.path(image_id).unlink()
        for agent in cloud.agents.values():
            read_back(agent, image_id, DATA)


def test_failed_write_of_the_pin_file_is_reported_and_retried(images, start):
    first, second = images.add(DATA), images.add(local.random_bytes(MIB, 5))
    agent = start(**KEEPING)
    file = agent.state_dir / "pins.json"
    agent.ctl("attach", first)
    wait_for(agent, first, "fully_cached")
    file.unlink()
    file.mkdir()  # a folder that no file can replace
    agent.ctl("attach", second)
    wait_for(agent, second, "fully_cached")
    assert "cannot be written" in agent.status()["faults"]["pins.json"]["why"]
    file.rmdir()
    agent.ctl("pause", second)
    assert "pins.json" not in agent.status()["faults"]
    assert file.is_file()
