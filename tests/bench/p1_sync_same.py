# SPDX-License-Identifier: Apache-2.0
"""P1, P1b, P1c: Sync-Same of Nicolae 2016 (4.3.1): all hosts read the same region at once.

Three ways in one run, each in a new lab with empty caches: acstor; every host
reading the source directly on demand (agents that work alone); and a full copy
first (each host downloads the whole image, then reads).  Every host's bytes are
compared with the image's.
"""

import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from matplotlib import figure

from acstor_common import geometry
from tests.bench import collective
from tests.bench import harness
from tests.lab import local

HOSTS = 16
LINK_MBIT = 25
REGION_BYTES = 32 * geometry.MIB
IMAGE_BYTES = 40 * geometry.MIB
LINK_B_S = LINK_MBIT * 1e6 / 8


@harness.benchmark(
    "P1c", title="Sync-Same: slowest over fastest host", target="<= 1.05", unit="times"
)
@harness.benchmark(
    "P1b",
    title="Sync-Same: bytes out of the source over unique bytes",
    target="<= 1.02",
    unit="times",
)
@harness.benchmark(
    "P1", title="Sync-Same: completion over region / link rate", target="<= 1.15", unit="times"
)
def run(say: harness.Say) -> harness.Result:
    """Let 16 hosts read 32 MiB in three ways."""
    data = local.random_bytes(IMAGE_BYTES, seed=1)
    ways = {
        "acstor": lambda: on_demand(data, shared=True),
        "direct": lambda: on_demand(data, shared=False),
        "copy first": lambda: copy_first(data),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        say(f"{name}: {HOSTS} hosts read {REGION_BYTES >> 20} MiB, links {LINK_MBIT} Mbit/s")
        found[name] = way()
        say(f"{name}: {words(found[name])}")
    acstor = found["acstor"]
    values = {
        "P1": acstor["completion"],
        "P1b": acstor["source_ratio"],
        "P1c": acstor["slowest_over_fastest"],
    }
    return harness.Result(values, {"ways": found}, lambda picture: draw(picture, found))


def on_demand(data: bytes, shared: bool) -> dict[str, Any]:
    """Let the hosts read through their agents, which exchange chunks or work alone."""
    with collective.Cloud(HOSTS, LINK_MBIT, data, shared).running() as cloud:
        cpu_before = cloud.cpu_seconds()
        hosts = cloud.read_all(REGION_BYTES, [0.0] * HOSTS)
        cpu_s = cloud.cpu_seconds() - cpu_before
        statuses = cloud.status()
        return {
            **summary([host["took_s"] for host in hosts], cloud.source_bytes()),
            "cpu_s": cpu_s,
            "fetched": collective.total_by_origin(statuses, "fetched"),
            "fallbacks": sum(status["exchange"]["fallbacks"] for status in statuses),
        }


def copy_first(data: bytes) -> dict[str, Any]:
    """Let each host download the whole image, as Nova does, and then read it."""
    cloud = collective.Cloud(HOSTS, LINK_MBIT, data, shared=False)
    with cloud.running():
        url = f"{cloud.server.url}/{cloud.image_id}.raw"
        began = time.monotonic()
        copies = [
            agent.host.popen(["curl", "-sS", "--fail", "-o", agent.folder / "copy", url])
            for agent in cloud.agents
        ]
        took_s = [0.0] * HOSTS
        while not all(took_s):
            for number, copy in enumerate(copies):
                if not took_s[number] and copy.poll() is not None:
                    if copy.returncode:
                        raise subprocess.CalledProcessError(copy.returncode, "curl")
                    took_s[number] = time.monotonic() - began
            time.sleep(0.05)
        return summary(took_s, cloud.source_bytes())


def summary(took_s: list[float], source_bytes: int) -> dict[str, Any]:
    """Return one way's figures."""
    return {
        "completion": max(took_s) / (REGION_BYTES / LINK_B_S),
        "slowest_over_fastest": max(took_s) / min(took_s),
        "source_ratio": source_bytes / REGION_BYTES,
        "median_s": statistics.median(took_s),
        "took_s": took_s,
    }


def words(way: dict[str, Any]) -> str:
    """Say one way's figures."""
    return (
        f"completion {way['completion']:.2f} times the limit, slowest / fastest "
        f"{way['slowest_over_fastest']:.2f}, source bytes / unique {way['source_ratio']:.3f}"
    )


def draw(picture: figure.Figure, found: dict[str, dict[str, Any]]) -> None:
    """Draw completion and source bytes of each way."""
    bars: list[tuple[str, Callable[[dict[str, Any]], float], float]] = [
        ("completion / (region / link rate)", lambda way: way["completion"], 1.15),
        ("bytes out of the source / unique bytes", lambda way: way["source_ratio"], 1.02),
    ]
    for axes, (title, value, target) in zip(picture.subplots(1, 2), bars, strict=True):
        shown = axes.bar(list(found), [value(way) for way in found.values()])
        axes.bar_label(shown, fmt="%.2f")
        axes.axhline(target, color="tab:red", linestyle="--", label=f"target {target}")
        axes.set(title=title)
        axes.legend()
