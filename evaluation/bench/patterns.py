# SPDX-License-Identifier: Apache-2.0
"""The access patterns of Nicolae 2016 (4.3), and the ways that P1 to P3 compare.

Sync-Same: all hosts read one region at once.  Shifted-Same: they start in sequence.  Sync-Disjoint:
each reads a region of its own.  Each way gets a new lab with empty caches, and its outcome has the
same figures, all of them ratios.

A baseline whose time grows with the number of hosts may use a smaller copy of the pattern (region,
image and delays divided alike): its ratios are the same.
"""

import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_common.model import geometry
from acstor_policies import variants
from evaluation.bench import broadcast
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import local

PREFETCH_VARIANTS = {
    "acstor-0": variants.Variant.NO_PREFETCH,
    "acstor-inf": variants.Variant.UNBOUNDED_PREFETCH,
}
BROADCAST_DEADLINE_S = 120.0
Outcome = dict[str, Any]
Way = Callable[["Pattern"], Outcome]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The hosts' reads and delays.

    :param image_bytes: length of an image
    :param unique_bytes: bytes that the source must send at least
    """

    name: str
    hosts: int
    link_mbit: float
    image_bytes: int
    readings: tuple[collective.Reading, ...]
    unique_bytes: int

    @property
    def link_bytes_s(self) -> float:
        """A link's bytes per second, including headers."""
        return self.link_mbit * 1e6 / 8

    @property
    def limit_s(self) -> float:
        """The lower bound: hosts receive what they read, the source sends unique bytes."""
        last_s = max(r.delay_s + r.length / self.link_bytes_s for r in self.readings)
        return max(last_s, self.unique_bytes / self.link_bytes_s)


def sync_same(hosts: int, link_mbit: float, region_bytes: int, image_bytes: int) -> Pattern:
    """All hosts read the same region at once."""
    reading = collective.Reading(((0, region_bytes),))
    return Pattern("Sync-Same", hosts, link_mbit, image_bytes, (reading,) * hosts, region_bytes)


def shifted_same(
    hosts: int, link_mbit: float, region_bytes: int, image_bytes: int, delay_s: float
) -> Pattern:
    """All hosts read the same region, in starts ``delay_s`` apart."""
    spans = ((0, region_bytes),)
    readings = tuple(collective.Reading(spans, delay_s=n * delay_s) for n in range(hosts))
    return Pattern("Shifted-Same", hosts, link_mbit, image_bytes, readings, region_bytes)


def sync_disjoint(hosts: int, link_mbit: float, region_bytes: int) -> Pattern:
    """Each host reads a region of its own at once; the regions fill the image."""
    all_bytes = hosts * region_bytes
    readings = tuple(collective.Reading(((n * region_bytes, region_bytes),)) for n in range(hosts))
    return Pattern("Sync-Disjoint", hosts, link_mbit, all_bytes, readings, all_bytes)


