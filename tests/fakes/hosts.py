# SPDX-License-Identifier: Apache-2.0
"""Test hosts: real agents on the loopback, a source of their own, and a watchdog.

A stuck agent must not hang the test: a signal cannot interrupt a read of its mirror.  So the
watchdog kills each agent at its deadline, and the kernel then ends the read.
"""

import configparser
import contextlib
import json
import mmap
import os
import pathlib
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest

from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

LIFE_S = 40.0
"""The longest life of a test's agent."""
START_S = 15.0
BY_HOMES = "no-hedges,no-source-first"
"""Agent variants that ask only homes while these respond.

On a slow machine a hedge may read a chunk twice, and guests reach the source before peers; both
have tests of their own.
"""


def kernel_can_resend() -> bool:
    """Return whether the kernel has FUSE_NOTIFY_RESEND, so that agents need no relay."""
    release = platform.release().split("-")[0].split(".")
    return tuple(int(part) for part in release[:2]) >= (6, 9)


needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs root and /dev/fuse",
)
needs_take_over = pytest.mark.skipif(not kernel_can_resend(), reason="needs Linux 6.9 or newer")
of_packages = [needs_fuse, needs_take_over, pytest.mark.packages, pytest.mark.timeout(7200)]
"""Marks of tests that build packages or containers."""


def kill(*pids: int | None) -> None:
    """Kill processes with SIGKILL."""
    for pid in pids:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """Freeze a process with SIGSTOP for the block."""
    if pid is None:
        pytest.fail("there is no such process")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill_agent(agent: agents.Agent) -> None:
    """Kill an agent's supervisor and its worker, like a power failure."""
    kill(agent.pid, agent.worker_pid())


