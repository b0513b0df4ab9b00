# SPDX-License-Identifier: Apache-2.0
"""Status of the agent, for ``status`` and the metrics.

Programs read the field names, so they never change.
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
from acstor_agent.sources import source_client
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.service import version


def of_agent(host: ids.HostId, conf: cfg.ConfigOpts, uptime_s: float) -> dict[str, Any]:
    """Return the agent's identity and main options."""
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
    """Return the numbers of the current v-node table."""
    return {
        "epoch": rings.ring.epoch,
        "hosts": len(rings.ring.hosts),
        "is_signed": rings.is_signed,
    }


def of_identity(
    identity: identity_files.Identity, enrolling: enrolment.HostEnrolment | None
) -> dict[str, Any]:
    """Return the state of the certificate, the signers and the enrolment."""
    certificate = identity.certificate
    return {
        "certificate_not_after_s": certificate.not_after_s if certificate else None,
        "signers": len(identity.signers),
        "enrolment": enrolling.state._asdict() if enrolling else None,
    }


def of_images(
    images: mirrors.Mirrors,
    uses: usage.ImageUsage,
    filling: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return the state of each attached image, and totals that include detached ones."""
    fetched = dict(counted.fetched)  # the event loop's thread modifies it
    shown = {
        image_id: of_image(
            images.get_nowait(image_id),
            fetched.get(image_id),
            images.touched_ns(image_id),
            uses.usage_of(image_id),
            filling.status.status_of(image_id) if filling else None,
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


def of_all_images(
    images: mirrors.Mirrors,
    filling: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return totals of all images, under the key None, from counters of the host."""
    return {
        "reads": {None: of_reads(images.reads, counted.fetched_total)},
        "fill": of_fill_totals(filling.status.list_status().values() if filling else ()),
        "late": {
            None: {
                "requests": sum(one.count for one in late.values()),
                "longest_s": max((one.longest_s for one in late.values()), default=0.0),
            }
        },
    }


def of_each_image(
    images: mirrors.Mirrors,
    filling: hydration.Hydration | None,
    counted: counters.ExchangeCounters,
    late: Mapping[str, blocked_requests.LateWaits],
) -> dict[str, Any]:
    """Return the numbers of each image; waiting reads by image or disk."""
    fetched, nothing = dict(counted.fetched), counters.Tally()
    reads = {image.map.image_id: image.counters for image in images.open()}
    return {
        "reads": {
            image_id: of_reads(reads.get(image_id), fetched.get(image_id, nothing))
            for image_id in images.list_attached()
        },
        "fill": {
            image_id: {**shown, "states": {shown["state"]: 1}}
            for image_id, shown in (filling.status.list_status() if filling else {}).items()
        },
        "late": {
            file_id: {"requests": one.count, "longest_s": one.longest_s}
            for file_id, one in late.items()
        },
    }


def of_fill_totals(shown: Collection[Mapping[str, Any]]) -> dict[None, dict[str, Any]]:
    """Return the total fill status of all images, under None; {} if there is none."""
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
    """Return the counters of guests' reads and fetched data."""
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
    replicas: replication.Replication | None, image_pins: pins.ImagePins
) -> dict[str, int] | None:
    """Return the parts of images kept for other hosts; None without replication."""
    if replicas is None:
        return None
    images, total_bytes = image_pins.count_for_others()
    return {"images": images, "bytes": total_bytes, **replicas.report_counts()}


