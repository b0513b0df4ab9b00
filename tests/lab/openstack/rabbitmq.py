# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ of the distribution as a plain process, with its own port mapper.

The rule: nothing of it is shared with a broker of the system: neither names of nodes, nor the
port mapper, nor a folder.  It listens on the loopback only.
"""

import os
import pathlib
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence

from tests.lab.openstack import daemon

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
NODE = "acstor@localhost"
CONTROL_DEADLINE_S = 120.0
_QUIET = "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2"  # schedulers that do not spin
_CONFIG = """\
listeners.tcp.1 = {address}:{port}
log.file.level = warning
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
"""


class PortMapper(daemon.Daemon):
    """epmd, which tells Erlang nodes each other's ports."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("epmd", folder)
        self.port = daemon.port_of(folder, "epmd")

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return epmd in the foreground."""
        return ["/usr/bin/epmd", "-address", daemon.LOOPBACK, "-port", str(self.port)]

    def is_ready(self) -> bool:
        """Say whether it listens."""
        return daemon.is_listening(self.port)


class RabbitMQ(daemon.Daemon):
    """The broker; :attr:`url` is what ``transport_url`` wants."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("rabbitmq", folder)
        self.port = daemon.port_of(folder, "rabbitmq")
        self._distribution_port = daemon.port_of(folder, "rabbitmq-distribution")
        self._data = folder / "rabbitmq"
        self._mapper = PortMapper(folder)

    @property
    def url(self) -> str:
        """Where clients of oslo.messaging find it."""
        return f"rabbit://guest:guest@{daemon.LOOPBACK}:{self.port}/"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server in the foreground."""
        return [_SERVER]

    def environment(self) -> Mapping[str, str]:
        """Return what moves every file and port of it."""
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
        text = _CONFIG.format(address=daemon.LOOPBACK, port=self.port)
        (self._data / "rabbitmq.conf").write_text(text)
        (self._data / "env").touch()
        (self._data / "enabled_plugins").write_text("[].\n")

    def start(self) -> None:
        """Start the port mapper, then the broker."""
        self._mapper.start()
        self._mapper.wait_ready()
        super().start()

    def control(self, *words: str) -> str:
        """Have rabbitmqctl do something to the broker that runs; return what it writes.

        :raises subprocess.CalledProcessError: it refuses; its output is in the error
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

    def heard(self) -> set[str]:
        """Return the queues that somebody listens to."""
        listed = self.control("list_queues", "--no-table-headers", "name", "consumers")
        rows = [row.split("\t") for row in listed.splitlines()]
        return {name for name, consumers in rows if int(consumers)}

    def kill(self) -> None:
        """End both at once."""
        super().kill()
        self._mapper.kill()

    def is_ready(self) -> bool:
        """Say whether clients can connect."""
        return daemon.is_listening(self.port)
