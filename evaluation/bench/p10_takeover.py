# SPDX-License-Identifier: Apache-2.0
"""P10: longest read and errors of guests while their agent's worker is killed.

Eight threads of one process read at random with O_DIRECT while the worker is
killed by SIGKILL repeatedly.  The comparison is the same load without kills.

P10b is the tail over 1,000 kills: the 99.9th percentile and the maximum of the longest read after
each kill, and errors.
"""

import bisect
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import harness
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs

IMAGE_BYTES = 64 * geometry.MIB
THREADS = 8
KILLS = 5
BETWEEN_S = 2.0
MANY_KILLS, SOON_S = 1000, 1.1
WORKER_S = 30.0


@contextlib.contextmanager
def serving() -> Iterator[tuple[agents.Agent, pathlib.Path, pathlib.Path]]:
    """Run an agent with an image; yield it, the mirror, and the image itself."""
    if not hosts.kernel_can_resend():
        raise harness.CannotRun("the kernel is older than 6.9 and cannot resend requests")
    with tempfile.TemporaryDirectory(prefix="acstor-p10-") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        with local.agent(folder / "host", images) as agent:
            agent.wait_ready()
            paths = (agent.image_path(image_id), images.path(image_id))
            yield agent, *paths


@harness.measures("P10")
def run(say: harness.Say) -> harness.Result:
    """Read under load, without and with kills."""
    with serving() as (agent, *paths):
        say(f"{THREADS} threads read, no worker is killed")
        calm = load(*paths, agent, kills=0, say=say)
        say(f"longest read {calm['longest_s']:.3f} s; now the worker is killed {KILLS} times")
        stormy = load(*paths, agent, kills=KILLS, say=say)
    details = {"without kills": calm, "with kills": stormy}
    errors = stormy["fault_count"] + stormy["stuck"]
    return harness.Result(
        {"P10": (stormy["longest_s"], errors)}, details, lambda picture: draw(picture, details)
    )


@harness.measures("P10b")
def run_many(say: harness.Say) -> harness.Result:
    """Kill the worker 1,000 times; a kill without a slow read counts as 0 s."""
    with serving() as (agent, *paths):
        seen = load(*paths, agent, MANY_KILLS, say, between_s=SOON_S)
    longest = sorted(longest_after_kills(seen))
    say(f"median {statistics.median(longest):.3f} s, longest ten {longest[-10:]}")
    value = (longest[-1 - len(longest) // 1000], longest[-1], seen["fault_count"] + seen["stuck"])
    return harness.Result({"P10b": value}, {"longest_after_kill_s": longest})


def longest_after_kills(seen: dict[str, Any]) -> list[float]:
    """Return the longest read that ended between each kill and the next; 0: all fast."""
    longest = [0.0] * len(seen["kills"])
    for ended_s, seconds in seen["slow"]:
        if (number := bisect.bisect(seen["kills"], ended_s) - 1) >= 0:
            longest[number] = max(longest[number], seconds)
    return longest


def load(
    mirror: pathlib.Path,
    image: pathlib.Path,
    agent: agents.Agent,
    kills: int,
    say: harness.Say,
    between_s: float = BETWEEN_S,
) -> dict[str, Any]:
    """Read until the last kill is over; return the reader's report and the kill times.

    Each kill comes ``between_s`` after the one before, once there is a new worker.
    """
    argv = [sys.executable, "-m", "evaluation.bench.reader"]
    times_s = []
    with subprocess.Popen(
        [*argv, str(mirror), str(image), str(THREADS)],
        cwd=harness.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        try:
            time.sleep(between_s if kills else 3 * between_s)
            for number in range(kills):
                runs.wait_for(
                    lambda: agent.worker_pid() is not None, WORKER_S, "a worker", agent.log
                )
                times_s.append(time.monotonic())
                hosts.kill(agent.worker_pid())
                if kills <= KILLS or number % 100 == 99:
                    say(f"kill {number + 1} of {kills}")
                time.sleep(between_s)
            output, _ = reader.communicate(timeout=WORKER_S)
        finally:
            reader.kill()
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {**report, "kills": times_s}


def draw(picture: figure.Figure, details: dict[str, dict[str, Any]]) -> None:
    """Draw the longest reads."""
    axes = picture.subplots()
    bars = axes.bar(list(details), [report["longest_s"] for report in details.values()])
    axes.bar_label(bars, fmt="%.3f s")
    axes.axhline(2.0, color="tab:red", linestyle="--", label="target")
    axes.set(title="Longest read of 8 threads", ylabel="seconds")
    axes.legend()
