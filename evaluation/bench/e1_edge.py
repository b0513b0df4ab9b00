# SPDX-License-Identifier: Apache-2.0
"""E1, E1b, E1c, E1d: an edge site reads each chunk over the WAN once.

Two sites of three hosts have links of 1 Gbit/s. The image server is at the central site; a link of
100 Mbit/s with a round trip of 20 or 100 ms leads to the edge. Three scenes, each with an image of
its own: the edge's hosts read a region in parallel; they read one in sequence; the hosts of both
sites read one in parallel.

``sites`` uses the table that the decision service publishes for hosts whose ``location`` is their
site, ``racks`` that for a site and a rack, ``no locations`` one group of all hosts. ``two stores``
is ``sites`` with another image server at the edge for its hosts, as with a Glance store named like
the site. With ``direct`` each host reads only from the source. The floor is a plain download of
the region by one host of the edge.

Bytes over the WAN are those of its devices' counters, in both directions: with headers of whole GSO
packets, retransmits and acknowledgements, which add 1 % to a download.
"""

import contextlib
import itertools
import json
import pathlib
import time
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from acstor_common.ring import location
from acstor_decision.core import segment_length
from acstor_decision.core import threshold
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import delay_link
from tests.lab import image_server
from tests.lab import local
from tests.lab import network

SITES = ("central",) * 3 + ("edge",) * 3
RACKS = ("r1", "r1", "r2") * 2
EDGE = [number for number, site in enumerate(SITES) if site == "edge"]
LAN_MBIT, WAN_MBIT = 1000, 100
ROUND_TRIPS_MS = (20, 100)
REGION_BYTES = 64 * geometry.MIB
WAYS = ("sites", "racks", "two stores", "no locations", "direct")
AT_ONCE, IN_TURN, BOTH_SITES = range(3)
READING = (0, REGION_BYTES)

Outcome = dict[str, Any]


class TwoSites(collective.Cloud):
    """The hosts of both sites on one ring, or without; ``way`` is one of WAYS."""

    def __init__(self, images: collective.Images, round_trip_ms: float, way: str) -> None:
        everywhere = range(len(SITES))
        groups = [] if way == "direct" else [everywhere]
        super().__init__(len(SITES), LAN_MBIT, images, groups)
        wan = network.Wan(len(EDGE), WAN_MBIT, delay_link.LinkDelay(round_trip_ms / 2))
        self.network = network.Network(len(SITES), LAN_MBIT, LAN_MBIT, wan=wan)
        self._way = way

    def _write_rings(self, net: network.Network) -> dict[int, pathlib.Path]:
        path = net.run.folder / "ring.json"
        path.write_text(json.dumps(table(net.hosts, self._way)))
        return {number: path for group in self._groups for number in group}

    def _source_urls(self, net: network.Network, stack: contextlib.ExitStack) -> list[str]:
        urls = super()._source_urls(net, stack)
        if self._way == "two stores":
            server = image_server.ImageServer(net.hosts[EDGE[0]], self.images.files.folder)
            stack.enter_context(server)
            urls[EDGE[0] :] = [server.url] * len(EDGE)
        return urls

    def play(self, image_no: int, hosts: list[int]) -> Outcome:
        """Let hosts read an image's region in parallel."""
        readings = {number: collective.Reading((READING,), image_no) for number in hosts}
        before = self.network.wan_bytes()
        self.attach(readings)
        seen = self.read(readings)
        self.settle()
        crossed = self.network.wan_bytes() - before
        return {
            "took_s": {number: host.took_s for number, host in seen.items()},
            "to_edge": crossed.received / REGION_BYTES,
            "from_edge": crossed.sent / REGION_BYTES,
        }

    def download_s(self) -> float:
        """Return the time of a plain download of a region to the edge."""
        host, url = self.network.hosts[EDGE[0]], f"{self.server.url}/{self.images.ids[0]}.raw"
        began_s = time.monotonic()
        host.run(["curl", "-sSf", "-o", "/dev/null", "-r", f"0-{REGION_BYTES - 1}", url])
        return time.monotonic() - began_s


def table(hosts: list[network.Host], way: str) -> dict[str, Any]:
    """Return the v-node table of a way."""
    segment_chunks = segment_length.chunks_for([int(LAN_MBIT * 1e6 / 8)])
    ring = agents.ring_of(hosts, segment_chunks=segment_chunks)
    if way == "no locations":
        return ring
    places = list(SITES)
    if way == "racks":
        places = [f"{site}/{rack}" for site, rack in zip(SITES, RACKS, strict=True)]
    for entry, place in zip(ring["hosts"], places, strict=True):
        entry["location"] = place
    near, outer = threshold.thresholds_for([location.parse(place) for place in places], ())
    return {**ring, "threshold": near, "outer_threshold": outer}


