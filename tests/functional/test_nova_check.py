# SPDX-License-Identifier: Apache-2.0
"""What the check of a compute host says about its images, with a real agent and without Nova."""

import json
import pathlib
import subprocess

from acstor_common import geometry
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]
MIB = geometry.MIB
SOON_S = 120.0
OPTIONS = {"constants": {tuned.BOOT_IDLE_S: 1.0}, "life_s": 400.0}
SMALL, LARGE = 20 * MIB, 64 * MIB


class Compute:
    """What Nova has on a host: its configuration, and instances."""

    def __init__(self, folder: pathlib.Path, agent: agents.Agent) -> None:
        self.instances, self.agent = folder / "instances", agent
        (self.instances / "_base").mkdir(parents=True, exist_ok=True)
        self.conf = folder / "nova.conf"
        self.conf.write_text(
            f"[DEFAULT]\nconfig_source = acstor\ninstances_path = {self.instances}\n"
            "[libvirt]\nimages_type = acstor\n"
            f"[acstor]\ndriver = acstor\ncontrol_socket = {agent.control_socket}\n"
            f"mount_point = {agent.mount_point}\n"
        )

    def make_instance(self, image_id: str) -> None:
        """Make an instance's root disk as Nova does."""
        link = self.instances / "_base" / image_id[:8]
        link.symlink_to(self.agent.image_path(image_id))
        disk = self.instances / image_id / "disk"
        disk.parent.mkdir()
        made = ["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", link, disk]
        subprocess.run([*made, "1G"], check=True, timeout=60)

    def check(self) -> dict[str, dict[str, str]]:
        """Return what the command finds about images, by what it looked at."""
        command = [agents.BIN / "acstor-nova-manage", "check", "--json", "--config-file", self.conf]
        done = subprocess.run(command, check=False, capture_output=True, timeout=60)
        found = {one["what"]: one for one in json.loads(done.stdout)}
        assert found["agent"]["level"] == found["mirror"]["level"] == "ok", found
        return found


def wait_for(agent: agents.Agent, state: str, *image_ids: str) -> None:
    def is_so() -> bool:
        shown = agent.status()["images"]
        return all((shown[one]["whole"] or {}).get("state") == state for one in image_ids)

    hosts.wait_until(is_so, f"images that are {state}", SOON_S)


def test_images_that_do_not_fit_are_named_before_nova_uses_them_and_afterwards(images, tmp_path):
    first, second = (images.add(local.random_bytes(12 * MIB, seed)) for seed in (1, 2))

    def agent(**options):
        return hosts.running(tmp_path / "h1", images, **OPTIONS, **options)

    with agent(keep_images="none", cache_limit_bytes=SMALL) as running:
        nova = Compute(tmp_path / "nova", running)
        for image_id in (first, second):
            running.ctl("ensure", image_id)
            nova.make_instance(image_id)
        found = nova.check()["keep_images"]
        assert found["level"] == "warning"
        assert "2 instances of this host depend for ever" in found["detail"]

    with agent(keep_images="host", cache_limit_bytes=SMALL) as running:
        nova = Compute(tmp_path / "nova", running)
        found = nova.check()
        assert found["keep_images"]["level"] == "ok"
        assert found["room for images"]["level"] == "warning"  # though no use was seen yet
        before = "1 of instances are not promised yet, at most 12 MiB; there will be no room"
        assert before in found["room for images"]["detail"]
        running.ctl("ensure", first)
        running.ctl("ensure", second)
        wait_for(running, "no room", first)  # the other one was touched later
        assert f"{first} lacks" in nova.check()["room for images"]["detail"]

    with agent(keep_images="host", cache_limit_bytes=LARGE) as running:
        nova = Compute(tmp_path / "nova", running)
        for image_id in (first, second):
            running.ctl("ensure", image_id)
        wait_for(running, "whole", first, second)
        found = nova.check()
        about = ("keep_images", "room for images", "whole images", "[image_cache] manager_interval")
        assert {found[what]["level"] for what in about} == {"ok"}
        assert found["whole images"]["detail"] == "all 2 of instances"
        assert "failing images" not in found
