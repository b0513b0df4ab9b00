# SPDX-License-Identifier: Apache-2.0
"""The distribution's etcd as a plain process on the loopback."""

import pathlib
from collections.abc import Sequence

from tests.lab.openstack import daemon


class Etcd(daemon.Daemon):
    """One member; :attr:`url` is the URL for tooz."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("etcd", folder)
        self.port = daemon.port_of(folder, "etcd")
        self._peer_port = daemon.port_of(folder, "etcd-peer")

    @property
    def url(self) -> str:
        """The coordination URL of leader election."""
        return f"etcd3+http://{daemon.LOOPBACK}:{self.port}"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
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
        """Return whether it listens."""
        return daemon.is_listening(self.port)
