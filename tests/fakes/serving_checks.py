# SPDX-License-Identifier: Apache-2.0
"""Invariants of hosts that serve and announce chunks in ``transfer_world``.

The bounds are those of doc/source/contributor/exchange.rst.  They are written out here, so a
changed constant of the product is detected.
"""

from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import requester
from acstor_agent.engine import transfer as transfer_
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import place_identity

Mode = peer_request.Mode

MIB = 1024 * 1024
CHUNK = 65536
HELD_WAIT_S = 2.0
REQUESTS = 1024
"""Pending requests of one host at another."""
BEGUN = 512
"""Transfers that one host's requests keep active."""
UNDELIVERED_BYTES = 16 * MIB + CHUNK + 4096
"""Unacknowledged and queued answers to one host."""
MOST = REQUESTS, BEGUN, UNDELIVERED_BYTES
SEGMENTS = 512
LOOK_S = 0.5
"""Allowed delay of a request's end."""
KEYS = 32_768


class Broken(Exception):
    """An invariant does not hold."""


def check(host: Any) -> None:
    """Check the requests that a host serves.

    A request waits only for modes below its own (``peer_request.Mode``), so hosts never wait for
    each other in a circle.  HELD is the exception, and its wait is short.
    """
    now, requests = host.world.now, host.core.requests
    for transfer in host.core.context.transfers.values():
        for pending in transfer.peer_requests:
            _check_pending(host, transfer, pending)
    waiting: dict[ids.HostId, int] = {}
    for link in requests.links:
        waiting[link.requester.host] = waiting.get(link.requester.host, 0) + len(link.peer_requests)
        for pending in link.peer_requests.values():
            if pending.deadline_s < now - LOOK_S - 1e-6:
                raise Broken(
                    f"{host.name}: a request of {pending.host} is {now - pending.deadline_s} late"
                )
    for found in requests.links.requesters.values():
        what = found.requests, found.begun, found.undelivered
        if found.requests != waiting.get(found.host, 0) or min(what) < 0:
            raise Broken(f"{host.name}: {what} of {found.host}, {waiting.get(found.host, 0)} wait")
        if any(n > most for n, most in zip(what, MOST, strict=True)):
            raise Broken(f"{host.name}: {what} are here for {found.host}")
    if len(host.core.context.host_keys) > KEYS:
        raise Broken(f"{host.name}: {len(host.core.context.host_keys)} hosts have keys")


def _check_pending(
    host: Any, transfer: transfer_.Transfer, pending: requester.PendingRequest
) -> None:
    if not pending.mode.reads_source:
        if pending.deadline_s > host.world.now + HELD_WAIT_S:
            raise Broken(f"{host.name}: {pending.host}, who was referred here, waits for long")
    elif transfer.read is None:
        if transfer.relay is None:
            raise Broken(f"{host.name}: {pending.host} waits for what is not brought")
        if pending.mode is Mode.RELAYED:
            raise Broken(f"{host.name}: {pending.host}, a home, waits for another home")


def check_sent(host: Any, announcement: actions.SendAnnouncement) -> None:
    """Check the receiver and the size of an announcement."""
    if not _is_good(host, announcement.host):
        raise Broken(f"{host.name} tells {announcement.host}, who has left or is left alone")
    kinds = announcement.held, announcement.evicted, announcement.evictable
    if max(map(len, kinds)) > SEGMENTS or not any(kinds):
        raise Broken(f"{host.name} tells {tuple(map(len, kinds))} segments at once")
    if any(len({segment for segment, _ in reported}) < len(reported) for reported in kinds):
        raise Broken(f"{host.name} tells {announcement.host} of a segment twice in a message")
    length = announcement.segment_chunks
    if length != host.core.context.ring.table.segment_chunks:
        raise Broken(f"{host.name} tells of segments of {length} chunks")
    if not all(0 < bits < 1 << length for reported in kinds for _, bits in reported):
        raise Broken(f"{host.name} tells of chunks that are in no segment")
    if (announcement.held or announcement.evicted) and announcement.host not in neighbours_of(
        host
    ) | host.announced_before:
        raise Broken(f"{host.name} tells {announcement.host}, no neighbour, what is here or gone")


def neighbours_of(host: Any) -> frozenset[ids.HostId]:
    """Return the hosts that receive this host's announcements."""
    topology, near = host.settings.get("topology"), host.core.context.ring.near
    if topology is None:
        return frozenset()
    names = [ids.HostId(one.host) for one in near.hosts]
    return frozenset(topology(names, host.name, near.host_locations()))


def check_given(host: Any, given: actions.SendChunk, data: bytes) -> None:
    """Check a sent chunk: its content, and the name by which it arrived."""
    ref = given.ref
    if data != host.world.content_of(ref.cid):
        raise Broken(f"{host.name} gives what is not the content that it was asked for")
    if given.data is not None or (ref.cid, ref.oid) in host.came:
        return
    if isinstance(host.rights.names, place_identity.ByOid):
        return  # valid by whatever name it arrived
    is_of_content = ref.oid == ids.oid_of(ref.cid)
    if ref.cid not in host.found or not (is_of_content or ref.image_id in (host.attached or ())):
        raise Broken(f"{host.name} gives a chunk as one of an image by which it did not come")


def check_referral(host: Any, pending: ids.HostId, hosts: tuple[ids.HostId, ...]) -> None:
    """Check the hosts that a referral names."""
    tables = host.core.context.ring
    if host.core.context.settings.learns_ring and len(hosts) == 2 and hosts[1] == host.name:
        hosts = hosts[:1]  # a tree of one host, not the lockstep partner
    for name in hosts:
        if (
            name in (pending, host.name)
            or not tables.is_near(name)
            or tables.table.is_deprioritized(name)
        ):
            raise Broken(f"{host.name} sends {pending} to {name}")
        if name not in host.judged and not _is_good(host, name):  # judged later
            raise Broken(f"{host.name} sends {pending} to {name}, who has left or is left alone")


def check_received(host: Any, announcement: actions.ForwardAnnouncement) -> None:
    """Check the sender of an accepted announcement."""
    if not _is_good(host, announcement.host):
        raise Broken(f"{host.name} listens to {announcement.host}, who has left or is left alone")


def _is_good(host: Any, name: ids.HostId) -> bool:
    context = host.core.context
    return name in context.ring.table and not context.peers.is_in_backoff(name, host.world.now)
