# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of the agent: the numbers of ``status`` as metrics.

The agent counts in plain integers, because a guest's read must not pay for
labels and locks; they become metrics when somebody asks.
"""

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import prometheus_client
import trio
from prometheus_client import core
from prometheus_client import registry

from acstor_agent.core import counters
from acstor_common import metrics_endpoint

Picture = Callable[[], dict[str, Any]]
Rows = dict[str | None, dict[str, Any]]
"""Numbers by image, or those of all images by None."""


class Collector(registry.Collector):
    """Turns the agent's numbers into metrics.

    Its cost does not grow with images unless they are shown each for itself, by ``by_image``.

    :param picture: returns the numbers; it is called from the endpoint's thread
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[core.Metric]:
        """Yield all metrics, as of now."""
        status = self._picture()
        by_image = status["by_image"]
        yield from _of_reads(status["reads"], by_image)
        yield from _of_detached(status["detached"])
        yield from _of_whole(status["fill"], by_image)
        yield from _of_shares(status["shares"])
        yield from _of_exchange(status["exchange"])
        yield _of_refused(status["refused"])
        yield from _of_boots(status["boot"])
        yield from _of_cache(status["cache"])
        yield from _of_disk_io(status["disk_io"], by_image)
        turns = core.HistogramMetricFamily(
            "acstor_event_loop_turn_seconds", "How long everything waits for the worker at most"
        )
        turns.add_metric([], *_buckets(status["event_loop"]))
        yield turns
        yield from _of_guests(status["guests"])
        yield from _of_sources(status["sources"])
        yield from _of_late(status["late"], by_image)
        broken = core.GaugeMetricFamily(
            "acstor_trouble_since_seconds",
            "Since when a part does not work, as Unix time; there is none for parts that work",
            labels=["part"],
        )
        for part, trouble in status["troubles"].items():
            broken.add_metric([part], trouble["since_s"])
        yield broken
        fallbacks = core.CounterMetricFamily(
            "acstor_nova_fallbacks",
            "Disks that Nova made without acstor, by the reason",
            labels=["reason"],
        )
        for reason, times in status["nova"]["fallbacks"].items():
            fallbacks.add_metric([reason], times)
        yield fallbacks
        for name, text in (("epoch", "Epoch"), ("hosts", "Hosts")):
            text = f"{text} of the v-node table in force"
            yield core.GaugeMetricFamily(f"acstor_ring_{name}", text, status["ring"][name])
        yield from _of_identity(status["identity"])


def serve(address: str, picture: Picture) -> Callable[[], None]:
    """Start the endpoint in a thread; return what stops it.

    :raises errors.Unusable: the address cannot be used
    """
    own = prometheus_client.CollectorRegistry()
    own.register(Collector(picture))
    return metrics_endpoint.serve(address, own, "[acstor_agent] metrics_listen")


