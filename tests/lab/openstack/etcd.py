# SPDX-License-Identifier: Apache-2.0
"""etcd of the distribution as a plain process with a data folder of its own, on the loopback."""

import pathlib
from collections.abc import Sequence

from tests.lab.openstack import daemon


class Etcd(daemon.Daemon):
    """One member; :attr:`url` is what tooz wants."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("etcd", folder)
        self.port = daemon.port_of(folder, "etcd")
        self._peer_port = daemon.port_of(folder, "etcd-peer")

    @property
    def url(self) -> str:
        """Where instances agree on the one that leads."""
        return f"etcd3+http://{daemon.LOOPBACK}:{self.port}"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server in the foreground."""
        here, peer = (f"http://{daemon.LOOPBACK}:{n}" for n in (self.port, self._peer_port))
        return [
            "/usr/bin/etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def is_ready(self) -> bool:
        """Say whether it listens."""
        return daemon.is_listening(self.port)
