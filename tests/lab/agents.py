# SPDX-License-Identifier: Apache-2.0
"""acstor-agent on a lab host: its configuration, life cycle and interfaces.

An agent's files, its socket and its mount are in its host's folder; ``stop`` removes the mount.
"""

import configparser
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import Any
from typing import Self

import msgspec

from acstor_agent import conf
from acstor_common import errors
from acstor_common.model import boot_timeline
from acstor_common.model import geometry
from tests.lab import console
from tests.lab import forked_commands
from tests.lab import identities
from tests.lab import network
from tests.lab import runs
from tests.lab import tuned

BIN = pathlib.Path(sys.executable).parent
PEER_PORT = 7201
VNODES = 100
READY_DEADLINE_S = 20.0
STOP_DEADLINE_S = 15.0
REQUEST_DEADLINE_S = 60.0
DEFAULTS: Mapping[str, object] = {
    "cache_limit_bytes": 1024 * geometry.MIB,
    "keep_images": "none",  # tests and measurements count the chunks that guests alone cause
    "metrics_listen": "127.0.0.1:9464",
    "stop_with_guests": "unmount",  # tests end guests and agents in any order
}


def ring_of(
    hosts: Sequence[network.Host], epoch: int = 1, segment_chunks: int = 1
) -> dict[str, Any]:
    """Return a v-node table with equal weights for ``hosts``."""
    entries = [
        {"host": host.name, "address": f"{host.address}:{PEER_PORT}", "vnodes": VNODES}
        for host in hosts
    ]
    return {"version": 1, "epoch": epoch, "hosts": entries, "segment_chunks": segment_chunks}


