# SPDX-License-Identifier: Apache-2.0
"""nova-compute with libvirt on a machine of the lab, and an acstor agent there if a test wants one.

The rule: hosts differ by name and address only, so a server may be built on or moved to any.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from tests.lab import agents
from tests.lab import guest
from tests.lab.openstack import configured
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import machine
from tests.lab.openstack import nova


def acstor_options(agent: agents.Agent) -> dict[str, dict[str, object]]:
    """Return what nova.conf says on a host with this agent."""
    return {
        "DEFAULT": {"config_source": "acstor"},
        "acstor": {
            "driver": "acstor",
            "control_socket": agent.control_socket,
            "mount_point": agent.mount_point,
        },
        "libvirt": {"images_type": "acstor"},
    }


class Compute(configured.Configured):
    """A compute host: its machine, and nova-compute there."""

    conf_name = "nova.conf"

    def __init__(self, host: str, folder: pathlib.Path, needs: nova.Needs) -> None:
        super().__init__(f"nova-compute-{host}", folder)
        self.host = host  #: what Nova calls it
        self.machine = machine.Machine(host, folder)
        self._needs = needs

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        has_kvm = guest.accelerator() == "kvm"
        return ini.merged(
            nova.shared_sections(self.folder, self._needs, self.conf_file),
            {
                "DEFAULT": {
                    "host": self.host,
                    "my_ip": self.machine.address,
                    "compute_driver": "libvirt.LibvirtDriver",
                },
                "libvirt": {
                    "virt_type": "kvm" if has_kvm else "qemu",
                    "cpu_mode": "host-passthrough" if has_kvm else "none",
                    "images_type": "default",
                    "live_migration_inbound_addr": self.machine.address,
                },
            },
        )

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return nova-compute in the foreground, to be run on the machine."""
        command = [installed.BIN / "nova-compute", "--config-file", self.conf_file]
        return [*self.machine.enter(), *command]

    @property
    def instances(self) -> pathlib.Path:
        """Where Nova's instances on this host are seen from outside of it."""
        return self.machine.home / "nova" / "instances"

    def start(self) -> None:
        """Start the machine if it is down, then nova-compute."""
        self.machine.boot()
        self.machine.wait_booted()
        self.instances.mkdir(exist_ok=True)
        super().start()

    def crash(self) -> None:
        """End everything on this host at once, guests too, as if it had lost power."""
        self.kill()
        self.machine.kill()

    @contextlib.contextmanager
    def agent(
        self,
        sections: Mapping[str, Mapping[str, object]] | None = None,
        ring_file: pathlib.Path | None = None,
        **options: object,
    ) -> Iterator[agents.Agent]:
        """Run an acstor agent that keeps nothing yet; options are those of [acstor_agent]."""
        metrics = {"metrics_listen": f"{self.machine.address}:9464", "metrics_by_image": True}
        running = agents.Agent(
            self.machine.inside, "", ring_file, sections=sections, **{**metrics, **options}
        )
        running.clear()
        for base in (self.instances / "_base").glob("*"):
            if base.is_symlink():  # to an image of an earlier agent
                base.unlink()
        with running:
            running.wait_ready()
            yield running

    def daemons(self) -> list[daemon.Daemon]:
        """Return the machine, what always runs on it, and nova-compute."""
        return [*self.machine.daemons(), self]
