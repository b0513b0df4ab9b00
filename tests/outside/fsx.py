# SPDX-License-Identifier: Apache-2.0
"""fsx on a writable disk of the mirror, while workers are killed.

fsx writes, reads, maps and syncs at random, and compares each byte that it reads with its own copy
of the file.  It may see no error: the next worker serves the requests of the killed one.
"""

import pathlib
import random
import subprocess
import tempfile
import time
import uuid
from typing import NamedTuple

from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.outside import cargo
from tests.outside import qemu_source

VERSION = "0.3.2"
DISK_BYTES = 64 << 20
CONFIG = """\
blockmode = true
nosizechecks = true
[opsize]
max = 262144
[weights]
close_open = 0
truncate = 0
posix_fallocate = 0
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
fsync = 1
fdatasync = 1
"""
_SPARE_S = 60.0
_PAUSE_S = 0.2, 2.0  # between two kills


class Result(NamedTuple):
    """What fsx did and saw; ``error`` is empty if it saw only right bytes."""

    operations: int
    kills: int
    seconds_s: float
    error: str


def build() -> pathlib.Path:
    """Build fsx by cargo; return the program."""
    folder = qemu_source.CACHE / "fsx"
    program = folder / "bin/fsx"
    if not program.is_file():
        words = ["install", "--locked", "--quiet", "--root", folder]
        cargo.run([*words, "--version", VERSION, "fsx"])
    return program


def run_on_disk(operations: int, kills: int, seed: int, longest_s: float) -> Result:
    """Run fsx on a disk, and kill the worker ``kills`` times meanwhile."""
    program = build()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(DISK_BYTES, seed=seed))
        (folder / "fsx.toml").write_text(CONFIG)
        with hosts.running(folder / "h1", images, life_s=longest_s + _SPARE_S) as agent:
            made = agents.request(
                agent.control_socket, "make-disk", disk_id=str(uuid.uuid4()), image_id=image_id
            )
            words = [
                *(program, "-f", folder / "fsx.toml", "-P", folder),
                *("-N", operations, "-S", seed, made["path"]),
            ]
            began_s = time.monotonic()
            with subprocess.Popen(
                [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as fsx:
                try:
                    killed = _kill_workers(agent, kills, random.Random(seed), fsx)
                    left_s = began_s + longest_s - time.monotonic()
                    said, _ = fsx.communicate(timeout=max(1.0, left_s))
                except BaseException:
                    fsx.kill()
                    raise
            took_s = time.monotonic() - began_s
            error = said[-2000:] if fsx.returncode else ""
            return Result(operations, killed, took_s, error)


def _kill_workers(
    agent: agents.Agent, kills: int, dice: random.Random, fsx: "subprocess.Popen[str]"
) -> int:
    """Return how many workers were killed while fsx ran."""
    for number in range(kills):
        time.sleep(dice.uniform(*_PAUSE_S))
        if fsx.poll() is not None:
            return number
        killed = agent.worker_pid()
        hosts.kill(killed)
        hosts.wait_until(
            lambda killed=killed: agent.worker_pid() not in (killed, None), "a worker", _SPARE_S
        )
        agent.wait_ready()
    return kills