def write_ring(
    hosts: Sequence[network.Host], path: pathlib.Path, epoch: int = 1, segment_chunks: int = 1
) -> pathlib.Path:
    """Write the table of :func:`ring_of` atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(ring_of(hosts, epoch, segment_chunks)))
    return new.replace(path)


def command(constants: tuned.Constants) -> Sequence[str | pathlib.Path]:
    """Return the command line of an agent with ``constants``; its arguments follow."""
    if constants:
        return tuned.argv("acstor_agent.cmd.agent", constants)
    return [BIN / "acstor-agent"]


def request(socket_path: pathlib.Path, op: str, **fields: object) -> Any:
    """Send a request to an agent's control socket and return the result.

    :raises errors.Unusable: the agent does not answer, or reports a failure
    """
    with console.connected(socket_path) as link, link.makefile("rw") as lines:
        link.settimeout(REQUEST_DEADLINE_S)
        lines.write(json.dumps({"op": op, **fields}) + "\n")
        lines.flush()
        for line in lines:
            reply = json.loads(line)
            if reply["reply"] == "failed":
                raise errors.Unusable(f"{op} at {socket_path}", reply["error"])
            if reply["reply"] == "done":
                return reply["result"]
    raise errors.Unusable(f"{op} at {socket_path}", "the agent hung up")


def ask_to_end(running: Iterable["Agent"]) -> None:
    """Send SIGTERM to several agents, so that they end in parallel."""
    for agent in running:
        agent.ask_to_end()


class Agent:
    """Context manager: one acstor-agent in ``host``'s namespace.

    Entering starts it; :meth:`wait_ready` waits until it serves, so that several start in parallel.

    :param source_url: URL of ``<image id>.raw`` and ``<image id>.acmap``
    :param ring_file: the v-node table; without one the agent has no peers
    :param sections: more sections of the configuration, such as other sources
    :param security: of connections to other agents; None: the agent's default
    :param constants: that differ from the product's
    :param options: options of [acstor_agent] that differ from the lab's
    """

    def __init__(
        self,
        host: network.Host,
        source_url: str,
        ring_file: pathlib.Path | None = None,
        *,
        sections: Mapping[str, Mapping[str, object]] | None = None,
        security: str | None = "secure",
        constants: tuned.Constants | None = None,
        **options: object,
    ) -> None:
        self.host = host
        self.constants = constants or {}
        self._security = security
        self.folder = host.folder / "agent"
        self.mount_point = self.folder / "mirror"
        self.control_socket = self.folder / "control.sock"
        self.config_file = self.folder / "acstor.conf"
        self.identity = self.folder / "state" / "identity"
        self._sections = {**self._config(source_url, ring_file, options), **(sections or {})}
        self._process: subprocess.Popen[bytes] | forked_commands.ForkedCommand | None = None

    def _config(
        self, source_url: str, ring_file: pathlib.Path | None, options: Mapping[str, object]
    ) -> dict[str, dict[str, object]]:
        agent = {
            "host": self.host.name,
            "state_dir": self.folder / "state",
            "cache_dir": self.folder / "cache",
            "peer_listen": f"{self.host.address}:{PEER_PORT}",
            "sources": "http",
            **DEFAULTS,
            **({"ring_file": ring_file} if ring_file else {}),
            **({"peer_security": self._security} if self._security else {}),
            **options,
        }
        if unknown := agent.keys() - {option.dest for option in (*conf.OPTS, conf.VARIANTS)}:
            raise TypeError(f"no options of [acstor_agent]: {', '.join(sorted(unknown))}")
        shared = {"control_socket": self.control_socket, "mount_point": self.mount_point}
        return {"acstor": dict(shared), "acstor_agent": agent, "source_http": {"url": source_url}}

    def clear(self) -> None:
        """Delete the state and cache of earlier agents, whose images could fill the cache."""
        for kept in (self.state_dir, self.folder / "cache"):
            shutil.rmtree(kept, ignore_errors=True)

    def __enter__(self) -> Self:
        """Write the configuration and start the agent, without waiting."""
        self.configure()
        self.start()
        return self

    def configure(self) -> None:
        """Write the configuration, create the mount point and the identity."""
        self.mount_point.mkdir(parents=True, exist_ok=True)
        if self._security == "secure":
            identities.give(self.state_dir, str(self._sections["acstor_agent"]["host"]))
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_dict(self._sections)
        with self.config_file.open("w") as file:
            parser.write(file)

    @property
    def argv(self) -> list[str | pathlib.Path]:
        """The command that runs the agent."""
        return [*command(self.constants), "--config-file", self.config_file]

    @property
    def state_dir(self) -> pathlib.Path:
        """The agent's state folder."""
        return pathlib.Path(str(self._sections["acstor_agent"]["state_dir"]))

    def start(self) -> None:
        """Start the agent (again), appending to its log."""
        with self._log.open("ab") as out:
            self._process = self._begin(out)

    def _begin(self, out: IO[bytes]) -> subprocess.Popen[bytes] | forked_commands.ForkedCommand:
        server, namespaces = forked_commands.server(forked_commands.AGENT), self.host.namespaces
        if server is not None and namespaces is not None:
            words = ["--config-file", self.config_file]
            return server.start(words, self.constants, out, namespaces=namespaces)
        return self.host.popen(self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _log(self) -> pathlib.Path:
        return self.folder / "agent.log"

    def log(self) -> str:
        """Return the agent's log."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The supervisor's pid.

        :raises errors.Unusable: the agent is not running; has its log
        """
        if self._process is None or self._process.poll() is not None:
            raise errors.Unusable(
                f"acstor-agent on {self.host.name}", f"it has ended: {self.log()[-2000:]}"
            )
        return self._process.pid

    def worker_pid(self) -> int | None:
        """Return the serving worker's pid, None between two workers."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[-1]) if children else None

    def own_memory_bytes(self) -> int:
        """Return the worker's anonymous resident memory."""
        status = pathlib.Path(f"/proc/{self.worker_pid()}/status").read_text()
        return 1024 * int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0])

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Wait until the agent answers on its control socket and its mirror is mounted.

        :raises errors.Unusable: it ended or took too long; has its log
        """
        what = f"acstor-agent on {self.host.name}"
        runs.wait_for(self._is_ready, deadline_s, what, self.log)

    def _is_ready(self) -> bool:
        _ = self.pid  # a dead agent never gets ready
        return self.is_serving()

    def is_serving(self) -> bool:
        """Return whether the control socket answers and the mirror is mounted."""
        try:
            self.status()
        except (errors.Unusable, OSError):
            return False
        return self.is_mounted()

    def is_mounted(self) -> bool:
        """Return whether the agent's mount point is mounted."""
        return str(self.mount_point) in self.host.mounts_beneath(self.mount_point)

    def status(self) -> dict[str, Any]:
        """Return the agent's status with its counters."""
        result: dict[str, Any] = request(self.control_socket, "status")
        return result

    def ctl(self, *args: str) -> str:
        """Run ``acstor-agent-ctl`` on the agent's host and return its output."""
        command = BIN / "acstor-agent-ctl"
        return self.host.run([command, "--config-file", self.config_file, *args])

    def timelines(self, *which: str) -> list[boot_timeline.Timeline]:
        """Return the remembered boots of an image, of a server, or all."""
        answer: dict[str, Any] = json.loads(self.ctl("--json", "timeline", *which))
        return msgspec.convert(answer["timelines"], list[boot_timeline.Timeline])

    def image_path(self, image_id: str) -> pathlib.Path:
        """Return the path of an image's mirror."""
        return self.mount_point / "images" / f"{image_id}.raw"

    def ask_to_end(self) -> None:
        """Send SIGTERM; :meth:`stop` waits for the end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the agent, by force if needed, and unmount its mirror."""
        if self._process is None:
            return
        self.ask_to_end()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_DEADLINE_S)
        self._process = None
        if self.is_mounted():
            self.host.run(["umount", "--lazy", self.mount_point])
