# SPDX-License-Identifier: Apache-2.0
"""Nova's files on a compute host: nova.conf, and instance disks on mirrors."""

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

from tests.lab import agents
from tests.lab import runs


class Compute:
    """Nova's files beside an agent, and the check command of the host.

    :param program: ``acstor-nova-manage``, from an environment with Nova or without
    """

    def __init__(
        self,
        folder: pathlib.Path,
        agent: agents.Agent,
        program: pathlib.Path = agents.BIN / "acstor-nova-manage",
    ) -> None:
        self.instances, self.agent, self._program = folder / "instances", agent, program
        (self.instances / "_base").mkdir(parents=True, exist_ok=True)
        self.conf = folder / "nova.conf"
        self.conf.write_text(
            f"[DEFAULT]\nconfig_source = acstor\ninstances_path = {self.instances}\n"
            "[libvirt]\nimages_type = acstor\n"
            f"[acstor]\ndriver = acstor\ncontrol_socket = {agent.control_socket}\n"
            f"mount_point = {agent.mount_point}\n"
        )

    def make_instance(self, image_id: str) -> pathlib.Path:
        """Create an instance's root disk as Nova does; return its path."""
        link = self.instances / "_base" / image_id[:8]
        link.symlink_to(self.agent.image_path(image_id))
        disk = self.instances / image_id / "disk"
        disk.parent.mkdir()
        made = ["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", link, disk]
        subprocess.run([*made, "1G"], check=True, timeout=60)
        return disk

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the program; the caller checks the exit status."""
        argv = [self._program, *words, "--config-file", self.conf]
        environment = {**os.environ, "PYTHONPATH": str(runs.CHECKOUT)}
        return subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=60, env=environment
        )

    def check(self) -> dict[str, dict[str, str]]:
        """Return the results of the check command, by subject."""
        return {one["what"]: one for one in json.loads(self.run("check", "--json").stdout)}


@contextlib.contextmanager
def guest(disk: pathlib.Path, image: pathlib.Path) -> Iterator[None]:
    """Run a process with the disk and the image open, like an instance's QEMU."""
    with image.open("rb") as backing, disk.open("r+b") as overlay:
        process = subprocess.Popen(["sleep", "300"], stdin=backing, stdout=overlay)
    try:
        yield
    finally:
        process.kill()
        process.wait()
