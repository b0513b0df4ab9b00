# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of the agent: the counters of ``status`` as metrics."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import prometheus_client
import trio
from prometheus_client import core
from prometheus_client import registry

from acstor_agent.control import disk_metrics
from acstor_agent.control import metric_values
from acstor_agent.core.boot import boot_phases
from acstor_common.service import metrics_endpoint

Gauge = core.GaugeMetricFamily
Counter = core.CounterMetricFamily
Histogram = core.HistogramMetricFamily
ReadStatus = Callable[[], dict[str, Any]]
Rows = dict[str | None, dict[str, Any]]  # numbers by image; those of all images under None


class Collector(registry.Collector):
    """Converts the status into metrics; ``read_status`` is called in the endpoint's thread."""

    def __init__(self, read_status: ReadStatus) -> None:
        self._read_status = read_status

    def collect(self) -> Iterator[core.Metric]:
        """Yield all metrics."""
        status = self._read_status()
        by_image = status["by_image"]
        yield from _of_reads(status["reads"], by_image)
        yield from _of_detached(status["detached"])
        yield from _of_fill(status["fill"], by_image)
        yield from _of_replicas(status["replicas"])
        yield from _of_exchange(status["exchange"])
        yield _of_refused(status["refused"])
        yield from _of_boots(status["boot"])
        yield _of_boot_phases(status["boot_phases"], by_image)
        yield from _of_cache(status["cache"])
        yield from disk_metrics.of_disk_io(status["disk_io"], by_image)
        yield _of_event_loop(status["event_loop"])
        yield from _of_guests(status["guests"])
        yield from _of_sources(status["sources"])
        yield from _of_late(status["late"], by_image)
        yield _of_faults(status["faults"])
        yield _of_fallbacks(status["nova"]["fallbacks"])
        for name, text in (("epoch", "Epoch"), ("hosts", "Hosts")):
            text = f"{text} of the current v-node table"
            yield Gauge(f"acstor_ring_{name}", text, status["ring"][name])
        yield from _of_identity(status["identity"])


def serve(address: str, read_status: ReadStatus) -> Callable[[], None]:
    """Start the endpoint in a thread; return what stops it, or raise Unusable for the address."""
    own = prometheus_client.CollectorRegistry()
    own.register(Collector(read_status))
    return metrics_endpoint.serve(address, own, "[acstor_agent] metrics_listen")


