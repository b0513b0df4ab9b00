# SPDX-License-Identifier: Apache-2.0
"""V1: the share of servers that the weigher places on warm hosts, and its cost.

40 simulated hosts, 20 images by Zipf's law, and servers in bursts from one image.  Nova's handler
and its weighers for memory, processors, disk and builds place them, once alone and once with
acstor's (``nova_weighing``).  V1 is the share of servers on a host with 95 % of the boot set, among
those for which such a host had room.  V1b is the used memory of the busiest host over the mean,
divided by that without the weigher.  V1c is the processor time in the weigher for 1,000 hosts.
"""

import json
import subprocess
from typing import Any

from matplotlib import figure

from evaluation.bench import harness
from evaluation.bench import nova_pair
from tests.lab import runs
from tests.lab.openstack import installed

SEED = 1
LONGEST_S = 1800.0
MODULE = "evaluation.bench.nova_weighing"


@harness.measures("V1", "V1b", "V1c")
def run(say: harness.Say) -> harness.Result:
    """Place the same servers with the weigher and without."""
    nova_pair.check()
    found = simulate()
    for name in ("stock", "acstor"):
        one = found[name]
        say(
            f"{name}: {one['warm_share']:.1%} of {one['warm_was_possible']} servers on warm hosts, "
            f"busiest over mean {one['busiest_over_mean']:.3f}, {one['most_builds']} builds at most"
        )
    ratio = found["acstor"]["busiest_over_mean"] / found["stock"]["busiest_over_mean"]
    values: dict[str, harness.Value] = {
        "V1": found["acstor"]["warm_share"],
        "V1b": ratio,
        "V1c": found["weigher_ms"],
    }
    return harness.Result(values, found, lambda picture: draw(picture, found))


def simulate() -> dict[str, Any]:
    """Return the output of ``nova_weighing`` in the OpenStack services' virtualenv.

    :raises harness.CannotRun: it fails; has its output
    """
    done = subprocess.run(
        [installed.BIN / "python", "-W", "ignore", "-m", MODULE, str(SEED)],
        cwd=runs.CHECKOUT,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(runs.CHECKOUT),
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1",
        },
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise harness.CannotRun(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def draw(picture: figure.Figure, found: dict[str, Any]) -> None:
    """Draw both runs."""
    names = ("stock", "acstor")
    for axes, (key, title) in zip(
        picture.subplots(1, 2),
        (
            ("warm_share", "servers on a host with the boot set"),
            ("busiest_over_mean", "busiest host over mean"),
        ),
        strict=True,
    ):
        axes.bar(names, [found[name][key] for name in names])
        axes.set(title=title)
