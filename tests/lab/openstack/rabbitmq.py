# SPDX-License-Identifier: Apache-2.0
"""The distribution's RabbitMQ as a plain process, with its own port mapper.

It shares nothing with the system's broker: neither node names, nor port mapper, nor folder.  It
listens on the loopback only.
"""

import os
import pathlib
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence

import trustme

from tests.lab.openstack import daemon

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
NODE = "acstor@localhost"
CONTROL_DEADLINE_S = 120.0
_QUIET = "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2"  # schedulers without busy waiting
_CONFIG = """\
listeners.tcp.1 = {address}:{port}
listeners.ssl.1 = {address}:{tls_port}
ssl_options.cacertfile = {folder}/ca.pem
ssl_options.certfile = {folder}/cert.pem
ssl_options.keyfile = {folder}/key.pem
log.file.level = warning
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
"""


class PortMapper(daemon.Daemon):
    """epmd, the port mapper of Erlang nodes."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("epmd", folder)
        self.port = daemon.port_of(folder, "epmd")

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return epmd's command line."""
        return ["/usr/bin/epmd", "-address", daemon.LOOPBACK, "-port", str(self.port)]

    def is_ready(self) -> bool:
        """Return whether it listens."""
        return daemon.is_listening(self.port)


class RabbitMQ(daemon.Daemon):
    """The broker; :attr:`url` is ``transport_url``.

    Clients use TLS at :attr:`tls_port`, with the authority in the file :attr:`authority`.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("rabbitmq", folder)
        self.port = daemon.port_of(folder, "rabbitmq")
        self.tls_port = daemon.port_of(folder, "rabbitmq-tls")
        self._distribution_port = daemon.port_of(folder, "rabbitmq-distribution")
        self._data = folder / "rabbitmq"
        self.authority = self._data / "ca.pem"
        self._mapper = PortMapper(folder)

    @property
    def url(self) -> str:
        """The URL for clients of oslo.messaging."""
        return f"rabbit://guest:guest@{daemon.LOOPBACK}:{self.port}/"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
        return [_SERVER]

    def environment(self) -> Mapping[str, str]:
        """Return the variables that move all its files and ports."""
        return {
            "ERL_CRASH_DUMP": str(self.folder / "log" / "rabbitmq-crash.dump"),
            "ERL_EPMD_ADDRESS": daemon.LOOPBACK,
            "ERL_EPMD_PORT": str(self._mapper.port),
            "HOME": str(self._data),
            "RABBITMQ_CONFIG_FILE": str(self._data / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self._data / "env"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._data / "enabled_plugins"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(self._data / "mnesia"),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{127,0,0,1}} {_QUIET}"
            ),
        }

    def configure(self) -> None:
        """Write its configuration; no plug-in is enabled."""
        self._data.mkdir(exist_ok=True)
        if not self.authority.exists():
            authority = trustme.CA()
            server = authority.issue_cert(daemon.LOOPBACK)
            server.private_key_pem.write_to_path(self._data / "key.pem")
            server.cert_chain_pems[0].write_to_path(self._data / "cert.pem")
            authority.cert_pem.write_to_path(self.authority)
        values = {"address": daemon.LOOPBACK, "port": self.port, "tls_port": self.tls_port}
        text = _CONFIG.format(folder=self._data, **values)
        (self._data / "rabbitmq.conf").write_text(text)
        (self._data / "env").touch()
        (self._data / "enabled_plugins").write_text("[].\n")

    def start(self) -> None:
        """Start the port mapper, then the broker."""
        self._mapper.start()
        self._mapper.wait_ready()
        super().start()

    def control(self, *words: str) -> str:
        """Run rabbitmqctl on the running broker; return its output.

        :raises subprocess.CalledProcessError: it fails; has its output
        """
        argv = [_CONTROL, "-q", "-n", NODE, *words]
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(
            argv,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=CONTROL_DEADLINE_S,
        )
        return done.stdout

    def queues_with_consumers(self) -> set[str]:
        """Return the queues with consumers."""
        listed = self.control("list_queues", "--no-table-headers", "name", "consumers")
        rows = [row.split("\t") for row in listed.splitlines()]
        return {name for name, consumers in rows if int(consumers)}

    def kill(self) -> None:
        """Kill both."""
        super().kill()
        self._mapper.kill()

    def is_ready(self) -> bool:
        """Return whether clients can connect."""
        return daemon.is_listening(self.port)
