# SPDX-License-Identifier: Apache-2.0
"""A lab's vaults: the real daemon of each host on the loopback, and clients."""

import pathlib
import signal
import socket
import ssl
import subprocess

from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.lab import forked_commands
from tests.lab import identities
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

START_S = 30.0
HOSTS = (*(f"h{number}" for number in range(1, 10)), "owner", "keeper1", "keeper2")
"""The hosts of each v-node table, besides the vault's own host."""


def credentials_of(
    folder: pathlib.Path,
    name: str,
    issuer: certificates.Authority | None = None,
    protocol: str = tls_channel.PROTOCOL,
) -> credentials.Credentials:
    """Return a host's credentials for vaults; its files are in ``folder``."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        identity_files.write(folder, identities.issue(name, issuer))
    files = identity_files.IdentityFiles(ids.HostId(name), identity_files.files_in(folder))
    made = credentials.Credentials(files, protocol, certificates.GRACE_S)
    made.reload_files()
    return made


class Vault:
    """The daemon of one host.

    :param broker: its message bus for taking checkpoints; "": it takes none
    :param constants: that differ from the product's
    :param options: of ``[acstor_checkpoint]``, besides its addresses and paths
    """

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        *,
        broker: str = "",
        constants: tuned.Constants | None = None,
        **options: object,
    ) -> None:
        self.name, self._folder = ids.HostId(name), folder
        self._broker, self._constants = broker, constants or {}
        self.folder = folder / "vault"
        self.credentials = credentials_of(folder / "identity", name)
        self.port = local.unused_port()
        self._options = options
        self.others: tuple[str, ...] = ()
        """More hosts of the v-node table."""
        self.process: subprocess.Popen[bytes] | forked_commands.ForkedCommand | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        options = {
            "agent_config_file": self._folder / "acstor-checkpoint.conf",
            "vault_dir": self.folder,
            "vault_listen": f"127.0.0.1:{self.port}",
            "metrics_listen": "",
            **self._options,
        }
        self.write_table(*{*HOSTS, self.name, *self.others})
        config = self._folder / "acstor-checkpoint.conf"
        lines = [f"{name} = {value}" for name, value in options.items()]
        lines += [
            "[acstor_agent]",
            f"host = {self.name}",
            f"identity_dir = {self._folder / 'identity'}",
            f"ring_file = {self._folder / 'ring.json'}",
        ]
        if self._broker:
            lines += ["[DEFAULT]", f"transport_url = {self._broker}"]
        config.write_text("\n".join(["[acstor_checkpoint]", *lines, ""]))
        module, arguments = forked_commands.CHECKPOINTD, ["--config-file", config]
        with (self._folder / "log").open("ab") as log:
            self.process = forked_commands.start(module, arguments, self._constants, log)
        runs.wait_for(self._answers, START_S, f"the vault of {self.name}", self.log)

    def write_table(self, *hosts: str) -> None:
        """Write these hosts to its v-node table."""
        listed = (
            hash_ring.RingHost(ids.HostId(host), f"127.0.0.1:{7201 + n}", 8)
            for n, host in enumerate(hosts)
        )
        (self._folder / "ring.json").write_bytes(hash_ring.encode(hash_ring.Ring(1, tuple(listed))))

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        with self.client(self) as client:
            try:
                client.list_disks(self.name)
            except errors.SourceUnreachable:
                return False
        return True

    def log(self) -> str:
        """Return its log."""
        return (self._folder / "log").read_text()

    def client(self, of: "Vault") -> vault_client.VaultClient:
        """Return this host's client of another host's vault."""
        return vault_client.VaultClient(of.name, ("127.0.0.1", of.port), self.credentials)

    def dial(self, of: "Vault") -> ssl.SSLSocket:
        """Return an unused TLS connection to another host's vault."""
        sock = socket.create_connection(("127.0.0.1", of.port), 10)
        return self.credentials.tls_context(is_server=False).wrap_socket(sock)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Stop it by a signal; return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process = None
        return status

    def close(self) -> None:
        """Kill it if it runs."""
        if self.process is not None:
            self.kill()
