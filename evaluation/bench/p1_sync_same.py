# SPDX-License-Identifier: Apache-2.0
"""P1, P1b, P1c, P1d: Sync-Same of Nicolae 2016 (4.3.1): concurrent reads.

Comparisons in the same run: acstor without prefetch and with unlimited prefetch; each host reading
on demand from the source; a broadcast of the whole image by BitTorrent, then reading; and a copy of
the whole image to each host, then reading.  The two whose time grows with the number of hosts use
a smaller copy of the pattern (see :mod:`evaluation.bench.patterns`).

P1d is the pattern with fast links and the processor as the limit: four hosts, 1 Gbit/s.

ACSTOR_BENCH_HOSTS=1,2,4,8,16,32 adds a series over the number of hosts, with links that two cores
can fill; then the picture is that series.  ACSTOR_BENCH_SECURITY=insecure adds acstor in these
modes of ``peer_security``; by default hosts have certificates, as they do off loopback.
"""

import functools
import os
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import broadcast
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.bench import pictures

HOSTS = 16
LINK_MBIT = 25
REGION_BYTES = 32 * geometry.MIB
IMAGE_BYTES = 40 * geometry.MIB
BASELINE_DIVISOR = 8
FAST_HOSTS, FAST_MBIT, FAST_BYTES = 4, 1000, 256 * geometry.MIB
SERIES_VARIABLE = "ACSTOR_BENCH_HOSTS"
SECURITY_VARIABLE = "ACSTOR_BENCH_SECURITY"
SERIES_SUM_MBIT = 400
"""The sum of all hosts' links that two cores can fill."""
SERIES_LIMIT_S = 5


@harness.measures("P1", "P1b", "P1c")
def run(say: harness.Say) -> harness.Result:
    """Let 16 hosts read 32 MiB in each of the ways."""
    broadcast.require_client()
    full = patterns.sync_same(HOSTS, LINK_MBIT, REGION_BYTES, IMAGE_BYTES)
    small = patterns.scaled(full, BASELINE_DIVISOR)
    ways: dict[str, tuple[patterns.Way, patterns.Pattern]] = {
        "acstor": (patterns.with_acstor, full),
        **{
            f"acstor, {mode}": (functools.partial(patterns.with_acstor, security=mode), full)
            for mode in os.environ.get(SECURITY_VARIABLE, "").split(",")
            if mode
        },
        **{name: (way, full) for name, way in patterns.prefetch_ways().items()},
        "broadcast": (patterns.broadcast_first, full),
        "direct": (patterns.direct, small),
        "copy first": (patterns.copy_first, small),
    }
    found = patterns.play(ways, say)
    acstor = found["acstor"]
    values = {
        "P1": acstor["completion"],
        "P1b": acstor["source_ratio"],
        "P1c": acstor["slowest_over_fastest"],
    }
    counts = [int(word) for word in os.environ.get(SERIES_VARIABLE, "").split(",") if word]
    sweep = series(counts, say)
    return harness.Result(
        values,
        {"ways": found, "series": sweep},
        lambda picture: draw(picture, found, sweep),
    )


@harness.measures("P1d")
def run_fast(say: harness.Say) -> harness.Result:
    """Let four hosts read 256 MiB over fast links: on one ring, and without."""
    full = patterns.sync_same(FAST_HOSTS, FAST_MBIT, FAST_BYTES, FAST_BYTES)
    ways: dict[str, tuple[patterns.Way, patterns.Pattern]] = {
        "acstor": (patterns.with_acstor, full),
        "acstor, insecure": (functools.partial(patterns.with_acstor, security="insecure"), full),
        "direct": (patterns.direct, full),
    }
    found = patterns.play(ways, say)
    title = f"Sync-Same: {FAST_HOSTS} hosts, links {FAST_MBIT} Mbit/s"
    return harness.Result(
        {"P1d": found["acstor"]["completion"]},
        {"ways": found},
        lambda picture: pictures.compare(picture, title, found, 1.0),
    )


def series(counts: list[int], say: harness.Say) -> dict[str, dict[str, Any]]:
    """Run Sync-Same with these numbers of hosts: on one ring, and without."""
    sweep: dict[str, dict[str, Any]] = {"acstor": {}, "direct": {}} if counts else {}
    for hosts in counts:
        link_mbit = min(100.0, SERIES_SUM_MBIT / hosts)
        region_bytes = int(SERIES_LIMIT_S * link_mbit / 8) * geometry.MIB
        full = patterns.sync_same(hosts, link_mbit, region_bytes, region_bytes)
        ways: dict[str, tuple[patterns.Way, patterns.Pattern]] = {
            "acstor": (patterns.with_acstor, full),
            "direct": (patterns.direct, patterns.scaled(full, BASELINE_DIVISOR)),
        }
        for name, outcome in patterns.play(ways, say).items():
            sweep[name][str(hosts)] = outcome
    return sweep


def draw(picture: figure.Figure, found: dict[str, Any], sweep: dict[str, dict[str, Any]]) -> None:
    """Draw the ways, or the series if there is one."""
    title = f"Sync-Same: {HOSTS} hosts read {REGION_BYTES >> 20} MiB, links {LINK_MBIT} Mbit/s"
    if sweep:
        pictures.over_hosts(picture, "Sync-Same over the number of hosts", sweep)
    else:
        pictures.compare(picture, title, found, *harness.bounds("P1"))
