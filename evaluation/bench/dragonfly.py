# SPDX-License-Identifier: Apache-2.0
"""Dragonfly, for PEERS: a scheduler on the first host, and a daemon on each.

``tools/dragonfly.sh`` builds its programs. All settings but addresses and folders are Dragonfly's
defaults; there is no manager and no seed peer.
"""

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from evaluation.bench import harness
from tests.lab import network
from tests.lab import runs

PROGRAMS = harness.ROOT / ".cache" / "dragonfly" / "bin"
SCHEDULER_PORT = 8002
START_S = 60.0


class Daemon:
    """A host's running dfdaemon."""

    def __init__(self, host: network.Host, socket: pathlib.Path) -> None:
        self._host, self._socket = host, socket

    def download(self, url: str, path: pathlib.Path) -> None:
        """Download a file, from other daemons where they have it.

        :raises errors.Unusable: it failed
        """
        words = [PROGRAMS / "dfget", "--no-progress", "--endpoint", self._socket]
        self._host.run([*words, "--output", path, url])


@contextlib.contextmanager
def running(host: network.Host, first: network.Host) -> Iterator[Daemon]:
    """Run a daemon on a host, and the scheduler too if it is the first host.

    :raises harness.CannotRun: Dragonfly is not built
    """
    if not (PROGRAMS / "scheduler").exists():
        raise harness.CannotRun("Dragonfly is not built; run tools/dragonfly.sh")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(  # socket paths must be short
            stack.enter_context(tempfile.TemporaryDirectory(prefix="acstor-df-"))
        )
        if host == first:
            stack.enter_context(_scheduler(host, folder / "scheduler"))
        socket, own = folder / "s", folder / "daemon"
        settings: dict[str, Any] = {
            "host": {"ip": host.address, "hostname": host.name},
            "server": {"pluginDir": str(own / "plugins"), "cacheDir": str(own / "cache")},
            "download": {"server": {"socketPath": str(socket)}},
            "storage": {"dir": str(own / "data")},
        }
        discovery = {"scheduler": {"addrs": [f"{first.address}:{SCHEDULER_PORT}"]}}
        words = ["--log-dir", own / "logs", *_files(own, settings, discovery)]
        stack.enter_context(_process(host, [PROGRAMS / "dfdaemon", *words]))
        runs.wait_for(socket.exists, START_S, "dfdaemon", str)
        yield Daemon(host, socket)


@contextlib.contextmanager
def _scheduler(host: network.Host, own: pathlib.Path) -> Iterator[None]:
    settings: dict[str, Any] = {
        "server": {
            **{"advertiseIP": host.address, "listenIP": host.address, "port": SCHEDULER_PORT},
            **{name: str(own / name) for name in ("logDir", "pluginDir", "dataDir")},
        },
        "job": {"enable": False},
    }
    words = [PROGRAMS / "scheduler", *_files(own, settings, {})]
    with _process(host, words):
        listening = f"{host.address}:{SCHEDULER_PORT} "
        runs.wait_for(lambda: listening in host.run(["ss", "-Hltn"]), START_S, "scheduler", str)
        yield


def _files(own: pathlib.Path, settings: object, discovery: object) -> list[str | pathlib.Path]:
    """Write the settings, as YAML; return the arguments that name the files."""
    own.mkdir()
    paths = {"config": own / "config.yaml", "dynconfig": own / "dynconfig.yaml"}
    for path, content in zip(paths.values(), (settings, discovery), strict=True):
        path.write_text(json.dumps(content))
    return [word for name, path in paths.items() for word in (f"--{name}", path)]


@contextlib.contextmanager
def _process(host: network.Host, words: list[str | pathlib.Path]) -> Iterator[None]:
    process = host.popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()