def measure(images: collective.Images, round_trip_ms: float, way: str) -> Outcome:
    """Run the three scenes in a new lab."""
    with TwoSites(images, round_trip_ms, way).running() as cloud:
        assert isinstance(cloud, TwoSites)
        found: Outcome = {"download_s": cloud.download_s()}
        found["at once"] = cloud.play(AT_ONCE, EDGE)
        found["in turn"] = [cloud.play(IN_TURN, [number]) for number in EDGE]
        found["both sites"] = cloud.play(BOTH_SITES, list(range(len(SITES))))
        found["exchange"] = [status["exchange"] for status in cloud.status()]
        return found


def figures(found: Outcome) -> dict[str, float]:
    """Return the ratios of an outcome."""
    at_once, turns, both = found["at once"], found["in turn"], found["both sites"]
    wan_s, lan_s = (REGION_BYTES * 8e-6 / mbit for mbit in (WAN_MBIT, LAN_MBIT))
    second_s, third_s = (max(turn["took_s"].values()) for turn in turns[1:])
    edge_s = max(both["took_s"][number] for number in EDGE)
    central_s = max(both["took_s"][number] for number in both["took_s"] if number not in EDGE)
    return {
        "at once, bytes": at_once["to_edge"] + at_once["from_edge"],
        "at once": max(at_once["took_s"].values()) / wan_s,
        "in turn, bytes": sum(turn["to_edge"] + turn["from_edge"] for turn in turns),
        "first": max(turns[0]["took_s"].values()) / wan_s,
        "second": second_s / lan_s,
        "third": third_s / lan_s,
        "both, bytes to edge": both["to_edge"],
        "both, bytes from edge": both["from_edge"],
        "both, edge": edge_s / wan_s,
        "both, central": central_s / lan_s,
        "download": found["download_s"] / wan_s,
    }


def most_bytes(ratios: dict[str, float]) -> float:
    """Return the larger WAN bytes of the two edge-only scenes."""
    return max(ratios["at once, bytes"], ratios["in turn, bytes"])


@harness.measures("E1", "E1b", "E1c", "E1d")
def run(say: harness.Say) -> harness.Result:
    """Let both sites read in each of the ways, at both delays."""
    found: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    with collective.images(
        *(local.random_bytes(REGION_BYTES, seed) for seed in range(3))
    ) as images:
        for delay_ms, way in itertools.product(ROUND_TRIPS_MS, WAYS):
            outcome = measure(images, delay_ms, way)
            found.setdefault(f"{delay_ms} ms", {})[way] = outcome
            ratios.setdefault(f"{delay_ms} ms", {})[way] = figures(outcome)
            said = [f"{key} {value:.3g}" for key, value in figures(outcome).items()]
            say(f"{delay_ms} ms, {way}: {', '.join(said)}")
    best = [by_way["sites"] for by_way in ratios.values()]
    return harness.Result(
        {
            "E1": tuple(map(most_bytes, best)),
            "E1b": tuple(one["at once"] for one in best),
            "E1c": tuple(one["second"] for one in best),
            "E1d": tuple(most_bytes(by_way["two stores"]) for by_way in ratios.values()),
        },
        {"ratios": ratios, "scenes": found},
        lambda picture: draw(picture, ratios),
    )


def draw(picture: figure.Figure, ratios: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draw bytes over the WAN and completion, by way and delay."""
    picture.suptitle(f"Edge site: 3 hosts read {REGION_BYTES >> 20} MiB, WAN {WAN_MBIT} Mbit/s")
    panels = picture.subplots(1, 2)
    names = ["at once, bytes", "at once"]
    titles = ["Bytes over the WAN / unique bytes", "Completion / region at the WAN's rate"]
    for panel, key, title, bench_id in zip(panels, names, titles, ("E1", "E1b"), strict=True):
        for at, (delay, by_way) in enumerate(ratios.items()):
            places = [number + 0.4 * at for number in range(len(by_way))]
            bars = panel.bar(places, [one[key] for one in by_way.values()], 0.4, label=delay)
            panel.bar_label(bars, fmt="%.2f")
        panel.axhline(harness.bounds(bench_id)[0], color="tab:red", linestyle="--")
        panel.set_xticks([number + 0.2 for number in range(len(WAYS))], WAYS, rotation=20)
        panel.set(title=title)
        panel.legend()
