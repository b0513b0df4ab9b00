# SPDX-License-Identifier: Apache-2.0
"""acstor-checkpointd on hosts of the lab's cloud.

A compute host takes checkpoints and stores those of others; a host without libvirt and without a
broker only stores those of others.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from tests.lab import agents
from tests.lab.openstack import configured
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import machine as machine_

VNODES = 100


class Place(NamedTuple):
    """The host of a daemon.

    :param folder: for its vault and state
    :param machine: the compute host; None: a host that only stores checkpoints
    """

    host: str
    address: str
    folder: pathlib.Path
    machine: machine_.Machine | None = None


class Checkpointd(configured.Configured):
    """The daemon of one host.

    :param vault_port: the same on all hosts
    :param more: options besides its addresses and paths, by section
    """

    conf_name = "acstor.conf"

    def __init__(
        self, folder: pathlib.Path, place: Place, vault_port: int, more: ini.Sections
    ) -> None:
        super().__init__(f"acstor-checkpointd-{place.host}", folder)
        self.place, self._port, self._more = place, vault_port, more
        self.vault = place.folder / "vault"

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        own: Mapping[str, object] = {
            "agent_config_file": self.conf_file,
            "vault_listen": f"{self.place.address}:{self._port}",
            "vault_dir": self.vault,
            "state_dir": self.place.folder / "state",
            "metrics_listen": "",
        }
        agent: Mapping[str, object] = {"host": self.place.host}
        return ini.merged({"acstor_checkpoint": own, "acstor_agent": agent}, self._more)

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the daemon's command line on its host."""
        self.place.folder.mkdir(parents=True, exist_ok=True)
        command = [agents.BIN / "acstor-checkpointd", "--config-file", self.conf_file]
        return [*(self.place.machine.enter() if self.place.machine else ()), *command]

    def is_ready(self) -> bool:
        """Return whether other hosts reach its vault."""
        return daemon.is_listening(self._port, self.place.address)

    def kept_for(self, owner: str) -> list[pathlib.Path]:
        """Return the files in its vault of a host."""
        found = os.walk(self.vault / owner)  # a folder may disappear meanwhile
        return [pathlib.Path(folder, name) for folder, _, names in found for name in names]


def write_ring(path: pathlib.Path, addresses: Mapping[str, str]) -> pathlib.Path:
    """Write a v-node table of hosts and their addresses."""
    entries = [
        {"host": host, "address": f"{address}:{agents.PEER_PORT}", "vnodes": VNODES}
        for host, address in addresses.items()
    ]
    path.write_text(json.dumps({"version": 1, "epoch": 1, "hosts": entries}))
    return path
