# SPDX-License-Identifier: Apache-2.0
"""S1L: two guests on an agent whose disk rotates, in real time.

The agent's slab files lie on an emulated disk.  Each guest is a process with
two threads that read far from each other in the same image, in order, past the
page cache.  The policies take turns on one warm agent, so they see the same
bytes at the same places.
"""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from acstor_common import geometry
from tests.bench import harness
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

PART_BYTES = 12 * geometry.MIB
PARTS = 5
IMAGE_BYTES = 160 * geometry.MIB
POLICIES = ("none", "deadline", "cfq", "pregather")
DEADLINE_S = 300
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
    """This machine, with a disk that rotates under the agent."""

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        if pathlib.Path(argv[0]).name != "acstor-agent":
            return super()._inside(argv)
        return [sys.executable, "-m", "tests.fakes.rotating_agent", *map(str, argv[1:])]


@harness.benchmark(
    "S1L",
    title="Two guests on an emulated rotating disk: pregather's rate over none's",
    target="> 1",
    unit="times",
)
def run(say: harness.Say) -> harness.Result:
    """Read with each policy in turn."""
    with tempfile.TemporaryDirectory(prefix="acstor-s1-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        host = RotatingHost("h1", "", local.LOOPBACK, folder / "h1")
        host.folder.mkdir()
        port = local.unused_port()
        agent = agents.Agent(
            host,
            "",
            sections={"source_file": {"folder": images.folder}},
            sources="file",
            peer_listen=f"{local.LOOPBACK}:{port}",
            metrics_listen="",
            cache_slab_bytes=64 * geometry.MIB,
            read_ahead_limit_bytes=0,
            disk_policy="none",
        )
        stack.enter_context(agent)
        agent.wait_ready()
        say("reading the image once")
        image = agent.image_path(image_id)
        subprocess.run(
            ["dd", f"if={image}", "iflag=direct", "bs=64k", "of=/dev/null"],
            check=True,
            capture_output=True,
        )
        hosts.wait_until(lambda: not agent.status()["cache"]["pending_bytes"], "the cache", 120)
        found = {policy: measure(agent, image, policy, say) for policy in POLICIES}
    return harness.Result(
        {"S1L": found["pregather"]["mb_s"] / found["none"]["mb_s"]}, {"policies": found}
    )


def measure(
    agent: agents.Agent, image: pathlib.Path, policy: str, say: harness.Say
) -> dict[str, Any]:
    """Let two guests read with a policy."""
    agents.request(agent.control_socket, "set-disk-policy", policy=policy)
    began_s = time.monotonic()
    starts = [number * (IMAGE_BYTES // PARTS) // 131072 * 131072 for number in range(4)]
    guests = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(image), str(PART_BYTES), str(one), str(other)]
        )
        for one, other in ((starts[0], starts[2]), (starts[1], starts[3]))
    ]
    for guest in guests:
        if guest.wait(DEADLINE_S):
            raise harness.CannotRun("a guest cannot read")
    took_s = time.monotonic() - began_s
    rate = 4 * PART_BYTES / took_s / 1e6
    io = agent.status()["disk_io"]
    say(f"{policy}: {took_s:.1f} s, {rate:.1f} MB/s, waits {io['waits']}, seeks {io['seeks']}")
    return {"took_s": took_s, "mb_s": rate, "seeks": io["seeks"], "waits": io["waits"]}
