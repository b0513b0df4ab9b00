# SPDX-License-Identifier: Apache-2.0
"""The cost and loss of S0's advertisements by UDP, beside acstor's TCP frames."""

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s0_news_end as end
from tests.lab import network

UDP, TCP = "udp", "tcp"
LINK_MBIT = 25.0
COST_CHUNKS = 200_000
RATE = 96.0
"""Chunks/s: a host with a full link receives half, and has two neighbours."""
TELL_S = 12.0
GATHERED = 10
"""Per frame: those of 100 ms, acstor's gathering time."""
GIVERS = 3
"""Hosts that send chunks to the receiver: as many answers are in flight to it."""
FLOWS_S = 4.0
"""The link is full for so much longer than the advertisements."""


@contextlib.contextmanager
def _end(host: network.Host, *words: object) -> Iterator[subprocess.Popen[Any]]:
    argv = [sys.executable, "-m", end.__name__, *map(str, words)]
    process = host.popen(argv, cwd=harness.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _said(process: subprocess.Popen[Any], patience_s: float) -> dict[str, float]:
    out, words = process.communicate(timeout=patience_s)
    if process.returncode:
        raise harness.CannotRun(words.decode()[-500:])
    found: dict[str, float] = json.loads(out)
    return found


def _told(
    net: network.Network, way: str, count: int, rate: float, batch: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Let the first host advertise to the second; return the reports of both ends."""
    sender, receiver, *_ = net.hosts
    patience_s = 60.0 + (count / rate if rate else 0.0)
    with _end(receiver, "receive", way, receiver.address, 0, 0, 0) as takes:
        if way == TCP:
            collective.wait_listening(receiver, end.PORT)
        else:
            _wait_bound(receiver)
        with _end(sender, "send", way, receiver.address, count, rate, batch) as tells:
            sent = _said(tells, patience_s)
        return sent, _said(takes, patience_s)


def _wait_bound(host: network.Host) -> None:
    for _ in range(200):
        if f":{end.PORT} " in host.run(["ss", "-Hlun"]):
            return
    raise harness.CannotRun("no process listens for datagrams")


def cost(way: str, say: harness.Say) -> experiment.Outcome:
    """Advertise many chunks at full speed, over an unlimited link."""
    with network.Network(2) as net:
        before = net.link_bytes()["h1"]
        sent, taken = _told(net, way, COST_CHUNKS, 0.0, GATHERED)
        moved = net.link_bytes()["h1"] - before
    found = {
        "cpu_us": 1e6 * (sent["cpu_s"] / COST_CHUNKS + taken["cpu_s"] / taken["chunks"]),
        "bytes": (moved.sent + moved.received) / COST_CHUNKS,
        "lost_share": 1 - taken["chunks"] / COST_CHUNKS,
    }
    say(f"{way}: {found}")
    return found


def full(way: str, seconds: float, say: harness.Say) -> experiment.Outcome:
    """Advertise chunks while the link is full of chunk bytes."""
    count = int(RATE * seconds)
    with network.Network(2 + GIVERS, LINK_MBIT) as net, contextlib.ExitStack() as stack:
        _, receiver, *senders = net.hosts
        sink = stack.enter_context(_end(receiver, "sink", TCP, receiver.address, GIVERS, 0, 0))
        collective.wait_listening(receiver, end.PORT + 1)
        fill_s = seconds + FLOWS_S
        filling = ("fill", TCP, receiver.address, fill_s, 0, 0)
        flows = [stack.enter_context(_end(sender, *filling)) for sender in senders]
        sent, taken = _told(net, way, count, RATE, 1 if way == UDP else GATHERED)
        for flow in flows:
            _said(flow, 60.0)
        moved = _said(sink, 60.0)
    found = {
        "lost_share": 1 - taken["chunks"] / sent["chunks"],
        "mean_wait_s": taken["mean_wait_s"],
        "full_share": moved["bytes"] * 8e-6 / LINK_MBIT / fill_s,
    }
    say(f"{way}, full link: {found}")
    return found


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases."""
    seconds = TELL_S if scale is experiment.Scale.WHOLE else TELL_S / 3
    found = [experiment.Case(f"cost, {way}", functools.partial(cost, way), 5) for way in (UDP, TCP)]
    for way in (UDP, TCP):
        run = functools.partial(full, way, seconds)
        found.append(experiment.Case(f"full link, {way}", run, seconds + 7))
    return found


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return each way's cost and loss."""
    found = []
    for case, figure_, what, unit in (
        ("cost", "cpu_us", "processor time of both ends per advertised chunk", "us"),
        ("cost", "bytes", "bytes on the link per advertised chunk", "bytes"),
        ("full link", "lost_share", "share of advertisements that are lost on a full link", ""),
        ("full link", "mean_wait_s", "mean time until an advertisement arrives, full link", "s"),
    ):
        ours, other = (outcomes.get(f"{case}, {way}") for way in (TCP, UDP))
        if ours is None or other is None:
            continue
        ratio = other[figure_] / ours[figure_] if ours[figure_] else None
        found.append(
            experiment.Row(
                "3.4",
                f"{what}: TCP against UDP",
                "significantly less overhead by UDP (no number)",
                ours[figure_],
                unit,
                other[figure_],
                "UDP",
                ratio,
            )
        )
    return found


EXPERIMENT = experiment.Experiment(
    key="S0-3.4",
    title="3.4: advertisements by UDP, and why acstor sends them by TCP",
    paper_has="Gossip by UDP, which costs less and may lose messages; no measurement.",
    here=(
        "Processes in network namespaces. *UDP* is a datagram of 9 bytes per chunk, sent at once, "
        "as in the paper; *TCP* are acstor's own frames, which gather chunks for 100 ms. Costs: "
        f"{COST_CHUNKS:,} chunks at full speed, without a limit on the link, {GATHERED} in a "
        f"frame. Loss: {RATE:g} chunks a second to a host whose link of {LINK_MBIT:g} Mbit/s, with "
        f"a queue of 100 ms, is filled by {GIVERS} other hosts with chunk data. The ratio is that "
        "of UDP to TCP."
    ),
    cases=cases,
    rows=rows,
)
