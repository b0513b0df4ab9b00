# SPDX-License-Identifier: Apache-2.0
"""What the agent tells about itself, by ``status`` and by the metrics.

The field names are read by machines: they are never changed.
"""

import collections
import dataclasses
import os
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from acstor_agent.cache import cache_files
from acstor_agent.cloud import enrolment
from acstor_agent.cloud import ring_keeper
from acstor_agent.core import counters
from acstor_agent.core import health_issues
from acstor_agent.core.disks import disk_header
from acstor_agent.core.images import image_usage
from acstor_agent.core.mount import blocked_requests
from acstor_agent.disks import disk
from acstor_agent.disks import disks
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import source_client
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import image_eviction
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_agent.images.maps import detached_maps
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.peers import handshake_limits
from acstor_agent.peers import peer_network
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.service import version


def of_agent(host: ids.HostId, conf: cfg.ConfigOpts, uptime_s: float) -> dict[str, Any]:
    """Return which agent this is, and what was decided about it."""
    own = conf.acstor_agent
    decided = ("keep_images", "cache_may_grow_for_pins", "prefetch_boot_images")
    return {
        "host": host,
        "version": version.installed(),
        "worker_pid": os.getpid(),
        "uptime_s": round(uptime_s, 3),
        "mount_point": conf.acstor.mount_point,
        **{name: own[name] for name in decided},
    }


def of_ring(rings: ring_keeper.RingKeeper) -> dict[str, Any]:
    """Return the v-node table in force in numbers."""
    return {
        "epoch": rings.ring.epoch,
        "hosts": len(rings.ring.hosts),
        "is_signed": rings.is_signed,
    }


def of_identity(
    identity: identity_files.Identity, enrolling: enrolment.Enrolment | None
) -> dict[str, Any]:
    """Return what this host can prove, whom it believes, and how its enrolment stands."""
    certificate = identity.certificate
    return {
        "certificate_not_after_s": certificate.not_after_s if certificate else None,
        "signers": len(identity.signers),
        "enrolment": enrolling.state._asdict() if enrolling else None,
    }


