# SPDX-License-Identifier: Apache-2.0
"""A real guest that boots with its boot image, the worker being killed meanwhile.

The boot image is made of the boot before, as the agent has recorded it.
"""

import pathlib

import msgspec

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import boot_trace
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_glance.boot import boot_builder
from acstor_glance.boot import guest_disk
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import guest
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]
LIFE_S = 280.0


def booted(agent: agents.Agent, image_id: ids.ImageId, name: str) -> guest.Guest:
    """Return a guest on ``agent``, to be started."""
    path = agent.image_path(image_id)
    disk = guest.make_overlay(agent.host.folder / name, path, "raw", path.stat().st_size)
    return guest.Guest(agent.host, disk)


def test_guest_boots_with_a_boot_image_of_recorded_boots_and_the_worker_is_killed(
    tmp_path: pathlib.Path, images: local.ImageFolder, guest_image_id: ids.ImageId
) -> None:
    given = {"life_s": LIFE_S, "constants": {tuned.RECORD_IDLE_S: 5}}
    with hosts.running(tmp_path / "h1", images, **given) as agent:
        with booted(agent, guest_image_id, "first.qcow2") as first:
            first.wait_booted(LIFE_S)
            hosts.wait_until(lambda: agent.status()["boot"]["recorded"] > 0, "a trace", 60)
        (path,) = (agent.folder / "state/traces").glob("*.actrace")
        trace = msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace).trace
        head = write_boot_image(images, guest_image_id, boot_trace.merge([trace], 0.5))
    assert 100 * head.size_bytes < 3 * images.path(guest_image_id).stat().st_size
    with hosts.running(tmp_path / "h2", images, name="h2", life_s=LIFE_S) as agent:
        with booted(agent, guest_image_id, "second.qcow2") as second:
            hosts.wait_until(lambda: boot_bytes(agent) > 5 * geometry.MIB, "reads", 60)
            killed = agent.worker_pid()
            hosts.kill(killed)
            hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
            second.wait_booted(LIFE_S)
            assert boot_bytes(agent) > geometry.MIB  # served by the next worker
            second.check_progress()


def write_boot_image(
    images: local.ImageFolder, image_id: ids.ImageId, trace: tuple[int, ...]
) -> boot_image.Head:
    image_map = chunk_map.ChunkMap.parse(images.map_path(image_id).read_bytes(), "the map")
    with images.path(image_id).open("rb") as file:
        output = images.boot_image_path(image_id)
        disk = guest_disk.GuestDisk(file.fileno(), image_map)
        return boot_builder.write_boot_image(disk, image_map, trace, output, revision=1)


def boot_bytes(agent: agents.Agent) -> int:
    found: int = agent.status()["read"]["boot"]["bytes"]
    return found
