# SPDX-License-Identifier: Apache-2.0
"""Status of the agent; programs read its field names, so they never change."""

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
from acstor_agent.cloud import ring_store
from acstor_agent.core import counters
from acstor_agent.core import health_issues
from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import blocked_requests
from acstor_agent.disks import disk
from acstor_agent.disks import disks
from acstor_agent.engine_io import exchange
from acstor_agent.images.maps import detached_maps
from acstor_agent.images.read import read_admission
from acstor_agent.peers import peer_network
from acstor_agent.peers import unauthenticated_connections
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.service import version


def of_agent(host: ids.HostId, conf: cfg.ConfigOpts, uptime_s: float) -> dict[str, Any]:
    """Return the agent's identity and main options."""
    own = conf.acstor_agent
    decided = ("keep_images", "prefetch_boot_images")
    return {
        "host": host,
        "version": version.installed(),
        "worker_pid": os.getpid(),
        "uptime_s": round(uptime_s, 3),
        "mount_point": conf.acstor.mount_point,
        **{name: own[name] for name in decided},
    }


def of_ring(rings: ring_store.RingStore) -> dict[str, Any]:
    """Return the numbers of the current v-node table."""
    return {"epoch": rings.ring.epoch, "hosts": len(rings.ring.hosts), "is_signed": rings.is_signed}


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


def of_disks(
    found: disks.Disks, late: Mapping[str, blocked_requests.LateWaits]
) -> dict[disk_header.DiskId, dict[str, Any]]:
    """Return the state of each disk."""
    return {
        disk_id: of_disk(found.get_nowait(disk_id), late.get(disk_id))
        for disk_id in found.list_disks()
    }


def of_disk(
    found: disk.Disk | None, late: blocked_requests.LateWaits | None = None
) -> dict[str, Any]:
    """Return the state of one disk; most fields are None if it was not used yet."""
    waiting_ = of_blocked_requests(late)
    if found is None:
        unknown = ("image_id", "size_bytes", "written_bytes", "unsynced_bytes", "lacking_bytes")
        return {**dict.fromkeys(unknown), "waiting": waiting_}
    cut = found.header.cut
    return {
        "waiting": waiting_,
        "image_id": found.header.image_id,
        "size_bytes": cut.size_bytes,
        "written_bytes": min(found.written_chunks * cut.chunk_bytes, cut.size_bytes),
        "unsynced_bytes": min(found.unsynced_chunks * cut.chunk_bytes, cut.size_bytes),
        "lacking_bytes": min(found.lacking_chunks * cut.chunk_bytes, cut.size_bytes),
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
    issue = cache.fault._asdict() if cache.fault else None
    return {**dataclasses.asdict(cache.statistics), "fault": issue}


def of_disk_io(io: disk_io.DiskIo) -> dict[str, Any]:
    """Return the disk scheduler's counters, by stream."""
    account = io.counters
    return {
        "policy": io.policy,
        "waiting": io.waiting_count,
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
    health: health_issues.HealthIssues, sources: Iterable[source_client.SourceStatus] = ()
) -> dict[str, Any]:
    """Return the faults of the agent's parts and sources, with reason and beginning."""
    found = {what: issue._asdict() for what, issue in health.now.copy().items()}
    for source in sources:
        if (issue := source.issue or _of_hanging(source.health)) is not None:
            found[f"source {source.location}"] = issue._asdict()
    return found


def _of_hanging(health: base.Health) -> health_issues.HealthIssue | None:
    if not health.hanging_calls:
        return None
    why = f"{health.hanging_calls} calls to it hang"
    return health_issues.HealthIssue(why, time.time() - health.hanging_for_s)


def of_sources(sources: Iterable[source_client.SourceStatus]) -> dict[str, Any]:
    """Return the health of each source, by its location."""
    return {source.location: source.health._asdict() for source in sources}


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
    maps: detached_maps.DetachedMaps,
    connected: unauthenticated_connections.UnauthenticatedConnections,
) -> dict[str, int]:
    """Return how often requests and connections of other hosts were refused."""
    return {
        "gets": chunks.core.counters.unauthorized,
        "looks": maps.refused,
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
        "invalid_chunks": core.invalid_chunks,
        "failovers": core.failovers,
        "hedged_requests": core.hedges,
        "referrals_followed": counted.referrals,
        "source_preferred_reads": core.source_preferred,
        "is_source_preferred": chunks.core.pending.selection.preference.is_source_first,
        "advertised_chunks": counted.advertised,
        "ignored_advertisements": core.ignored_announcements,
        "false_advertisements": core.false_announcements,
        "withdrawn_advertisements": counted.withdrawn,
        "demotion_requests_sent": counted.copy_hints_sent,
        "demoted_chunks": counted.demoted,
        "peer_listener_restarts": net.endpoint.reopened,
        "peer_internal_errors": net.faults.count + chunks.faults.count,
        "in_backoff": {host: round(left_s, 1) for host, left_s in chunks.list_backoffs().items()},
    }