def of_images(
    images: mirrors.Mirrors,
    uses: usage.ImageUsage,
    whole: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return what is known of each image that is attached.

    Beside it what was read and fetched of all images, those included that have gone.
    """
    fetched = dict(counted.fetched)  # the event loop's thread adds images to it
    shown = {
        image_id: of_image(
            images.get_nowait(image_id),
            fetched.get(image_id),
            images.touched_ns(image_id),
            uses.usage_of(image_id),
            whole.telling.status_of(image_id) if whole else None,
            late.get(image_id),
            images.size_bytes(image_id),
        )
        for image_id in images.list_attached()
    }
    return {
        "images": shown,
        "read": images.reads.read.as_dict(),
        "fetched": counted.fetched_total.as_dict(),
    }


def of_images_together(
    images: mirrors.Mirrors,
    whole: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return the numbers of all images together, each a mapping with the one key None.

    Counters are not added up here: they count for the host when they count for an image.
    """
    return {
        "reads": {None: of_reads(images.reads, counted.fetched_total)},
        "fill": of_whole_together(whole.telling.list_status().values() if whole else ()),
        "late": {
            None: {
                "requests": sum(one.count for one in late.values()),
                "longest_s": max((one.longest_s for one in late.values()), default=0.0),
            }
        },
    }


def of_images_apart(
    images: mirrors.Mirrors,
    whole: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return the same numbers for each image; reads that wait for long by image or disk."""
    fetched, nothing = dict(counted.fetched), counters.Tally()
    reads = {image.map.image_id: image.counters for image in images.open()}
    return {
        "reads": {
            image_id: of_reads(reads.get(image_id), fetched.get(image_id, nothing))
            for image_id in images.list_attached()
        },
        "fill": {
            image_id: {**shown, "states": {shown["state"]: 1}}
            for image_id, shown in (whole.telling.list_status() if whole else {}).items()
        },
        "late": {
            file_id: {"requests": one.count, "longest_s": one.longest_s}
            for file_id, one in late.items()
        },
    }


def of_whole_together(shown: Collection[Mapping[str, Any]]) -> dict[None, dict[str, Any]]:
    """Return how far all images are that are to be whole, by None; {} if none is."""
    if not shown:
        return {}
    numbers = ("total_bytes", "remaining_bytes", "shortfall_bytes", "rate_bytes_s")
    due_s = [one["due_in_s"] for one in shown if one["due_in_s"] is not None]
    return {
        None: {
            **{name: sum(one[name] or 0 for one in shown) for name in numbers},
            "due_in_s": min(due_s, default=None),
            "is_late": sum(bool(one["is_late"]) for one in shown) if due_s else None,
            "states": collections.Counter(one["state"] for one in shown),
        }
    }


def of_reads(read: counters.ReadCounters | None, fetched: counters.Tally) -> dict[str, Any]:
    """Return what guests read and what came to this host for it."""
    read = read or counters.ReadCounters()
    return {
        "read": read.read.as_dict(),
        "fetched": fetched.as_dict(),
        "reads_in_flight": read.in_flight,
        "failed_reads": read.failed_reads,
        "lost_reads": read.lost_reads,
        "latency": of_latency(read.latency),
    }


def of_shares(
    sharing: replication.Replication | None, promised: pins.ImagePins
) -> dict[str, int] | None:
    """Return what is kept for the instances of other hosts; None where nothing is."""
    if sharing is None:
        return None
    images, total_bytes = promised.for_others()
    return {"images": images, "bytes": total_bytes, **sharing.report_counts()}


def of_image(
    image: mirror.Mirror | None,
    fetched: counters.Tally | None,
    touched_ns: int,
    use: image_usage.UsageEvidence,
    whole: dict[str, Any] | None,
    late: blocked_requests.LateWaits | None = None,
    size_bytes: int | None = None,
) -> dict[str, Any]:
    """Return what is known of one image; one that was not read since the start has few numbers.

    :param late: its reads that wait for long
    """
    return {
        "size_bytes": image.size_bytes if image else size_bytes,
        "chunk_bytes": image.map.geometry.chunk_bytes if image else None,
        "cached_bytes": image.cached_bytes() if image else None,
        "touched_s": touched_ns / 1e9,
        "is_used": use.is_used(),
        "is_open": use.is_open,
        "fill": whole,
        **of_reads(image.counters if image else None, fetched or counters.Tally()),
        "waiting": of_blocked_requests(late),
        "boot_image": of_boot_image(image.boots) if image else None,
    }


def of_blocked_requests(late: blocked_requests.LateWaits | None) -> dict[str, Any] | None:
    """Return how many requests wait for long, since when, and what for; None if none does."""
    if late is None:
        return None
    return {
        "requests": late.count,
        "longest_s": round(late.longest_s, 1),
        "since_s": round(time.time() - late.longest_s, 1),
        "why": late.why,
    }


def of_boot_image(boots: boot_session.BootSession) -> dict[str, Any]:
    """Return what has become of an image's boot image since the start."""
    head = boots.head
    return {
        "state": boots.state.value,
        "revision": head.header.revision if head else None,
        "chunks": head.header.chunk_count if head else None,
        "chunks_in_memory": len(boots.in_memory),
    }


def of_boots(host: boot_session.BootSessions) -> dict[str, Any]:
    """Return the boot images of this host in numbers."""
    counted = host.counters
    return {
        "memory_bytes": host.memory.used_bytes,
        "memory_limit_bytes": host.memory.limit_bytes,
        "loaded": counted.loaded,
        "dropped": counted.dropped,
        "ignored": counted.ignored,
        "refused": counted.refused,
        "failed": counted.failed,
        "recorded": counted.recorded,
        "prefetched": counted.ahead,
        "prefetched_bytes": counted.ahead_bytes,
        "prefetched_used_bytes": counted.ahead_used_bytes,
    }


def of_detached(detaching: image_eviction.ImageEviction) -> dict[str, int]:
    """Return how many images nobody used any more, and what of deleted ones was dropped."""
    return {"images": detaching.detached, "purged_chunks": detaching.purged_chunks}


def of_disks(
    made: disks.Disks, late: Mapping[str, blocked_requests.LateWaits]
) -> dict[disk_header.DiskId, dict[str, Any]]:
    """Return what is known of each disk."""
    return {
        disk_id: of_disk(made.get_nowait(disk_id), late.get(disk_id))
        for disk_id in made.list_disks()
    }


def of_disk(
    made: disk.Disk | None, late: blocked_requests.LateWaits | None = None
) -> dict[str, Any]:
    """Return what is known of one disk; one that was not used since the start has no numbers.

    :param late: its requests that wait for long
    """
    waiting_ = of_blocked_requests(late)
    if made is None:
        unknown = ("image_id", "size_bytes", "written_bytes", "unsynced_bytes", "lacking_bytes")
        return {**dict.fromkeys(unknown), "waiting": waiting_}
    cut = made.header.cut
    return {
        "waiting": waiting_,
        "image_id": made.header.image_id,
        "size_bytes": cut.size_bytes,
        "written_bytes": min(made.written_chunks * cut.chunk_bytes, cut.size_bytes),
        "unsynced_bytes": min(made.unsynced_chunks * cut.chunk_bytes, cut.size_bytes),
        "lacking_bytes": min(made.lacking_chunks * cut.chunk_bytes, cut.size_bytes),
    }


def of_latency(latency: counters.Latency) -> dict[str, Any]:
    """Return a histogram's summary; quantiles are bucket bounds, in seconds."""
    return {
        "count": latency.count,
        "total_s": latency.total_s,
        "p50_s": latency.quantile(0.5),
        "p99_s": latency.quantile(0.99),
        "longest_s": latency.longest_s,
        "buckets": latency.buckets,
    }


def of_cache(cache: cache_files.CacheFiles) -> dict[str, Any]:
    """Return the public cache in numbers, and what is wrong with its folder, if anything is."""
    trouble = cache.trouble._asdict() if cache.trouble else None
    return {**dataclasses.asdict(cache.statistics), "fault": trouble}


def of_disk_io(io: disk_io.DiskIo) -> dict[str, Any]:
    """Return what was scheduled on the host's own disk since the start, by stream."""
    account = io.account
    return {
        "policy": io.policy,
        "waiting": io.waiting,
        "stalls": io.stalls,
        "seeks": dict(account.seeks),
        "waits": account.waits,
        "streams": {
            str(stream): {
                "requests": count.requests,
                "bytes": count.bytes,
                "slices": count.slices,
                "slice_s": io.slice_s(stream),
                "waits": dict(count.waits),
                "latency": of_latency(count.latency),
            }
            for stream, count in account.streams.copy().items()
        },
    }


def of_troubles(
    known: health_issues.HealthIssues, sources: Iterable[source_client.PlaceState] = ()
) -> dict[str, Any]:
    """Return what does not work, why, and since when: parts of the agent, and sources."""
    found = {what: trouble._asdict() for what, trouble in known.now.copy().items()}
    for place in sources:
        if (trouble := place.trouble or _of_hanging(place.health)) is not None:
            found[f"source {place.where}"] = trouble._asdict()
    return found


def _of_hanging(health: base.Health) -> health_issues.HealthIssue | None:
    """Return the trouble with a source that answers, but not to all."""
    if not health.hanging_calls:
        return None
    why = f"{health.hanging_calls} calls to it hang"
    return health_issues.HealthIssue(why, time.time() - health.hanging_for_s)


def of_sources(sources: Iterable[source_client.PlaceState]) -> dict[str, Any]:
    """Return how each source does, by where it is."""
    return {place.where: place.health._asdict() for place in sources}


def of_guests(
    reads: read_admission.ReadAdmission,
    writes: read_admission.ReadAdmission,
    ended: int,
    on_dead_mounts: Collection[str],
) -> dict[str, Any]:
    """Return how many requests of guests wait for what is not here, and how many were refused.

    :param ended: those that were ended, as who had made them was being killed
    :param on_dead_mounts: the guests that use a mount that has ended
    """
    return {
        "on_dead_mounts": sorted(on_dead_mounts),
        "ended": ended,
        "waiting_reads": len(reads),
        "waiting_writes": len(writes),
        "refused": reads.refused + writes.refused,
    }


def of_refused(
    chunks: exchange.Exchange,
    looked: detached_maps.DetachedMaps,
    connected: handshake_limits.HandshakeLimits,
) -> dict[str, int]:
    """Return how often other hosts, or who says to be one, were refused."""
    return {
        "gets": chunks.core.counters.unauthorized,
        "looks": looked.refused,
        "connections": connected.dropped,
        "handshakes": connected.handshakes.refused,
    }


def of_exchange(chunks: exchange.Exchange, net: peer_network.PeerNetwork) -> dict[str, Any]:
    """Return what entered and left the host, and the peers that are left alone."""
    counted, core = chunks.counters, chunks.core.counters
    return {
        "chunks_in_flight": len(chunks.core),
        "source_bytes": counted.source_bytes,
        "relayed_bytes": counted.relayed_bytes,
        "prefetched_bytes": counted.prefetched_bytes,
        "served_bytes": counted.served_bytes,
        "served_chunks": counted.served_chunks,
        "invalid_chunks": core.invalid,
        "failovers": core.fallbacks,
        "hedged_requests": core.hedges,
        "referrals_followed": counted.referrals,
        "source_preferred_reads": core.source_firsts,
        "is_source_preferred": chunks.core.pending.selection.preference.is_source_first,
        "advertised_chunks": counted.advertised,
        "ignored_advertisements": core.ignored,
        "false_advertisements": core.denied,
        "withdrawn_advertisements": counted.taken_back,
        "demotion_requests_sent": counted.copies_told,
        "demoted_chunks": counted.demoted,
        "peer_listener_restarts": net.endpoint.reopened,
        "peer_internal_errors": net.faults.count + chunks.faults.count,
        "in_backoff": {host: round(left_s, 1) for host, left_s in chunks.in_backoff().items()},
    }
