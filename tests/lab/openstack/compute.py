# SPDX-License-Identifier: Apache-2.0
"""nova-compute with libvirt on a lab machine, and optionally an acstor agent.

Hosts differ only in name and address, so a server can be built on or moved to any.
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
    """Return nova.conf's acstor options on a host with this agent."""
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
    """A compute host: its machine and its nova-compute."""

    conf_name = "nova.conf"

    def __init__(self, host: str, folder: pathlib.Path, needs: nova.Needs) -> None:
        super().__init__(f"nova-compute-{host}", folder)
        self.host = host  #: its name in Nova
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
        """Return nova-compute's command line on the machine."""
        command = [installed.BIN / "nova-compute", "--config-file", self.conf_file]
        return [*self.machine.enter(), *command]

    @property
    def instances(self) -> pathlib.Path:
        """The path of this host's instances, as seen from outside."""
        return self.machine.home / "nova" / "instances"

    def start(self) -> None:
        """Start the machine if it is down, then nova-compute."""
        self.machine.boot()
        self.machine.wait_booted()
        self.instances.mkdir(exist_ok=True)
        super().start()

    def crash(self) -> None:
        """Kill all processes on this host, including guests, like a power failure."""
        self.kill()
        self.machine.kill()

    @contextlib.contextmanager
    def agent(
        self,
        sections: Mapping[str, Mapping[str, object]] | None = None,
        ring_file: pathlib.Path | None = None,
        **options: object,
    ) -> Iterator[agents.Agent]:
        """Run an acstor agent with an empty cache; options are those of [acstor_agent]."""
        metrics = {"metrics_listen": f"{self.machine.address}:9464", "metrics_by_image": True}
        running = agents.Agent(
            self.machine.inside, "", ring_file, sections=sections, **{**metrics, **options}
        )
        running.clear()
        for base in (self.instances / "_base").glob("*"):
            if base.is_symlink():  # links to an earlier agent's mirrors
                base.unlink()
        with running:
            running.wait_ready()
            yield running

    def daemons(self) -> list[daemon.Daemon]:
        """Return the machine, its permanent daemons, and nova-compute."""
        return [*self.machine.daemons(), self]