@contextlib.contextmanager
def bounded(agent: agents.Agent, life_s: float = LIFE_S) -> Iterator[None]:
    """Kill the agent if the block takes longer than ``life_s``."""

    def end() -> None:
        with contextlib.suppress(Exception):  # it has exited
            kill_agent(agent)

    timer = threading.Timer(life_s, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def running(
    folder: pathlib.Path, images: local.ImageFolder, *, life_s: float = LIFE_S, **options: Any
) -> Iterator[agents.Agent]:
    """Run an agent with its files in ``folder``; options: see :func:`local.agent`."""
    with local.agent(folder, images, **options) as agent, bounded(agent, life_s):
        agent.wait_ready()
        yield agent


def http_options(url: str, timeout_s: float = 1.0) -> dict[str, Any]:
    """Return options for an agent that reads from a web server."""
    return {
        "sources": "http",
        "sections": {"source_http": {"url": url, "timeout_s": timeout_s}},
    }


def ring_table(
    ports: Mapping[str, int], epoch: int = 1, vnodes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a v-node table of loopback hosts.

    :param vnodes: v-nodes of hosts that differ from the default
    """
    return {
        "version": 1,
        "epoch": epoch,
        "hosts": [
            {
                "host": name,
                "address": f"{local.LOOPBACK}:{port}",
                "vnodes": (vnodes or {}).get(name, 100),
            }
            for name, port in ports.items()
        ],
    }


def write_ring(
    path: pathlib.Path,
    ports: Mapping[str, int],
    epoch: int = 1,
    vnodes: Mapping[str, int] | None = None,
) -> pathlib.Path:
    """Write a v-node table atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(ring_table(ports, epoch, vnodes)))
    return new.replace(path)


class Cloud:
    """Several agents with one ring."""

    def __init__(self, folder: pathlib.Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.ports = {name: local.unused_port() for name in names}
        self.ring_file = folder / "ring.json"
        self.agents: dict[str, agents.Agent] = {}

    def __getitem__(self, name: str) -> agents.Agent:
        return self.agents[name]

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the status of each agent."""
        return {name: agent.status() for name, agent in self.agents.items()}


@contextlib.contextmanager
def cloud(
    folder: pathlib.Path,
    images: local.ImageFolder,
    names: Sequence[str] = ("h1", "h2", "h3"),
    *,
    in_ring_only: Mapping[str, int] | None = None,
    each: Callable[[str], Mapping[str, Any]] = lambda name: {},
    life_s: float = LIFE_S,
    **options: Any,
) -> Iterator[Cloud]:
    """Run an agent for each of ``names``, all on one ring.

    :param in_ring_only: ports of ring hosts without an agent
    :param each: more options for one agent, by its name
    :param options: for all agents; the peer timeout is half a second unless ``constants`` set it
    """
    made = Cloud(folder, names)
    write_ring(made.ring_file, {**made.ports, **(in_ring_only or {})})
    with contextlib.ExitStack() as stack:
        for name, port in made.ports.items():
            own = {**options, **each(name)}
            own["constants"] = {tuned.PEER_SILENCE_S: 0.5, **own.get("constants", {})}
            agent = local.agent(
                folder / name, images, name=name, peer_port=port, ring_file=made.ring_file, **own
            )
            made.agents[name] = stack.enter_context(agent)
            stack.enter_context(bounded(made.agents[name], life_s))
        stack.callback(agents.ask_to_end, made.agents.values())
        for agent in made.agents.values():
            agent.wait_ready()
        yield made


def wait_until(is_true: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Wait until a condition holds; fail after ``deadline_s``."""
    runs.wait_for(is_true, deadline_s, what, str)


def wait_written(agent: agents.Agent) -> None:
    """Wait until the agent has written every received chunk to disk."""
    wait_until(lambda: not agent.status()["cache"]["pending_bytes"], "the cache on disk")


def read_direct(path: pathlib.Path, offset: int, length: int) -> bytes:
    """Read with O_DIRECT; offset and length are multiples of 4 KiB."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, length)
        return buffer[: os.preadv(fd, [buffer], offset)]
    finally:
        os.close(fd)


def fill_of(agent: agents.Agent, image_id: str) -> dict[str, Any] | None:
    """Return the fill status of an image, None if it is not pinned."""
    shown: dict[str, Any] | None = agent.status()["images"].get(image_id, {}).get("fill")
    return shown


def wait_fill_state(
    agent: agents.Agent, image_id: str, state: str, within_s: float, why: str = ""
) -> dict[str, Any]:
    """Wait for a fill state whose reason contains ``why``; return the fill status."""

    def is_so() -> bool:
        shown = fill_of(agent, image_id)
        return shown is not None and shown["state"] == state and why in shown["why"]

    wait_until(is_so, f"an image that is {state}", within_s)
    shown = fill_of(agent, image_id)
    assert shown is not None
    return shown


def configure(folder: pathlib.Path, changes: Mapping[str, Mapping[str, Any]]) -> pathlib.Path:
    """Write a valid configuration with ``changes``; return the file."""
    images = folder / "images"
    for path in (images, folder / "mirror"):
        path.mkdir(parents=True, exist_ok=True)
    sections: dict[str, dict[str, Any]] = {
        "acstor": {"control_socket": folder / "control.sock", "mount_point": folder / "mirror"},
        "acstor_agent": {
            "host": "h1",
            "state_dir": folder / "state",
            "cache_dir": folder / "cache",
            "sources": "file",
            "peer_listen": f"{local.LOOPBACK}:{local.unused_port()}",
            "metrics_listen": "",
            "stop_with_guests": "unmount",
        },
        "source_file": {"folder": images},
    }
    for name, options in changes.items():
        sections.setdefault(name, {}).update(options)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(sections)
    path = folder / "acstor.conf"
    with path.open("w") as file:
        parser.write(file)
    return path


def refuse(config_file: pathlib.Path, deadline_s: float = START_S) -> tuple[int, str]:
    """Start an agent that must refuse to start; return its exit status and output."""
    argv = [agents.BIN / "acstor-agent", "--config-file", config_file]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            time.sleep(0.5)
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            kill(*map(int, children.read_text().split()), process.pid)
            said, _ = process.communicate()
            for point in mounts(config_file.parent):
                runs.tool(["umount", "--lazy", point])
            pytest.fail(f"the agent did not end: {said.decode()[-2000:]}")
    return process.returncode, said.decode()


def mounts(folder: pathlib.Path) -> list[str]:
    """Return the mount points beneath a folder."""
    return runs.mounts_beneath(folder)