def of_image(
    image: mirror.Mirror | None,
    fetched: counters.Tally | None,
    touched_ns: int,
    use: image_usage.UsageEvidence,
    filling: dict[str, Any] | None,
    late: blocked_requests.LateWaits | None = None,
    size_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the state of one image; most fields are None if it was not read yet."""
    return {
        "size_bytes": image.size_bytes if image else size_bytes,
        "chunk_bytes": image.map.geometry.chunk_bytes if image else None,
        "cached_bytes": image.cached_bytes() if image else None,
        "touched_s": touched_ns / 1e9,
        "is_used": use.is_used(),
        "is_open": use.is_open,
        "fill": filling,
        **of_reads(image.counters if image else None, fetched or counters.Tally()),
        "waiting": of_blocked_requests(late),
        "boot_image": of_boot_image(image.boots) if image else None,
    }


def of_blocked_requests(late: blocked_requests.LateWaits | None) -> dict[str, Any] | None:
    """Return the requests that have waited long; None if there are none."""
    if late is None:
        return None
    return {
        "requests": late.count,
        "longest_s": round(late.longest_s, 1),
        "since_s": round(time.time() - late.longest_s, 1),
        "why": late.why,
    }


def of_boot_image(boots: boot_session.BootSession) -> dict[str, Any]:
    """Return the state of an image's boot image."""
    head = boots.head
    return {
        "state": boots.state.value,
        "revision": head.header.revision if head else None,
        "chunks": head.header.chunk_count if head else None,
        "chunks_in_memory": len(boots.in_memory),
    }


def of_boots(host: boot_session.BootSessions) -> dict[str, Any]:
    """Return the numbers of this host's boot images."""
    return {
        "memory_bytes": host.memory.used_bytes,
        "memory_limit_bytes": host.memory.limit_bytes,
        **dataclasses.asdict(host.counters),
    }


def of_detached(detaching: image_eviction.ImageEviction) -> dict[str, int]:
    """Return the numbers of detached images and purged chunks."""
    return {"images": detaching.detached, "purged_chunks": detaching.purged_chunks}


def of_disks(
    made: disks.Disks, late: Mapping[str, blocked_requests.LateWaits]
) -> dict[disk_header.DiskId, dict[str, Any]]:
    """Return the state of each disk."""
    return {
        disk_id: of_disk(made.get_nowait(disk_id), late.get(disk_id))
        for disk_id in made.list_disks()
    }


def of_disk(
    made: disk.Disk | None, late: blocked_requests.LateWaits | None = None
) -> dict[str, Any]:
    """Return the state of one disk; most fields are None if it was not used yet."""
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
    """Return the numbers of the public cache, and its folder's fault."""
    issue = cache.trouble._asdict() if cache.trouble else None
    return {**dataclasses.asdict(cache.statistics), "fault": issue}


def of_disk_io(io: disk_io.DiskIo) -> dict[str, Any]:
    """Return the disk scheduler's counters, by stream."""
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


def of_faults(
    known: health_issues.HealthIssues, sources: Iterable[source_client.SourceStatus] = ()
) -> dict[str, Any]:
    """Return the faults of the agent's parts and sources, with reason and beginning."""
    found = {what: issue._asdict() for what, issue in known.now.copy().items()}
    for place in sources:
        if (issue := place.issue or _of_hanging(place.health)) is not None:
            found[f"source {place.where}"] = issue._asdict()
    return found


def _of_hanging(health: base.Health) -> health_issues.HealthIssue | None:
    if not health.hanging_calls:
        return None
    why = f"{health.hanging_calls} calls to it hang"
    return health_issues.HealthIssue(why, time.time() - health.hanging_for_s)


def of_sources(sources: Iterable[source_client.SourceStatus]) -> dict[str, Any]:
    """Return the health of each source, by its location."""
    return {place.where: place.health._asdict() for place in sources}


def of_guests(
    reads: read_admission.ReadAdmission,
    writes: read_admission.ReadAdmission,
    ended: int,
    on_dead_mounts: Collection[str],
) -> dict[str, Any]:
    """Return the numbers of waiting, refused and aborted (``ended``) requests of guests."""
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
    """Return how often requests and connections of other hosts were refused."""
    return {
        "gets": chunks.core.counters.unauthorized,
        "looks": looked.refused,
        "connections": connected.dropped,
        "handshakes": connected.handshakes.refused,
    }


def of_exchange(chunks: exchange.Exchange, net: peer_network.PeerNetwork) -> dict[str, Any]:
    """Return the counters of the exchange, and the peers in backoff."""
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
        "withdrawn_advertisements": counted.withdrawn,
        "demotion_requests_sent": counted.copy_hints_sent,
        "demoted_chunks": counted.demoted,
        "peer_listener_restarts": net.endpoint.reopened,
        "peer_internal_errors": net.faults.count + chunks.faults.count,
        "in_backoff": {host: round(left_s, 1) for host, left_s in chunks.list_backoffs().items()},
    }
