# SPDX-License-Identifier: Apache-2.0
"""The decision service in the lab: its instances, and agents that use it.

Instances run outside the lab's network, beside the broker and the database, or on one of its
hosts.  There they reach the agents and can verify addresses.  Hosts in the network reach the
broker through a relay in the image server's namespace.
"""

import configparser
import contextlib
import pathlib
import signal
import sqlite3
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self

from acstor_common import errors
from tests.lab import agents
from tests.lab import forked_commands
from tests.lab import local
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import rabbitmq

STOP_DEADLINE_S = 15.0
COLLECTION_S = 1.0
JOIN_DEADLINE_S = 90.0
MANAGE_DEADLINE_S = 120.0


def configure(path: pathlib.Path, sections: Mapping[str, Mapping[str, object]]) -> pathlib.Path:
    """Write a configuration."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(sections)
    with path.open("w") as file:
        parser.write(file)
    return path


class Instance:
    """Context manager: one acstor-decision.

    :param sections: more sections of its configuration
    :param host: its host, where it verifies addresses; None: outside the hosts' network
    :param constants: that differ from the lab's
    :param options: of [acstor_decision]
    """

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        broker: str,
        database: str,
        sections: Mapping[str, Mapping[str, object]] | None = None,
        *,
        host: network.Host | None = None,
        constants: tuned.Constants | None = None,
        **options: object,
    ) -> None:
        self.name, self._host = name, host
        self.config_file = folder / f"{name}.conf"
        self._log = folder / f"{name}.log"
        own = {
            "coordination_url": f"file://{folder}/coordination",
            "metrics_listen": "",
            **({} if host else {"verify_addresses": False}),
            **options,
        }
        self._constants = {tuned.COLLECTION_S: COLLECTION_S, **(constants or {})}
        self._sections = {
            "DEFAULT": {"transport_url": broker},
            "acstor_decision": own,
            "database": {"connection": database},
            **(sections or {}),
        }
        self._process: subprocess.Popen[bytes] | forked_commands.ForkedCommand | None = None

    def __enter__(self) -> Self:
        """Create the database's tables and start, without waiting."""
        configure(self.config_file, self._sections)
        manage(self.config_file, "db-sync")
        self.start()
        return self

    def start(self) -> None:
        """Start (again), appending to the log."""
        module, arguments = forked_commands.DECISION, ["--config-file", self.config_file]
        with self._log.open("ab") as out:
            if self._host is None:
                self._process = forked_commands.start(module, arguments, self._constants, out)
            else:
                command = [*tuned.argv(module, self._constants), *arguments]
                streams: dict[str, Any] = {"stdout": out, "stderr": out}
                self._process = self._host.popen(command, stdin=subprocess.DEVNULL, **streams)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def log(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="replace")

    def leads(self) -> bool:
        """Return whether it has become the leader since its first start."""
        return " is the leader\n" in self.log()


class Service:
    """Context manager: a broker and one instance of the service for a network's hosts.

    Their files are in the folder of the network's run, which deletes them.

    :param constants: that differ from the lab's
    :param options: of [acstor_decision]
    """

    def __init__(
        self, net: network.Network, *, constants: tuned.Constants | None = None, **options: object
    ) -> None:
        self.folder = net.run.folder / "decision"
        self.database = self.folder / "decision.sqlite"
        self._net, self._constants, self._options = net, constants, options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start both; wait for the broker only."""
        with contextlib.ExitStack() as stack:
            self.folder.mkdir()
            broker = rabbitmq.RabbitMQ(self.folder)
            stack.callback(broker.kill)
            broker.start()
            broker.wait_ready()
            door = stack.enter_context(relay.Relay(self._net.source, broker.port))
            self.url = f"rabbit://guest:guest@{door.address}/"
            database = f"sqlite:///{self.database}"
            self._instance = Instance(
                self.folder,
                "one",
                broker.url,
                database,
                constants=self._constants,
                **self._options,
            )
            stack.enter_context(self._instance)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(
        self, hosts: Sequence[network.Host], link_mbit: float, source_url: str, **options: Any
    ) -> list[agents.Agent]:
        """Run an agent on each host; wait until all have a ring with all of them.

        :param options: of [acstor_agent]
        """
        joined = [
            self._stack.enter_context(
                agent(host, self._instance, None, self.url, link_mbit, source_url, **options)
            )
            for host in hosts
        ]
        self._stack.callback(agents.ask_to_end, joined)
        for one in joined:
            one.wait_ready(JOIN_DEADLINE_S)

        def have_joined() -> bool:
            return all(one.status()["ring"]["hosts"] == len(hosts) for one in joined)

        runs.wait_for(have_joined, JOIN_DEADLINE_S, "one ring on all hosts", self._instance.log)
        return joined

    def kill(self) -> None:
        """Kill the instance; the broker still runs."""
        self._instance.kill()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the service's database."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as link:
            return link.execute(text).fetchall()


def manage(config_file: pathlib.Path, *arguments: str) -> str:
    """Run acstor-decision-manage and return its output.

    :raises errors.Unusable: it failed; has its output
    """
    words = ["--config-file", config_file, *arguments]
    done = forked_commands.run(forked_commands.DECISION_MANAGE, words, {}, MANAGE_DEADLINE_S)
    if done.returncode:
        raise errors.Unusable(" ".join(map(str, done.args)), done.stderr[-2000:])
    return done.stdout


def agent(
    host: network.Host,
    instance: Instance,
    images: local.ImageFolder | None,
    broker: str,
    link_mbit: float,
    source_url: str = "",
    *,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    constants: tuned.Constants | None = None,
    **options: object,
) -> agents.Agent:
    """Return an enrolled agent of the service, not yet started.

    :param instance: of the service
    :param images: its source without an image server
    :param source_url: the image server
    :param sections: more sections of its configuration, such as other sources
    :param constants: that differ from the lab's
    """
    configured: dict[str, Mapping[str, Any]] = {
        "DEFAULT": {"transport_url": broker},
        "source_file": {"folder": images.folder if images else "/nonexistent"},
        "source_http": {"url": source_url or "http://none.invalid"},
        "oslo_messaging_rabbit": {"rabbit_retry_interval": 1, "rabbit_retry_backoff": 0},
        **(sections or {}),
    }
    own: dict[str, object] = {
        "sources": "http" if source_url else "file",
        "metrics_listen": "",
        "traffic_interfaces": "eth0",
        "link_mbit": link_mbit,
        **options,
    }
    known = {tuned.COLLECTION_S: COLLECTION_S, **(constants or {})}
    made = agents.Agent(host, source_url, sections=configured, constants=known, **own)
    manage(instance.config_file, "authority", "issue", host.name, "--out", made.identity)
    return made
