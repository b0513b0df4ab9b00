# SPDX-License-Identifier: Apache-2.0
"""Boot timelines of a real agent, for processes that read as guests do."""

import os
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client import parser

from acstor_agent.core.boot import boot_phases
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import boot_chart
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CHUNKS = 64
DATA = local.random_bytes(CHUNKS * CHUNK, seed=5, zero_share=0.1)
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
GUEST_OF = """
import mmap, os, sys
image = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
if len(sys.argv) > 2:
    disk = os.open(sys.argv[2], os.O_RDWR)
page = mmap.mmap(-1, 65536)
for at in reversed(range(0, os.fstat(image).st_size, 65536)):
    os.preadv(image, [page], at)
print(flush=True)
sys.stdin.read()
"""
"""Opens the base and then an instance's disk, as QEMU may; reads backwards, so that no read-ahead
starts."""


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


def reader(agent: agents.Agent, image_id: str, *more: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", GUEST_OF, agent.image_path(image_id), *map(str, more)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read_all(agent: agents.Agent, image_id: str) -> None:
    with reader(agent, image_id) as one:
        assert one.stdout is not None
        assert one.stdout.readline()
        one.communicate()


def test_boot_timeline_shows_the_origins_of_its_bytes(images, image_id, start, tmp_path):
    images.add_boot_image(image_id, range(CHUNKS // 2))
    disk = tmp_path / SERVER / "disk"
    disk.parent.mkdir()
    disk.write_bytes(b"")
    port = local.unused_port()
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}", metrics_by_image=True)
    agents.request(agent.control_socket, "attach-image", image_id=image_id)
    hosts.wait_until(
        lambda: agent.status()["images"][image_id]["boot_image"]["state"] == "ready",
        "the boot image",
    )
    with reader(agent, image_id, disk) as booting:
        try:
            assert booting.stdout.readline()
            hosts.wait_until(lambda: bool(agent.timelines(SERVER)), "who boots")
            [boot] = agent.timelines(SERVER)
            assert agent.timelines(image_id) == [boot] and not boot.is_over
        finally:
            booting.communicate()
    hosts.wait_until(lambda: agent.timelines(SERVER)[0].is_over, "the end of the boot")
    [boot] = agent.timelines(SERVER)
    read = agent.status()["images"][image_id]["read"]
    assert boot.bytes["boot"] > 0
    assert boot.bytes == {origin: one["bytes"] for origin, one in read.items() if one["bytes"]}
    assert sum(boot.bytes.values()) == len(DATA)
    assert boot.reads == CHUNKS and boot.boot_image == "ready"
    assert {span.what for span in boot.spans} >= {"attach", "chunk map", "boot image"}
    assert sum(share.took_s for share in boot_chart.shares(boot)) == pytest.approx(boot.last_s)
    shown = agent.ctl("timeline", SERVER)
    assert f"Boot of server {SERVER}" in shown and "agent: boot image" in shown
    reported = exported_boot_phases(port, image_id)
    assert reported == pytest.approx(
        {phase: seconds for phase, seconds in boot_phases.durations(boot).items()}
    )


def exported_boot_phases(port: int, image_id: str) -> dict[str, float]:
    """Return the seconds of each phase of an image's only boot, as exported to Prometheus."""
    with urllib.request.urlopen(f"http://{local.LOOPBACK}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [
        sample
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("acstor_boot_phase_duration_seconds")
        and sample.labels["image"] == image_id
    ]
    counts = {one.labels["phase"]: one.value for one in samples if one.name.endswith("_count")}
    assert set(counts.values()) == {1.0}
    return {one.labels["phase"]: one.value for one in samples if one.name.endswith("_sum")}


def test_boot_with_an_empty_cache_waits_longest_for_the_source(images, image_id, start):
    agent = start()
    read_all(agent, image_id)
    [boot] = agent.timelines(image_id)
    waits = {what: waited_s for what, waited_s in boot.waited_s.items() if waited_s}
    assert max(waits, key=waits.__getitem__) == "source"
    assert boot.longest and boot.instance_id == ""
    assert 0 < sum(waits.values()) <= boot.last_s - boot.opened_s + 0.001


def test_agent_without_boots_says_so_and_refuses_invalid_ids(images, image_id, start):
    agent = start()
    assert "no boot since the start of the agent" in agent.ctl("timeline")
    with pytest.raises(errors.Unusable):
        agent.ctl("timeline", "../../etc/passwd")


@hosts.needs_take_over
def test_new_worker_forgets_a_boot_and_its_guest_reads_on(images, image_id, start):
    agent = start()
    with open(agent.image_path(image_id), "rb", buffering=0) as file:
        assert os.pread(file.fileno(), len(DATA), 0) == DATA
        assert len(agent.timelines()) == 1
        killed = agent.worker_pid()
        hosts.kill(killed)
        hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file.fileno(), len(DATA), 0) == DATA
    hosts.wait_until(lambda: agent.is_mounted(), "the mount")
    assert agent.timelines() == []
