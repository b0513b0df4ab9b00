# SPDX-License-Identifier: Apache-2.0
"""A real guest boots from a mirror: its milestones, its timeline, and the recorded boot.

The next guest boots with the boot image of that recording, while its worker is killed.

"""

import contextlib
import pathlib
from collections.abc import Iterator

import msgspec
import pytest

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import boot_trace
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import boot_chart
from acstor_common.wire import trace_message
from acstor_glance.boot import boot_builder
from acstor_glance.boot import guest_disk
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import guest
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

pytestmark = hosts.needs_fuse
LIFE_S = 280.0
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


@contextlib.contextmanager
def started(agent: agents.Agent, image_id: ids.ImageId, name: str) -> Iterator[guest.Guest]:
    """Run a guest on ``agent``."""
    path = agent.image_path(image_id)
    overlay = agent.host.folder / name
    overlay.parent.mkdir(exist_ok=True)
    disk = guest.make_overlay(overlay, path, "raw", path.stat().st_size)
    with contextlib.ExitStack() as stack:
        with runs.prioritized():
            running = stack.enter_context(guest.Guest(agent.host, disk))
        yield running


@pytest.mark.nightly
def test_guest_boots_from_a_recorded_boot_image_while_its_worker_is_killed(
    tmp_path: pathlib.Path, images: local.ImageFolder, guest_image_id: ids.ImageId
) -> None:
    constants = {tuned.RECORD_IDLE_S: 5, tuned.BOOT_IDLE_S: 600}
    with hosts.running(tmp_path / "h1", images, life_s=LIFE_S, constants=constants) as agent:
        agents.request(agent.control_socket, "attach-image", image_id=guest_image_id)
        with started(agent, guest_image_id, f"{SERVER}/disk") as first:
            check_milestones(first.wait_booted(LIFE_S))
            hosts.wait_until(lambda: agent.status()["boot"]["recorded"] > 0, "a trace", 60)
            check_timeline(agent)
            assert first.shell("echo lab > /root/note; cat /root/note") == "lab\n"
            first.check_progress()
        (path,) = (agent.folder / "state/traces").glob("*.actrace")
        trace = msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace).trace
        head = write_boot_image(images, guest_image_id, boot_trace.merge([trace], 0.5))
    assert 100 * head.size_bytes < 3 * images.path(guest_image_id).stat().st_size
    if not hosts.kernel_can_resend():
        pytest.skip("what follows needs Linux 6.9 or newer")
    with hosts.running(tmp_path / "h2", images, name="h2", life_s=LIFE_S) as agent:
        with started(agent, guest_image_id, "second.qcow2") as second:
            hosts.wait_until(lambda: boot_bytes(agent) > 5 * geometry.MIB, "reads", 60)
            killed = agent.worker_pid()
            hosts.kill(killed)
            hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
            second.wait_booted(LIFE_S)
            assert boot_bytes(agent) > geometry.MIB  # served by the next worker
            second.check_progress()


def check_milestones(seen: guest.Milestones) -> None:
    assert seen.first_line_s is not None
    assert seen.login_s is not None
    assert 0 < seen.first_line_s < seen.login_s
    assert seen.read_bytes is not None
    assert 10_000_000 < seen.read_bytes < 200_000_000


def check_timeline(agent: agents.Agent) -> None:
    """Check that the guest's reads appear in its timeline, second by second."""
    hosts.wait_until(lambda: bool(agent.timelines(SERVER)), "who boots")
    [boot] = agent.timelines(SERVER)
    assert boot.opened_s < boot.last_s
    assert boot.bytes["source"] > 10 * geometry.MIB
    assert sum(one.reads for one in boot.slices) == boot.reads
    waited_s = sum(boot.waited_s.values())
    assert sum(one.waited_s for one in boot.slices) == pytest.approx(waited_s, rel=0.01)
    assert dict(boot_chart.shares(boot))["guest: by itself"] > 0


def write_boot_image(
    images: local.ImageFolder, image_id: ids.ImageId, trace: tuple[int, ...]
) -> boot_image.Head:
    image_map = chunk_map.ChunkMap.parse(images.map_path(image_id).read_bytes(), "the map")
    with images.path(image_id).open("rb") as file:
        output = images.boot_image_path(image_id)
        disk = guest_disk.GuestDisk(file.fileno(), image_map)
        profiled = boot_image.ProfiledTrace(trace)
        return boot_builder.write_boot_image(disk, image_map, profiled, output, revision=1)


def boot_bytes(agent: agents.Agent) -> int:
    found: int = agent.status()["read"]["boot"]["bytes"]
    return found
