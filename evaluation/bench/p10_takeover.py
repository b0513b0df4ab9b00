# SPDX-License-Identifier: Apache-2.0
"""P10: the longest read of guests whose agent's worker is killed under load, and their errors.

Eight threads of one process read at random with O_DIRECT while the worker is
killed by SIGKILL again and again.  The same load without kills stands beside it.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import harness
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

IMAGE_BYTES = 64 * geometry.MIB
THREADS = 8
KILLS = 5
BETWEEN_S = 2.0


@harness.measures("P10")
def run(say: harness.Say) -> harness.Result:
    """Read under load, without and with kills."""
    if not hosts.kernel_can_resend():
        raise harness.CannotRun("the kernel is older than 6.9 and cannot resend requests")
    with tempfile.TemporaryDirectory(prefix="acstor-p10-") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        with local.agent(folder / "host", images) as agent:
            agent.wait_ready()
            paths = (agent.image_path(image_id), images.path(image_id))
            say(f"{THREADS} threads read, nobody is killed")
            calm = load(*paths, agent, kills=0, say=say)
            say(f"longest read {calm['longest_s']:.3f} s; now the worker is killed {KILLS} times")
            stormy = load(*paths, agent, kills=KILLS, say=say)
    details = {"without kills": calm, "with kills": stormy}
    errors = stormy["fault_count"] + stormy["stuck"]
    return harness.Result(
        {"P10": (stormy["longest_s"], errors)}, details, lambda picture: draw(picture, details)
    )


def load(
    mirror: pathlib.Path, image: pathlib.Path, agent: agents.Agent, kills: int, say: harness.Say
) -> dict[str, Any]:
    """Read for a while, kill meanwhile, and return what the reader saw."""
    seconds = BETWEEN_S * (kills + 1) if kills else 3 * BETWEEN_S
    argv = [sys.executable, "-m", "evaluation.bench.reader", mirror, image, seconds, THREADS]
    reader = subprocess.Popen(
        [str(word) for word in argv], cwd=harness.ROOT, stdout=subprocess.PIPE, text=True
    )
    time.sleep(BETWEEN_S / 2)
    for number in range(kills):
        victim = agent.worker_pid()
        if victim is None:
            raise harness.CannotRun("there is no worker to kill")
        os.kill(victim, signal.SIGKILL)
        say(f"kill {number + 1}: worker {victim}")
        time.sleep(BETWEEN_S)
    output, _ = reader.communicate(timeout=seconds + 30)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def draw(picture: figure.Figure, details: dict[str, dict[str, Any]]) -> None:
    """Draw the longest reads."""
    axes = picture.subplots()
    bars = axes.bar(list(details), [report["longest_s"] for report in details.values()])
    axes.bar_label(bars, fmt="%.3f s")
    axes.axhline(2.0, color="tab:red", linestyle="--", label="target")
    axes.set(title="Longest read of 8 threads", ylabel="seconds")
    axes.legend()
