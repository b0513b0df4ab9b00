# SPDX-License-Identifier: Apache-2.0
"""S1L: two guests and a peer read from an agent with an emulated rotating disk.

The agent's slab files are on an emulated disk, in real time.  Each guest is a process with two
threads that read distant parts of the same image sequentially, with O_DIRECT.  Meanwhile a guest on
another host with an empty cache reads a part of it through its own agent, which fetches all of it
from the first one.  The policies take turns on one warm agent, so they have the same bytes at the
same places.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import prettytable

from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from tests.fakes import hosts
from tests.fakes import rotating_agent
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

PART_BYTES = 12 * geometry.MIB
PARTS = 5
IMAGE_BYTES = 160 * geometry.MIB
POLICIES = ("none", "deadline", "cfq", "pregather")
DEADLINE_S = 300
COUNTS = "disk_counts"
"""File in the host's folder with the emulated disk's counters."""
READER = """
import mmap, os, sys, threading
path, length, *starts = sys.argv[1], *map(int, sys.argv[2:])
def read(start):
    fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 131072)
    for at in range(start, start + length, 131072):
        os.preadv(fd, [buffer], at)
threads = [threading.Thread(target=read, args=[start]) for start in starts]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


class RotatingHost(local.LocalHost):
    """This machine, with an emulated rotating disk under the agent."""

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        if pathlib.Path(argv[0]).name != "acstor-agent":
            return super()._inside(argv)
        module = "tests.fakes.rotating_agent"
        counts_file = self.folder / COUNTS
        return [sys.executable, "-m", module, str(counts_file), *map(str, argv[1:])]


@dataclasses.dataclass(frozen=True)
class Lab:
    """An agent on a rotating disk with a warm cache, and the files for its peer."""

    folder: pathlib.Path
    zeros: local.ImageFolder
    image_id: ids.ImageId
    agent: agents.Agent
    ring_file: pathlib.Path

    @property
    def image(self) -> pathlib.Path:
        return self.agent.image_path(self.image_id)

    def counts(self) -> dict[str, int]:
        """Return the disk's counters."""
        return rotating_agent.counts(self.agent.host.folder / COUNTS)

    def warm(self) -> None:
        """Read the image once, and wait until the agent has stored it."""
        subprocess.run(
            ["dd", f"if={self.image}", "iflag=direct", "bs=64k", "of=/dev/null"],
            check=True,
            capture_output=True,
        )
        hosts.wait_until(
            lambda: not self.agent.status()["cache"]["pending_bytes"], "the cache", 120
        )


@harness.measures("S1L")
def run(say: harness.Say) -> harness.Result:
    """Read with each policy in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="acstor-s1-") as name,
        started(pathlib.Path(name)) as lab,
    ):
        say("reading the image once")
        lab.warm()
        found = {policy: measure(lab, policy, say) for policy in POLICIES}
    say(table(found))
    values = tuple(
        found["pregather"][rate] / found[other][rate]
        for rate in ("guests_mb_s", "all_mb_s")
        for other in ("none", "deadline")
    )
    return harness.Result({"S1L": values}, {"policies": found})


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[Lab]:
    """Run the agent; it is the home of every chunk."""
    images = local.ImageFolder(folder / "images")
    image_id = images.add(local.random_bytes(IMAGE_BYTES))
    zeros = local.ImageFolder(folder / "zeros")  # the peer's source: all bytes are wrong
    shutil.copy(images.map_path(image_id), zeros.map_path(image_id))
    zeros.path(image_id).touch()
    os.truncate(zeros.path(image_id), IMAGE_BYTES)
    host = RotatingHost("h1", "", local.LOOPBACK, folder / "h1")
    host.folder.mkdir()
    port = local.unused_port()
    agent = agents.Agent(
        host,
        "",
        ring_of(folder / "ring.json", port),
        security=None,
        sections={"source_file": {"folder": images.folder}},
        sources="file",
        peer_listen=f"{local.LOOPBACK}:{port}",
        metrics_listen="",
        variants="no-read-ahead,linux-disk-schedulers",
        disk_policy="none",
    )
    with agent:
        agent.wait_ready()
        yield Lab(folder, zeros, image_id, agent, folder / "ring.json")


def ring_of(path: pathlib.Path, port: int) -> pathlib.Path:
    """Write a table with few v-nodes for the peer, enough that the agent answers it."""
    table = hosts.ring_table({"h1": port, "h2": local.unused_port()})
    table["hosts"][0]["vnodes"], table["hosts"][1]["vnodes"] = 4000, 1
    path.write_text(json.dumps(table))
    return path


def measure(lab: Lab, policy: str, say: harness.Say) -> dict[str, Any]:
    """Let two guests read with a policy, and a peer with an empty cache."""
    agents.request(lab.agent.control_socket, "set-disk-policy", policy=policy)
    starts = [number * (IMAGE_BYTES // PARTS) // 131072 * 131072 for number in range(PARTS)]
    peer_folder = lab.folder / f"h2-{policy}"
    with local.agent(
        peer_folder,
        lab.zeros,
        name="h2",
        ring_file=lab.ring_file,
        constants={tuned.PEER_SILENCE_S: DEADLINE_S},
        read_deadline_s=DEADLINE_S,
    ) as peer:
        peer.wait_ready()
        agents.request(peer.control_socket, "attach-image", image_id=lab.image_id)
        took_s = read_all(
            {
                "guest 1": (lab.image, starts[0], starts[2]),
                "guest 2": (lab.image, starts[1], starts[3]),
                "peer": (peer.image_path(lab.image_id), starts[4]),
            }
        )
    status = lab.agent.status()
    guests_s = max(took_s["guest 1"], took_s["guest 2"])
    found = {
        "guests_mb_s": 4 * PART_BYTES / guests_s / 1e6,
        "peer_mb_s": PART_BYTES / took_s["peer"] / 1e6,
        "all_mb_s": 5 * PART_BYTES / max(took_s.values()) / 1e6,
        "took_s": took_s,
        "seeks": status["disk_io"]["seeks"],
        "waits": status["disk_io"]["waits"],
        "streams": status["disk_io"]["streams"],
    }
    say(f"{policy}: {max(took_s.values()):.1f} s, waits {found['waits']}")
    return found


def read_all(readers: Mapping[str, tuple[pathlib.Path, *tuple[int, ...]]]) -> dict[str, float]:
    """Read with all in parallel, a thread per place; return their times."""
    began_s = time.monotonic()
    took_s = {}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(PART_BYTES), *map(str, starts)]
        )
        for name, (path, *starts) in readers.items()
    }
    with concurrent.futures.ThreadPoolExecutor() as threads:
        for name, status in zip(
            running,
            threads.map(lambda p: (p.wait(DEADLINE_S), time.monotonic()), running.values()),
            strict=True,
        ):
            if status[0]:
                raise harness.CannotRun(f"{name} cannot read")
            took_s[name] = status[1] - began_s
    return took_s


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rates of guests and peer."""
    made = prettytable.PrettyTable(["MB/s", *found], align="r", float_format=".1")
    for rate in ("guests_mb_s", "peer_mb_s", "all_mb_s"):
        made.add_row([rate.partition("_")[0], *(one[rate] for one in found.values())])
    return f"\n{made}"
