# SPDX-License-Identifier: Apache-2.0
"""``python -m evaluation.soak``: a day's churn on a real cloud; checks for growth.

Servers are built, deleted, snapshotted, moved; hosts lose power; agents are upgraded and killed.
The disk of every server is compared with its image. ``soak.png`` has memory, descriptors, threads
and latencies over time. ^C ends the soak early; its findings are written.

Exit status: 0 nothing failed and nothing grew, 1 something did.
"""

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import time

from acstor_common import errors
from evaluation.bench import harness
from evaluation.soak import churn
from evaluation.soak import report
from evaluation.soak import samples
from evaluation.soak import soak_cloud
from evaluation.soak import trend
from tests.lab import runs
from tests.lab.openstack import cloud
from tests.lab.openstack import installed

ROLL_OUT_AT = 1 / 3
"""The share of the soak after which each service and agent restarts once."""
SAMPLE_S = 10.0
PROBE_EVERY_S = 60.0


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/soak.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=360.0, help="length (default: 360)")
    parser.add_argument("--hosts", type=int, default=4, help="compute hosts (default: 4)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the choice of actions (default: 1)"
    )
    harness.add_results_argument(parser, "soak")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
    if not installed.is_ready():
        parser.error(f"the services of OpenStack are not installed: {installed.REMEDY}")
    with runs.Run() as run:
        lab = cloud.Cloud(
            run.folder / "openstack",
            [f"compute{number}" for number in range(1, options.hosts + 1)],
        )
        findings = soak(soak_cloud.SoakCloud(lab), options)
    return 1 if findings else 0


def soak(world: soak_cloud.SoakCloud, options: argparse.Namespace) -> list[str]:
    """Run a soak, write its report and return its findings."""
    with world.running() as cluster:
        began_s, length_s = time.monotonic(), options.minutes * 60
        print(f"the cloud runs; the soak takes {options.minutes:g} minutes", flush=True)
        with samples.Sampler(world.processes, began_s, SAMPLE_S) as sampler:

            def note(name: str, seconds: float) -> None:
                sampler.add(name, {report.LATENCY: seconds})

            actions = churn.Churn(world, cluster, random.Random(options.seed), note)
            with contextlib.suppress(KeyboardInterrupt):
                act(world, actions, note, began_s, length_s)
            series = sampler.series()
        for agent in world.kept_agents:
            if "Traceback" in (log := agent.log()):
                actions.add_finding(f"{agent.name}: {log[log.index('Traceback') :][:2000]}")
    took_s = time.monotonic() - began_s
    for line in trend.growing(report.judged(series, took_s)):
        actions.add_finding(line)
    report.write(options.results, series, actions.counts, actions.findings)
    print(report.table(series, took_s))
    done = ", ".join(f"{name} {count}" for name, count in sorted(actions.counts.items()))
    print(f"{took_s / 60:.0f} minutes: {done}; {len(actions.findings)} findings")
    return actions.findings


def act(
    world: soak_cloud.SoakCloud,
    actions: churn.Churn,
    note: churn.Note,
    began_s: float,
    length_s: float,
) -> None:
    """Run actions until the end of the soak's time; measure reads between them."""
    probed_s, is_rolled_out = began_s, False
    while (now_s := time.monotonic()) - began_s < length_s:
        if not is_rolled_out and now_s - began_s > ROLL_OUT_AT * length_s:
            actions.roll_out()
            is_rolled_out = True
        name = actions.step()
        print(f"[{(time.monotonic() - began_s) / 60:.1f} min] {name}", flush=True)
        if time.monotonic() - probed_s > PROBE_EVERY_S:
            probed_s = time.monotonic()
            for agent in world.kept_agents:
                probe(world, agent, actions, note)


def probe(
    world: soak_cloud.SoakCloud,
    agent: soak_cloud.KeptAgent,
    actions: churn.Churn,
    note: churn.Note,
) -> None:
    """Measure reads of 4 KiB through one host's mirror."""
    try:
        median_ms, longest_ms = world.probe(agent)
    except (errors.AcstorError, subprocess.TimeoutExpired) as e:
        actions.add_finding(str(e))
        return
    note("4 KiB read, median", median_ms / 1000)
    note("4 KiB read, longest of 64", longest_ms / 1000)


if __name__ == "__main__":
    sys.exit(main())