async def run_endpoint(
    address: str,
    read_status: ReadStatus,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the endpoint until cancelled, or raise Unusable if the address cannot be used."""
    stop = serve(address, read_status)
    try:
        task_status.started()
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stop)


def _of_event_loop(iterations: dict[str, Any]) -> core.Metric:
    found = Histogram(
        "acstor_event_loop_lag_seconds",
        "Duration of event loop iterations, the longest wait of a request for the loop",
    )
    found.add_metric([], *metric_values.cumulative_buckets(iterations))
    return found


def _of_faults(faults: dict[str, dict[str, Any]]) -> core.Metric:
    text = "Beginning of a fault, by the part that fails; absent for parts that work"
    since_s = {part: fault["since_s"] for part, fault in faults.items()}
    return metric_values.labelled(
        Gauge("acstor_fault_start_timestamp_seconds", text, labels=["part"]), since_s
    )


def _of_fallbacks(fallbacks: dict[str, int]) -> core.Metric:
    text = "Fallbacks of Nova to its own download, by reason"
    return metric_values.labelled(
        Counter("acstor_nova_fallbacks", text, labels=["reason"]), fallbacks
    )


def _of_identity(identity: dict[str, Any]) -> Iterator[core.Metric]:
    yield Gauge(
        "acstor_certificate_expiry_timestamp_seconds",
        "End of this host's certificate; 0: it has none",
        identity["certificate_not_after_s"] or 0,
    )
    yield Gauge(
        "acstor_trusted_signers",
        "Keys that this host trusts to sign v-node tables and tasks",
        identity["signers"],
    )
    enrolment = identity["enrolment"] or {"failures": 0, "clock_offset_s": 0.0}
    yield Gauge(
        "acstor_enrolment_consecutive_failures",
        "Failed attempts to get a certificate since the last success",
        enrolment["failures"],
    )
    yield Gauge(
        "acstor_clock_offset_seconds",
        "Offset of this host's clock from the decision service's; above 0: it is ahead",
        enrolment["clock_offset_s"],
    )


def _key(image_id: str | None) -> list[str]:
    return [] if image_id is None else [image_id]


def _labels(by_image: bool, *others: str) -> list[str]:
    return [*(["image"] if by_image else []), *others]


def _of_reads(reads: Rows, by_image: bool) -> Iterator[core.Metric]:
    by_origin, labels = _labels(by_image, "origin"), _labels(by_image)
    families = {
        (name, unit): Counter(f"acstor_{name}_{unit}", text, labels=by_origin)
        for name, unit, text in (
            ("read", "bytes", "Bytes that guests read, by origin"),
            ("read", "requests", "Read requests of guests, counted once for each origin"),
            ("fetched", "bytes", "Bytes of chunks that this host fetched, by origin"),
            ("fetched", "requests", "Chunks that this host fetched, by origin"),
        )
    }
    seconds = Histogram("acstor_read_duration_seconds", "Duration of guests' reads", labels=labels)
    in_flight = Gauge("acstor_reads_in_flight", "Reads that have no answer yet", labels=labels)
    failed = Counter("acstor_failed_reads", "Reads that failed with EIO", labels=labels)
    lost = Counter(
        "acstor_lost_reads", "Reads that failed with EIO because the data is lost", labels=labels
    )
    for image_id, row in reads.items():
        key = _key(image_id)
        for (name, unit), family in families.items():
            for origin, counts in row[name].items():
                family.add_metric([*key, origin], counts[unit])
        seconds.add_metric(key, *metric_values.cumulative_buckets(row["latency"]))
        in_flight.add_metric(key, row["reads_in_flight"])
        failed.add_metric(key, row["failed_reads"])
        lost.add_metric(key, row["lost_reads"])
    yield from [*families.values(), seconds, in_flight, failed, lost]


def _of_detached(detached: dict[str, int]) -> Iterator[core.Metric]:
    for name, text, count in (
        ("images_detached", "Images detached after a time without use", detached["images"]),
        (
            "purged_chunks",
            "Chunks deleted with images that the source no longer has",
            detached["purged_chunks"],
        ),
    ):
        yield Counter(f"acstor_{name}", text, count)


def _of_fill(fill: Rows, by_image: bool) -> Iterator[core.Metric]:
    families = {
        key: Gauge(f"acstor_fill_{name}", text, labels=_labels(by_image))
        for key, name, text in (
            ("total_bytes", "target_bytes", "Data of images to cache completely, without zeros"),
            ("remaining_bytes", "remaining_bytes", "Part of this data that is not cached yet"),
            ("shortfall_bytes", "shortfall_bytes", "Space that the cache lacks for these images"),
            ("rate_bytes_s", "rate_bytes_per_second", "Rate at which the cache is filled"),
            ("due_in_s", "deadline_seconds", "Time to the first deadline; below 0: it has passed"),
            ("is_late", "late_images", "Images that missed their deadline, or will miss it"),
        )
    }
    states = Gauge("acstor_fill_images", "Images by fill state", labels=_labels(by_image, "state"))
    for image_id, row in fill.items():
        key = _key(image_id)
        for name, family in families.items():
            if row[name] is not None:
                family.add_metric(key, row[name])
        for state, images in row["states"].items():
            states.add_metric([*key, state], images)
    yield from [*families.values(), states]


def _of_replicas(replicas: dict[str, int] | None) -> Iterator[core.Metric]:
    if replicas is None:
        return
    for name, text in (
        ("images", "Images of which this host keeps a part only for other hosts"),
        ("bytes", "Data of these parts"),
        ("leased_images", "Images of which other hosts lease a part from this host"),
    ):
        yield Gauge(f"acstor_replica_{name}", text, replicas[name])
    for key, name, text in (
        ("refused", "refused_images", "Leases refused because the host had too many"),
        ("ignored", "ignored_messages", "Lease messages of hosts outside the v-node table"),
    ):
        yield Counter(f"acstor_replica_{name}", text, replicas[key])


def _of_exchange(exchange: dict[str, Any]) -> Iterator[core.Metric]:
    yield Gauge(
        "acstor_chunks_in_flight", "Chunks that this host fetches now", exchange["chunks_in_flight"]
    )
    yield Gauge(
        "acstor_peers_in_backoff",
        "Peers that are backing off after failures",
        len(exchange["in_backoff"]),
    )
    yield Gauge(
        "acstor_is_source_preferred",
        "Whether guests' reads prefer the source because peers are slower: 1, or 0",
        exchange["is_source_preferred"],
    )
    for name, text in (
        ("source_bytes", "Bytes that this host read from the source, for itself and for peers"),
        ("relayed_bytes", "Bytes that this host, as a home, fetched from another home"),
        ("prefetched_bytes", "Bytes fetched before a guest read them, as neighbours had them"),
        ("served_bytes", "Bytes of chunks sent to peers"),
        ("served_chunks", "Chunks sent to peers"),
        ("invalid_chunks", "Chunks from peers that failed verification"),
        ("failovers", "Requests sent to the next peer or source because one failed"),
        ("hedged_requests", "Requests also sent to the next peer or source because one was slow"),
        ("referrals_followed", "Referrals of busy peers to other hosts"),
        (
            "source_preferred_reads",
            "Reads that went to the source, or to nearer peers, as others were slower",
        ),
        ("advertised_chunks", "Chunks advertised to neighbours, counted for each neighbour"),
        ("ignored_advertisements", "Chunks that peers advertised beyond the rate limit"),
        ("false_advertisements", "Chunks that a peer had advertised and did not have"),
        ("withdrawn_advertisements", "Advertised chunks that this host evicted and withdrew"),
        ("peer_listener_restarts", "Restarts of this host's listener for peers"),
        ("peer_internal_errors", "Requests and connections of peers that an internal error ended"),
        ("demotion_requests_sent", "Chunks that this home asked other hosts to evict first"),
        ("demoted_chunks", "Chunks that their home asked this host to evict first"),
    ):
        yield Counter(f"acstor_{name}", text, exchange[name])


def _of_refused(refused: dict[str, int]) -> core.Metric:
    text = "Requests of peers that were refused, and connections without a valid certificate"
    return metric_values.labelled(
        Counter("acstor_refused_peer_requests", text, labels=["kind"]), refused
    )


def _of_boots(boots: dict[str, Any]) -> Iterator[core.Metric]:
    for name, text in (
        ("memory_bytes", "Memory that boot images use"),
        ("memory_limit_bytes", "Limit of the memory for boot images"),
        ("images_loaded", "Boot images loaded into memory"),
        ("images_dropped", "Boot images dropped from memory after boots"),
        ("images_ignored", "Boot images that were damaged or belonged to other data"),
        ("images_refused", "Boot images refused because they exceed the memory limit"),
        ("images_failed", "Boot images that could not be fetched"),
        ("images_recorded", "Boots recorded here and sent to the listener"),
        ("images_prefetched", "Boot images fetched before a guest read them"),
        ("prefetched_bytes", "Bytes of boot images fetched before a guest read them"),
        ("prefetched_used_bytes", "Part of these bytes that a guest has read since"),
    ):
        is_gauge = name in ("memory_bytes", "memory_limit_bytes")
        family = Gauge if is_gauge else Counter
        yield family(f"acstor_boot_{name}", text, boots[name.removeprefix("images_")])


def _of_boot_phases(phases: Rows, by_image: bool) -> core.Metric:
    found = Histogram(
        "acstor_boot_phase_duration_seconds",
        "Duration of the phases of servers' boots, once a boot is over",
        labels=_labels(by_image, "phase"),
    )
    for image_id, histograms in phases.items():
        for phase, histogram in histograms.items():
            buckets = metric_values.cumulative_buckets(histogram, boot_phases.BOUNDS_S)
            found.add_metric([*_key(image_id), phase], *buckets)
    return found


def _of_cache(cache: dict[str, Any]) -> Iterator[core.Metric]:
    for name, text in (
        ("stored_bytes", "Data in the cache"),
        ("disk_bytes", "Size of the cache's files"),
        ("limit_bytes", "Limit of the size of the cache's files"),
        ("reserved_bytes", "Space reserved for pinned images, whether cached or not"),
        ("pinned_bytes", "Cached data of pinned images"),
        ("pinned_missing_chunks", "Chunks of pinned images that are not cached"),
        ("pending_bytes", "Data that is not written to disk yet"),
        ("chunks", "Chunks in the cache"),
    ):
        yield Gauge(f"acstor_cache_{name}", text, cache[name])
    text = "Whether the cache's folder has a fault, such as a full disk: 1, or 0"
    yield Gauge("acstor_cache_fault", text, bool(cache["fault"]))
    for name, text in (
        ("evictions", "Chunks evicted"),
        ("corrupt_chunks", "Chunks dropped because their data was corrupt"),
        ("rejected_chunks", "Chunks not cached because nothing could be evicted for them"),
        ("write_errors", "Chunks and slab files that could not be written"),
    ):
        yield Counter(f"acstor_cache_{name}", text, cache[name])


def _of_guests(guests: dict[str, Any]) -> Iterator[core.Metric]:
    text = "Requests that wait for data that is not cached"
    waiting = {kind: guests[f"waiting_{kind}"] for kind in ("reads", "writes")}
    yield metric_values.labelled(Gauge("acstor_waiting_requests", text, labels=["kind"]), waiting)
    yield Gauge(
        "acstor_guests_on_dead_mounts",
        "Guests that use a dead mount and get I/O errors",
        len(guests["on_dead_mounts"]),
    )
    yield Counter(
        "acstor_rejected_requests",
        "Requests rejected because too many waited, of the guest with the most",
        guests["refused"],
    )
    yield Counter(
        "acstor_aborted_requests",
        "Waiting requests aborted because their process was killed",
        guests["ended"],
    )


def _of_late(late: Rows, by_image: bool) -> Iterator[core.Metric]:
    waiting = Gauge(
        "acstor_late_requests",
        "Requests that have waited for 5 s or more",
        labels=_labels(by_image),
    )
    longest = Gauge(
        "acstor_oldest_wait_seconds",
        "Age of the oldest of these requests; 0: there is none",
        labels=_labels(by_image),
    )
    for file_id, row in late.items():
        waiting.add_metric(_key(file_id), row["requests"])
        longest.add_metric(_key(file_id), row["longest_s"])
    yield from (waiting, longest)


def _of_sources(sources: dict[str, dict[str, Any]]) -> Iterator[core.Metric]:
    text = "Calls to a source that hang in the kernel, one thread each"
    hanging = {where: health["hanging_calls"] for where, health in sources.items()}
    yield metric_values.labelled(
        Gauge("acstor_source_hanging_calls", text, labels=["source"]), hanging
    )
    text = "Requests to a source that timed out"
    missed = {where: health["missed_attempts"] for where, health in sources.items()}
    yield metric_values.labelled(Counter("acstor_source_timeouts", text, labels=["source"]), missed)
