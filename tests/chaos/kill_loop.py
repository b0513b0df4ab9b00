# SPDX-License-Identifier: Apache-2.0
"""Kills workers under byte-exact readers, a given number of times; reports reads.

Guests only read here, and use a relay only if the kernel offers no other way (before Linux 6.9);
tests/chaos/test_disk_killed.py writes.  Several agents run at once, because a supervisor pauses
between workers that lived for less than a second.  Caches are smaller than the image, so reads of
the source are in flight, too.

    python -m tests.chaos.kill_loop --kills 1000 --seed 1 --limit-s 900
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import shutil
import sys
import tempfile
import time
from typing import Any

from acstor_agent.process import supervisor
from acstor_common.model import geometry
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

MIB = geometry.MIB
IMAGE_BYTES = 24 * MIB + 12345
OPTIONS = {"cache_limit_bytes": 8 * MIB}
NEXT_WORKER_S = 60.0
AGENTS = 3
READERS = 3
"""Reading threads for each agent."""


@dataclasses.dataclass
class Outcome:
    """Outcome of one agent's guests."""

    kills: int
    tally: guest_readers.Tally


def kill_again_and_again(
    agent: agents.Agent, rng: random.Random, kills: int, ends_s: float, lives_s: tuple[float, float]
) -> int:
    """Kill the worker repeatedly, each after a while; return the number of kills.

    :param ends_s: when the time is over (monotonic clock)
    :param lives_s: shortest and longest life of a worker
    :raises TimeoutError: no next worker came
    """
    for done in range(kills):
        if time.monotonic() > ends_s:
            return done
        time.sleep(rng.uniform(*lives_s))
        killed = agent.worker_pid()
        hosts.kill(killed)
        waits_until_s = time.monotonic() + NEXT_WORKER_S
        while agent.worker_pid() in (killed, None):
            if time.monotonic() > waits_until_s:
                raise TimeoutError(f"no worker came after kill {done + 1}")
            time.sleep(0.005)
    return kills


def run_one(folder: pathlib.Path, seed: str, kills: int, limit_s: float) -> Outcome:
    """Kill one agent's workers, and return the outcome of its readers."""
    folder.mkdir()
    images = local.ImageFolder(folder / "images")
    image_id = images.add(local.random_bytes(IMAGE_BYTES, zero_share=0.1))
    rng = random.Random(seed)
    ends_s = time.monotonic() + limit_s
    lives_s = (supervisor.STEADY_AFTER_S, supervisor.STEADY_AFTER_S + 0.2)
    with hosts.running(
        folder / "host", images, life_s=limit_s + 4 * NEXT_WORKER_S, **OPTIONS
    ) as agent:
        mirrors = [agent.image_path(image_id)]
        readers = guest_readers.Readers(images.path(image_id), mirrors, seed=1, threads=READERS)
        with readers:
            done = kill_again_and_again(agent, rng, kills, ends_s, lives_s)
            agent.wait_ready()
            return Outcome(done, readers.stop())


def run(folder: pathlib.Path, seed: int, kills: int, limit_s: float, at_once: int) -> list[Outcome]:
    """Kill workers of several agents concurrently."""
    shares = [kills // at_once + (n < kills % at_once) for n in range(at_once)]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        begun = [
            pool.submit(run_one, folder / f"h{n}", f"{seed}/{n}", share, limit_s)
            for n, share in enumerate(shares)
        ]
        return [one.result() for one in begun]


def main() -> int:
    """Print the outcome as JSON; return 1 for errors, wrong bytes, or too few kills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=900.0)
    parser.add_argument("--agents", type=int, default=AGENTS)
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acstor-kills-"))
    try:
        outcomes = run(folder, given.seed, given.kills, given.limit_s, given.agents)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output = summary(outcomes)
    print(json.dumps(output, indent=1))
    return 0 if is_fine(output, given.kills) else 1


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the total of all readers."""
    tallies = [one.tally for one in outcomes]
    return {
        "kills": sum(one.kills for one in outcomes),
        "reads": sum(tally.reads for tally in tallies),
        "bytes": sum(tally.bytes for tally in tallies),
        "errors": [words for tally in tallies for words in tally.errors],
        "wrong": [words for tally in tallies for words in tally.wrong],
        "longest_s": round(max(tally.longest_s for tally in tallies), 2),
    }


def is_fine(output: dict[str, Any], kills: int) -> bool:
    """Return whether all requested kills happened without an effect on readers."""
    was_seen = output["errors"] or output["wrong"]
    return output["kills"] >= kills and bool(output["reads"]) and not was_seen


if __name__ == "__main__":
    sys.exit(main())