def scaled(pattern: Pattern, divisor: int) -> Pattern:
    """Return a copy with regions, image and delays divided by ``divisor``."""
    readings = tuple(
        dataclasses.replace(
            reading,
            spans=tuple((start // divisor, length // divisor) for start, length in reading.spans),
            delay_s=reading.delay_s / divisor,
        )
        for reading in pattern.readings
    )
    return dataclasses.replace(
        pattern,
        image_bytes=pattern.image_bytes // divisor,
        readings=readings,
        unique_bytes=pattern.unique_bytes // divisor,
    )


def image_of(pattern: Pattern) -> bytes:
    """Return the pattern's image of distinct non-zero chunks."""
    return local.random_bytes(pattern.image_bytes, seed=1)


def with_acstor(pattern: Pattern, **options: object) -> Outcome:
    """All hosts on one ring."""
    with collective.images(image_of(pattern)) as images:
        return on_demand(pattern, images, [range(pattern.hosts)], options)


def direct(pattern: Pattern) -> Outcome:
    """Each host reads on demand from the source, through an agent without a ring.

    The image ends where the last region ends: read-ahead past it does not shrink with the pattern,
    so it would weigh more in a smaller copy.
    """
    end = max(start + length for r in pattern.readings for start, length in r.spans)
    pattern = dataclasses.replace(pattern, image_bytes=end)
    with collective.images(image_of(pattern)) as images:
        return on_demand(pattern, images, [], {})


def on_demand(
    pattern: Pattern,
    images: collective.Images,
    groups: Sequence[Sequence[int]],
    options: Mapping[str, object],
    kind: type[collective.Cloud] = collective.Cloud,
) -> Outcome:
    """Let the hosts read through their agents; each group shares a ring."""
    cloud = kind(pattern.hosts, pattern.link_mbit, images, groups)
    with cloud.running(**options):
        readings = dict(enumerate(pattern.readings))
        cloud.attach(readings)
        cloud.mark()
        cpu_before = cloud.cpu_seconds()
        seen = cloud.read(readings)
        cpu_s = cloud.cpu_seconds() - cpu_before
        cloud.settle()
        statuses = cloud.status()
        unread = [
            collective.unread_bytes(status, reading.length)
            for status, reading in zip(statuses, pattern.readings, strict=True)
        ]
        return {
            **outcome(pattern, list(seen.values()), cloud.source_bytes()),
            "cpu_s": cpu_s,
            "transfers_bytes": collective.received_bytes(statuses),
            "prefetched_bytes": statistics.mean(
                status["exchange"]["prefetched_bytes"] for status in statuses
            ),
            "unread_share": sum(unread) / sum(r.length for r in pattern.readings),
            "fallbacks": sum(status["exchange"]["failovers"] for status in statuses),
        }


def copy_first(pattern: Pattern) -> Outcome:
    """Each host downloads the whole image at its start, as in Nova, then reads it."""
    with collective.images(image_of(pattern)) as images:
        everywhere = range(pattern.hosts)
        cloud = collective.Cloud(pattern.hosts, pattern.link_mbit, images, [], everywhere)
        with cloud.running():
            url = f"{cloud.server.url}/{images.ids[0]}.raw"
            began = time.monotonic()
            waiting = dict(enumerate(cloud.network.hosts))
            copies: dict[int, subprocess.Popen[bytes]] = {}
            seen: dict[int, collective.Seen] = {}
            while len(seen) < pattern.hosts:
                now_s = time.monotonic() - began
                for number, reading in enumerate(pattern.readings):
                    if number in waiting and now_s >= reading.delay_s:
                        host = waiting.pop(number)
                        target = host.folder / "copy"
                        copies[number] = host.popen(["curl", "-sSf", "-o", target, url])
                    elif number in copies and copies[number].poll() is not None:
                        if copies.pop(number).returncode:
                            raise harness.CannotRun(f"host {number} cannot copy the image")
                        seen[number] = collective.Seen(reading.delay_s, now_s, reading.length)
                time.sleep(0.02)
            return _copied(pattern, seen, cloud.source_bytes())


def broadcast_first(pattern: Pattern) -> Outcome:
    """BitTorrent sends the whole image to all hosts; then they read.

    Reads of the page cache take negligible time, so a host's bytes count as read after both its
    start and the end of the broadcast.  The broadcast begins at the common start, so throughput
    counts from there.
    """
    with collective.images(image_of(pattern)) as images:
        everywhere = range(pattern.hosts)
        cloud = collective.Cloud(pattern.hosts, pattern.link_mbit, images, [], everywhere)
        with cloud.running():
            before = cloud.network.link_bytes()["source"]
            took_s = broadcast.broadcast(cloud.network, images.path(0), BROADCAST_DEADLINE_S)
            sent_bytes = (cloud.network.link_bytes()["source"] - before).sent
        seen = {
            number: collective.Seen(0.0, max(max(took_s.values()), r.delay_s), r.length)
            for number, r in enumerate(pattern.readings)
        }
        return {**_copied(pattern, seen, sent_bytes), "arrived_s": list(took_s.values())}


def _copied(pattern: Pattern, seen: Mapping[int, collective.Seen], source_bytes: int) -> Outcome:
    """Return the outcome of a way that copies whole images."""
    unread = pattern.hosts * pattern.image_bytes - sum(seen[n].length for n in seen)
    from_source = source_bytes / pattern.hosts
    return {
        **outcome(pattern, [seen[number] for number in sorted(seen)], source_bytes),
        "transfers_bytes": {
            "source": from_source,
            "home": 0,
            "peer": max(0, pattern.image_bytes - from_source),
        },
        "unread_share": unread / sum(r.length for r in pattern.readings),
    }


def outcome(pattern: Pattern, seen: Sequence[collective.Seen], source_bytes: int) -> Outcome:
    """Return the figures of every way."""
    rates = [host.length / host.took_s / pattern.link_bytes_s for host in seen]
    took_s = [host.took_s for host in seen]
    return {
        "completion": max(host.ended_s for host in seen) / pattern.limit_s,
        "source_ratio": source_bytes / pattern.unique_bytes,
        "slowest_over_fastest": max(took_s) / min(took_s),
        "rate_over_link": {
            "min": min(rates),
            "mean": statistics.mean(rates),
            "max": max(rates),
            "each": rates,
        },
        "took_s": took_s,
        "region_mib": pattern.readings[0].length / geometry.MIB,
    }


def prefetch_ways() -> dict[str, Way]:
    """Return acstor without prefetch and with unlimited prefetch."""
    return {
        name: lambda played, variant=variant: with_acstor(played, variants=variant)
        for name, variant in PREFETCH_VARIANTS.items()
    }


def play(ways: Mapping[str, tuple[Way, Pattern]], say: harness.Say) -> dict[str, Outcome]:
    """Run each way with its pattern; report each."""
    found = {}
    for name, (way, pattern) in ways.items():
        say(
            f"{name}: {pattern.name}, {pattern.hosts} hosts, "
            f"{pattern.readings[0].length / geometry.MIB:g} MiB each, "
            f"links {pattern.link_mbit:g} Mbit/s"
        )
        found[name] = way(pattern)
        say(f"{name}: {words(found[name])}")
    return found


def words(way: Outcome) -> str:
    """Return a way's figures as text."""
    rates = way["rate_over_link"]
    return (
        f"completion {way['completion']:.2f} times the limit, slowest / fastest "
        f"{way['slowest_over_fastest']:.2f}, source bytes / unique {way['source_ratio']:.3f}, "
        f"throughput / link {rates['min']:.2f} to {rates['max']:.2f}, "
        f"unread / read {way['unread_share']:.3f}"
    )