async def show(
    address: str,
    picture: Picture,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have the endpoint until cancelled.

    :raises errors.Unusable: the address cannot be used
    """
    stop = serve(address, picture)
    try:
        task_status.started()
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stop)


def _of_identity(identity: dict[str, Any]) -> Iterator[core.Metric]:
    yield core.GaugeMetricFamily(
        "acstor_certificate_not_after_seconds",
        "When this host's certificate ends, wall clock; 0 if it has none",
        identity["certificate_not_after_s"] or 0,
    )
    yield core.GaugeMetricFamily(
        "acstor_signers", "Keys that may sign v-node tables and tasks", identity["signers"]
    )
    enrolment = identity["enrolment"] or {"failures": 0, "clock_off_s": 0.0}
    yield core.GaugeMetricFamily(
        "acstor_enrolment_failures",
        "Attempts in a row to get a certificate that failed",
        enrolment["failures"],
    )
    yield core.GaugeMetricFamily(
        "acstor_clock_off_seconds",
        "How far this host's clock was ahead of the decision service's",
        enrolment["clock_off_s"],
    )


def _key(image_id: str | None) -> list[str]:
    """Return the values of the labels of _labels."""
    return [] if image_id is None else [image_id]


def _labels(by_image: bool, *others: str) -> list[str]:
    return [*(["image"] if by_image else []), *others]


def _of_reads(reads: Rows, by_image: bool) -> Iterator[core.Metric]:
    by_origin, labels = _labels(by_image, "origin"), _labels(by_image)
    families = {
        (name, unit): core.CounterMetricFamily(f"acstor_{name}_{unit}", text, labels=by_origin)
        for name, unit, text in (
            ("read", "bytes", "Bytes that guests read, by where they came from"),
            ("read", "requests", "Stretches of guests' reads, by where they came from"),
            ("fetched", "bytes", "Bytes of chunks that came to this host, by who gave them"),
            ("fetched", "requests", "Chunks that came to this host, by who gave them"),
        )
    }
    seconds = core.HistogramMetricFamily(
        "acstor_read_seconds", "How long guests' reads took", labels=labels
    )
    in_flight = core.GaugeMetricFamily("acstor_reads_in_flight", "Reads waiting", labels=labels)
    failed = core.CounterMetricFamily("acstor_failed_reads", "Reads with EIO", labels=labels)
    lost = core.CounterMetricFamily(
        "acstor_lost_reads", "Reads with EIO of bytes that are nowhere any more", labels=labels
    )
    for image_id, row in reads.items():
        key = _key(image_id)
        for (name, unit), family in families.items():
            for origin, counts in row[name].items():
                family.add_metric([*key, origin], counts[unit])
        seconds.add_metric(key, *_buckets(row["latency"]))
        in_flight.add_metric(key, row["reads_in_flight"])
        failed.add_metric(key, row["failed_reads"])
        lost.add_metric(key, row["lost_reads"])
    yield from [*families.values(), seconds, in_flight, failed, lost]


def _of_detached(detached: dict[str, int]) -> Iterator[core.Metric]:
    for name, text, count in (
        ("images_detached", "Images detached because nobody used them", detached["images"]),
        (
            "purged_chunks",
            "Chunks dropped with images that the source has no more",
            detached["purged_chunks"],
        ),
    ):
        yield core.CounterMetricFamily(f"acstor_{name}", text, count)


def _of_whole(whole: Rows, by_image: bool) -> Iterator[core.Metric]:
    families = {
        name: core.GaugeMetricFamily(f"acstor_whole_{name}", text, labels=_labels(by_image))
        for name, text in (
            ("total_bytes", "Bytes of images that are to be whole here, without zeros"),
            ("remaining_bytes", "Bytes of them that are not here yet"),
            ("shortfall_bytes", "Bytes that the cache lacks for them: they do not become whole"),
            ("rate_bytes_s", "How fast they become whole"),
            ("due_in_s", "Seconds until the first is to be whole, as an operator asked; <0: since"),
            ("is_late", "How many will not be whole then at this speed, or were not"),
        )
    }
    states = core.GaugeMetricFamily(
        "acstor_whole_state",
        "Images by the state that they are in",
        labels=_labels(by_image, "state"),
    )
    for image_id, row in whole.items():
        key = _key(image_id)
        for name, family in families.items():
            if row[name] is not None:
                family.add_metric(key, row[name])
        for state, images in row["states"].items():
            states.add_metric([*key, state], images)
    yield from [*families.values(), states]


def _of_shares(shares: dict[str, int] | None) -> Iterator[core.Metric]:
    if shares is None:
        return
    for name, text in (
        ("images", "Images that this host keeps a share of for instances of other hosts alone"),
        ("bytes", "Bytes of these shares"),
        ("leased_images", "Images that other hosts have asked this one to keep its share of"),
    ):
        yield core.GaugeMetricFamily(f"acstor_shares_{name}", text, shares[name])
    for name, text in (
        ("refused", "Times that a host asked for more images than are kept for it"),
        ("ignored", "Messages of shares from hosts that are not on this host's v-node table"),
    ):
        yield core.CounterMetricFamily(f"acstor_shares_{name}", text, shares[name])


def _of_exchange(exchange: dict[str, Any]) -> Iterator[core.Metric]:
    yield core.GaugeMetricFamily(
        "acstor_chunks_in_flight", "Chunks on their way to this host", exchange["chunks_in_flight"]
    )
    yield core.GaugeMetricFamily(
        "acstor_peers_in_backoff", "Peers that are left alone now", len(exchange["in_backoff"])
    )
    yield core.GaugeMetricFamily(
        "acstor_is_source_first",
        "Whether guests ask the source first, because peers are clearly slower",
        exchange["is_source_first"],
    )
    for name, text in (
        ("source_bytes", "Bytes that this host read from the source, for itself and for peers"),
        ("relayed_bytes", "Bytes that this host, as a home, took from another home"),
        (
            "prefetched_bytes",
            "Bytes fetched because neighbours have them, before any guest waited",
        ),
        ("served_bytes", "Bytes of chunks given to peers"),
        ("served_chunks", "Chunks given to peers"),
        ("invalid_chunks", "Answers of peers that were not what was asked for"),
        ("fallbacks", "Times that a place failed and the next one was asked"),
        ("hedges", "Times that a place was slow and the next one was asked as well"),
        ("referrals_followed", "Times that a busy peer named others to ask instead"),
        ("source_first", "Times that a guest's read went to the source because peers were slower"),
        ("advertised", "Chunks told to neighbours, once for each of them"),
        ("advertised_ignored", "Chunks that peers told of faster than is listened to"),
        ("advertised_denied", "Chunks that a peer had told of and had not got"),
        ("taken_back", "Chunks told to neighbours that were gone later, and told so"),
        ("endpoint_reopened", "Times that this host's own endpoint for peers had died"),
        ("peer_faults", "Requests and connections of peers that ended by a fault of the agent's"),
        ("copies_told", "Chunks that others were asked to let go first, as their home"),
        ("copies_demoted", "Chunks that their homes asked this host to let go first"),
    ):
        yield core.CounterMetricFamily(f"acstor_{name}", text, exchange[name])


def _of_refused(refused: dict[str, int]) -> core.Metric:
    family = core.CounterMetricFamily(
        "acstor_peer_refused",
        "What hosts asked for in vain, and connections that did not show to be a host's",
        labels=["what"],
    )
    for what, times in refused.items():
        family.add_metric([what], times)
    return family


def _of_boots(boots: dict[str, Any]) -> Iterator[core.Metric]:
    for name, text in (
        ("memory_bytes", "Bytes of memory that boot images take"),
        ("limit_bytes", "Upper bound of the memory that boot images take"),
        ("images_loaded", "Boot images that came into memory as a whole"),
        ("images_dropped", "Boot images dropped from memory after boots"),
        ("images_ignored", "Boot images that were damaged or of other bytes"),
        ("images_refused", "Boot images for which there was no room in memory"),
        ("images_failed", "Boot images that could not be had"),
        ("images_recorded", "Boots that were recorded here and handed on"),
        ("images_ahead", "Boot images that are here before a guest asked for them"),
        ("ahead_bytes", "Bytes of boot images that came before a guest here asked for them"),
        ("ahead_used_bytes", "Of them those that a guest has needed since"),
    ):
        is_gauge = name in ("memory_bytes", "limit_bytes")
        family = core.GaugeMetricFamily if is_gauge else core.CounterMetricFamily
        yield family(f"acstor_boot_{name}", text, boots[name.removeprefix("images_")])


def _of_cache(cache: dict[str, Any]) -> Iterator[core.Metric]:
    for name, text in (
        ("stored_bytes", "Bytes of chunks in the public cache"),
        ("disk_bytes", "Bytes of the public cache's files"),
        ("limit_bytes", "Upper bound of the public cache's files"),
        ("beyond_bytes", "Bytes that it may grow beyond that for images that stay whole"),
        ("promised_bytes", "Bytes that images take that are to stay whole, here or not yet"),
        ("pinned_bytes", "Bytes of them that are here"),
        ("pinned_missing_chunks", "Chunks of them that are not here"),
        ("pending_bytes", "Bytes of chunks that are not on disk yet"),
        ("chunks", "Chunks in the public cache"),
    ):
        yield core.GaugeMetricFamily(f"acstor_cache_{name}", text, cache[name])
    text = "Whether the cache's folder cannot be used as it should"
    yield core.GaugeMetricFamily("acstor_cache_trouble", text, bool(cache["trouble"]))
    for name, text in (
        ("evictions", "Chunks that made room for others"),
        ("healed", "Chunks dropped because their bytes had gone bad"),
        ("refused", "Chunks not cached because nothing could make room"),
        ("write_errors", "Chunks or slab files that could not be written"),
    ):
        yield core.CounterMetricFamily(f"acstor_cache_{name}", text, cache[name])


def _of_guests(guests: dict[str, Any]) -> Iterator[core.Metric]:
    waiting = core.GaugeMetricFamily(
        "acstor_guests_waiting", "Requests that wait for what is not here", labels=["kind"]
    )
    for kind in ("reads", "writes"):
        waiting.add_metric([kind], guests[f"waiting_{kind}"])
    yield waiting
    yield core.GaugeMetricFamily(
        "acstor_guests_on_dead_mounts",
        "Guests that use a mount that has ended, and get I/O errors",
        len(guests["on_dead_mounts"]),
    )
    yield core.CounterMetricFamily(
        "acstor_guests_refused",
        "Requests that failed because their guest had most of too many waiting",
        guests["refused"],
    )
    yield core.CounterMetricFamily(
        "acstor_guests_ended",
        "Requests that waited and were ended because who had made them was being killed",
        guests["ended"],
    )


def _of_late(late: Rows, by_image: bool) -> Iterator[core.Metric]:
    waiting = core.GaugeMetricFamily(
        "acstor_reads_waiting",
        "Requests that have waited for 5 s or more",
        labels=_labels(by_image),
    )
    longest = core.GaugeMetricFamily(
        "acstor_oldest_wait_seconds",
        "How long the oldest of them has waited; 0 if there is none",
        labels=_labels(by_image),
    )
    for file_id, row in late.items():
        waiting.add_metric(_key(file_id), row["requests"])
        longest.add_metric(_key(file_id), row["longest_s"])
    yield from (waiting, longest)


def _of_sources(sources: dict[str, dict[str, Any]]) -> Iterator[core.Metric]:
    hanging = core.GaugeMetricFamily(
        "acstor_source_hanging_calls",
        "Calls to a source that hang in the kernel, each with a thread",
        labels=["source"],
    )
    missed = core.CounterMetricFamily(
        "acstor_source_missed_attempts",
        "Requests to a source that had no answer in their time",
        labels=["source"],
    )
    for where, health in sources.items():
        hanging.add_metric([where], health["hanging_calls"])
        missed.add_metric([where], health["missed_attempts"])
    yield from [hanging, missed]


def _of_disk_io(io: dict[str, Any], by_image: bool) -> Iterator[core.Metric]:
    yield core.InfoMetricFamily(
        "acstor_disk_policy", "What decides about the agent's disk", {"policy": io["policy"]}
    )
    yield core.GaugeMetricFamily("acstor_disk_waiting", "I/O that waits its turn", io["waiting"])
    yield core.CounterMetricFamily(
        "acstor_disk_stalls", "Times that the disk did not answer in time", io["stalls"]
    )
    seeks = core.CounterMetricFamily(
        "acstor_disk_seeks", "Scheduled I/O by seek distance", labels=["distance"]
    )
    for distance, count in io["seeks"].items():
        seeks.add_metric([distance], count)
    yield seeks
    streams = io["streams"]
    yield from _of_streams(streams if by_image else _by_class(streams))


def _by_class(streams: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add up the streams of each class: of guests, of peers, of each kind of other work."""
    found: dict[str, dict[str, Any]] = {}
    for stream, count in streams.items():
        klass = stream.partition(":")[0]
        if (known := found.get(klass)) is None:
            found[klass] = count
            continue
        latency, other = known["latency"], count["latency"]
        buckets = [a + b for a, b in zip(latency["buckets"], other["buckets"], strict=True)]
        found[klass] = {
            **{name: known[name] + count[name] for name in ("requests", "bytes", "slices")},
            "slice_s": max(known["slice_s"] or 0.0, count["slice_s"] or 0.0),
            "waits": {end: known["waits"][end] + times for end, times in count["waits"].items()},
            "latency": {"buckets": buckets, "total_s": latency["total_s"] + other["total_s"]},
        }
    return found


def _of_streams(streams: dict[str, dict[str, Any]]) -> Iterator[core.Metric]:
    families = {
        name: core.CounterMetricFamily(f"acstor_disk_stream_{name}", text, labels=["stream"])
        for name, text in (
            ("requests", "Scheduled I/O"),
            ("bytes", "Bytes of scheduled I/O"),
            ("slices", "Time slices"),
        )
    }
    length = core.GaugeMetricFamily(
        "acstor_disk_stream_slice_s", "Length of the last time slice", labels=["stream"]
    )
    waits = core.CounterMetricFamily(
        "acstor_disk_stream_waits", "Waits by how they ended", labels=["stream", "end"]
    )
    seconds = core.HistogramMetricFamily(
        "acstor_disk_stream_seconds", "From asking to being done", labels=["stream"]
    )
    for stream, count in streams.items():
        for name, family in families.items():
            family.add_metric([stream], count[name])
        length.add_metric([stream], count["slice_s"] or 0.0)
        for end, times in count["waits"].items():
            waits.add_metric([stream, end], times)
        seconds.add_metric([stream], *_buckets(count["latency"]))
    yield from [*families.values(), length, waits, seconds]


def _buckets(latency: dict[str, Any]) -> tuple[list[tuple[str, int]], float]:
    """Return a histogram as Prometheus wants it: each bucket with those below it, and the sum."""
    bounds = [*map(str, counters.LATENCY_BOUNDS_S), "+Inf"]
    upto = itertools.accumulate(latency["buckets"])
    return list(zip(bounds, upto, strict=True)), latency["total_s"]
