# SPDX-License-Identifier: Apache-2.0
"""Members: live hosts with their load and addresses, from their samples.

A host becomes a member with its second good sample, and leaves when it is silent for a while. If
most members fall silent at once, the bus has failed, and all stay. At the limit of hosts, a new one
replaces the longest-known one that never proved its address.
"""

import collections
import dataclasses
import fnmatch
import functools
import statistics
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_decision.core.membership import address_book
from acstor_decision.core.membership import address_proofs
from acstor_decision.core.membership import replay_filter

SAMPLES_TO_JOIN = 2
OVERLOAD_SHARE = 0.8
"""Share of its links' rate, in either direction, above which a host is overloaded."""
Refusal = replay_filter.Refusal

_cached = functools.lru_cache(2 * hash_ring.MAX_HOSTS)
_is_loopback, _address_fault = _cached(addresses.is_loopback), _cached(addresses.why_unreachable)


@dataclasses.dataclass(frozen=True)
class MembershipLimits:
    """Limits of membership and overload."""

    # time between two samples of a host
    collection_s: float = dataclasses.field(default_factory=lambda: decision_messages.COLLECTION_S)
    dead_after_samples: int = 6  # collections without a sample after which a host is gone
    overload_collections: int = 2  # with one, every burst would move v-nodes
    allowed: Sequence[str] = ("*",)  # patterns of the host IDs that may join
    hosts: int = hash_ring.MAX_HOSTS  # limit of members
    hosts_per_ip: int = 4  # limit at one IP address that is not a loopback address
    verify_addresses: bool = False  # of hosts that join, except loopback addresses


class Member:
    """One host, with its recent samples."""

    def __init__(self, sample: decision_messages.Sample, last_sample_s: float) -> None:
        self.last = sample
        self.last_sample_s = last_sample_s
        self.samples = 0
        self.overloaded_in_a_row = 0
        self.recent: collections.deque[decision_messages.Sample] = collections.deque()

    @property
    def has_samples(self) -> bool:
        """Return whether it has sent a sample; otherwise only the table names it."""
        return bool(self.recent)

    def traffic_share(self) -> float:
        """Return the mean traffic without chunks, in plus out, by the link's rate."""
        shares = [other_traffic_share(sample) for sample in self.recent]
        return sum(shares) / len(shares) if shares else 0.0


def may_join(host: str, limits: MembershipLimits) -> bool:
    """Return whether a host of this name may join."""
    return any(fnmatch.fnmatchcase(host, pattern) for pattern in limits.allowed)


def other_traffic_share(sample: decision_messages.Sample) -> float:
    """Return the traffic without chunks, in plus out, as a share of the link's rate."""
    possible = sample.link_bytes_s * sample.interval_s
    received = max(0, sample.total.received - sample.chunks.received)
    sent = max(0, sample.total.sent - sample.chunks.sent)
    return min(1.0, received / possible) + min(1.0, sent / possible)


def busiest_share(sample: decision_messages.Sample) -> float:
    """Return the traffic of the busier direction, as a share of the link's rate."""
    most = max(sample.total.received, sample.total.sent)
    return most / (sample.link_bytes_s * sample.interval_s)


def total_bytes_s(sample: decision_messages.Sample) -> float:
    """Return a host's whole traffic, in plus out, in bytes a second."""
    return (sample.total.received + sample.total.sent) / sample.interval_s


def silent_s(limits: MembershipLimits) -> float:
    """Return after how long without a sample a host is gone."""
    return limits.dead_after_samples * limits.collection_s


class Members:
    """All hosts that sent samples or are on the ring."""

    def __init__(self, limits: MembershipLimits) -> None:
        self.limits = limits
        self.refused = dict.fromkeys(Refusal, 0)
        self._members: dict[ids.HostId, Member] = {}
        self._addresses = address_book.AddressBook()
        self._proofs = address_proofs.AddressProofs()
        self._order: replay_filter.ReplayFilter[ids.HostId] = replay_filter.ReplayFilter(
            silent_s(limits)
        )

    def __getitem__(self, host: ids.HostId) -> Member:
        return self._members[host]

    def __contains__(self, host: ids.HostId) -> bool:
        return host in self._members

    def list_hosts(self) -> list[ids.HostId]:
        """Return all known hosts, live or not, sorted."""
        return sorted(self._members)

    def restore_member(self, host: ids.HostId, address: str, place: str, now_s: float) -> None:
        """Restore a host of the ring as a live member, as if it had sent a sample now."""
        unknown = decision_messages.Sample(
            host=host,
            address=address,
            location=place,
            session=0,
            started_s=0,
            number=1,
            sent_s=0,
            interval_s=self.limits.collection_s,
            link_bytes_s=1,
            total=decision_messages.TrafficBytes(),
        )
        if host not in self._members:
            self._members[host] = Member(unknown, now_s)
            self._members[host].samples = SAMPLES_TO_JOIN
            self._addresses.set_address(host, address_book.parse(address))
        if self._claim(host) == address_book.parse(address):
            self._proofs.record_proof(host, self._claim(host))

    def accept_sample(
        self, sample: decision_messages.Sample, now_s: float, wall_s: float
    ) -> Refusal | None:
        """Accept a sample, by the wall clock ``wall_s``; return why it is refused, or None."""
        refusal = self._refusal(sample, now_s, wall_s)
        if refusal is not None:
            self.refused[refusal] += 1
            return refusal
        host, address = ids.HostId(sample.host), address_book.parse(sample.address)
        if not self._has_room(host) and (unproven := self._proofs.longest_unproven()):
            self._remove(unproven)
        if host not in self._members or self._is_gone(host, now_s):
            self._members[host] = Member(sample, now_s)
        self._take_address(host, address)
        if not self._is_proven(host, address):
            self._proofs.record_unproven(host)
        self._count(self._members[host], sample)
        self._members[host].last_sample_s = now_s
        self._order.record_newest(host, sample, now_s)
        return None

    def list_live(self, now_s: float) -> list[ids.HostId]:
        """Return the hosts that belong on the ring, sorted."""
        settled = [
            host
            for host, member in self._members.items()
            if member.samples >= SAMPLES_TO_JOIN and self._is_at_home(host)
        ]
        silent = [host for host in settled if self._is_gone(host, now_s)]
        if 2 * len(silent) > len(settled):
            return sorted(settled)
        return sorted(set(settled).difference(silent))

    def list_overloaded(self, now_s: float) -> list[ids.HostId]:
        """Return the live hosts whose overload lasts long enough, sorted."""
        needed = self.limits.overload_collections
        return [
            host
            for host in self.list_live(now_s)
            if self._members[host].overloaded_in_a_row >= needed
        ]

    def traffic_cv(self, now_s: float) -> float:
        """Return the traffic's coefficient of variation (Wu et al. 2017, Equation 2)."""
        carried = [total_bytes_s(self._members[host].last) for host in self.list_live(now_s)]
        mean = statistics.fmean(carried) if carried else 0.0
        return statistics.pstdev(carried, mean) / mean if mean else 0.0

    def remove_hosts(self, hosts: Iterable[str]) -> None:
        """Remove hosts that are no longer trusted, silent or not."""
        for host in hosts:
            self._remove(ids.HostId(host))

    def take_addresses(
        self, in_flight: Collection[address_book.Address], now_s: float
    ) -> list[address_book.Address]:
        """Return the addresses to verify now: unproven ones and those of silent hosts.

        :param in_flight: addresses that are being verified
        """
        if not self.limits.verify_addresses:
            return []
        claims = ((host, self._claim(host)) for host in self._members)
        wanted = [
            (host, address)
            for host, address in claims
            if not self._is_proven(host, address)
            or (self._is_silent(host, now_s) and not _is_loopback(address.ip))
        ]
        return self._proofs.take_addresses(wanted, in_flight, now_s)

    def record_proof(self, address: address_book.Address, found: str, now_s: float) -> None:
        """Record which host authenticated at an address; "": none."""
        host = ids.HostId(found)
        has_failed = host not in self._members or self._claim(host) != address
        self._proofs.record_attempt(address, found, now_s, has_failed=has_failed)
        if not has_failed:
            self._proofs.record_proof(host, address)
            self._addresses.set_address(host, address)

    def forget_overloads(self) -> None:
        """Reset the overload counts after they caused a table."""
        for member in self._members.values():
            member.overloaded_in_a_row = 0

    def forget_dead(self, now_s: float) -> None:
        """Forget hosts that are gone, to bound the memory."""
        living = set(self.list_live(now_s))
        dead = [h for h in self._members if h not in living and self._is_silent(h, now_s)]
        for host in dead:
            self._remove(host)
        claimed = {self._claim(host) for host in self._members}
        self._proofs.forget_attempts(self._members, claimed, now_s)
        self._order.forget_expired(now_s)

    def _remove(self, host: ids.HostId) -> None:
        self._members.pop(host, None)
        self._addresses.remove(host)
        self._proofs.remove_host(host)

    def _has_room(self, host: ids.HostId) -> bool:
        return host in self._members or len(self._members) < self.limits.hosts

    def _is_at_home(self, host: ids.HostId) -> bool:
        address = self._addresses.address_of(host)
        return address is not None and self._is_proven(host, address)

    def _claim(self, host: ids.HostId) -> address_book.Address:
        return address_book.parse(self._members[host].last.address)

    def _is_proven(self, host: ids.HostId, address: address_book.Address) -> bool:
        is_exempt = not self.limits.verify_addresses or _is_loopback(address.ip)
        return is_exempt or self._proofs.is_proven(host, address)

    def _take_address(self, host: ids.HostId, address: address_book.Address) -> None:
        other = self._addresses.host_at(address) or host
        must_prove = self.limits.verify_addresses and not _is_loopback(address.ip)
        if other == host or not (must_prove and self._proofs.is_proven(other, address)):
            self._addresses.set_address(host, address)
        elif self._addresses.address_of(host) != address:
            self._addresses.remove(host)

    def _is_gone(self, host: ids.HostId, now_s: float) -> bool:
        """Return whether a host is silent and, with verification, not reachable since."""
        if not self._is_silent(host, now_s):
            return False
        address = self._claim(host)
        if not self.limits.verify_addresses or _is_loopback(address.ip):
            return True
        silent_since_s = self._members[host].last_sample_s + silent_s(self.limits)
        return self._proofs.was_missed(host, address, silent_since_s)

    def _is_silent(self, host: ids.HostId, now_s: float) -> bool:
        return now_s - self._members[host].last_sample_s > silent_s(self.limits)

    def _count(self, member: Member, sample: decision_messages.Sample) -> None:
        last = member.last
        follows = sample.session == last.session and sample.number == last.number + 1
        is_overloaded = busiest_share(sample) > OVERLOAD_SHARE
        if not follows:
            member.overloaded_in_a_row = 0
            member.recent.clear()
        member.overloaded_in_a_row = member.overloaded_in_a_row + 1 if is_overloaded else 0
        member.samples += 1
        member.recent.append(sample)
        while len(member.recent) > self.limits.overload_collections:
            member.recent.popleft()
        member.last = sample

    def _refusal(
        self, sample: decision_messages.Sample, now_s: float, wall_s: float
    ) -> Refusal | None:
        host = ids.HostId(sample.host)
        if not may_join(host, self.limits):
            return Refusal.NOT_ALLOWED
        if stale := self._order.why_refused(host, sample, now_s, wall_s):
            return stale
        if not self._has_room(host) and self._proofs.longest_unproven() is None:
            return Refusal.FULL
        return self._address_refusal(host, sample.address, now_s)

    def _holds(self, host: ids.HostId, address: address_book.Address, now_s: float) -> bool:
        """Return whether a host holds an address, so that other claims are refused."""
        is_up = host in self._members and not self._is_silent(host, now_s)
        return is_up and self._is_proven(host, address)

    def _address_refusal(self, host: ids.HostId, text: str, now_s: float) -> Refusal | None:
        address = address_book.parse(text)
        is_loopback = _is_loopback(address.ip)  # labs run all hosts there
        if _address_fault(address.ip):
            return Refusal.UNREACHABLE
        if is_loopback and self._addresses.are_others_in_network(host):
            return Refusal.UNREACHABLE
        other = self._addresses.host_at(address) or host
        if other != host and self._holds(other, address, now_s):
            return Refusal.TAKEN_ADDRESS
        others = self._addresses.others_at(address.ip, host) - (other != host)
        current = self._addresses.address_of(host)
        has_moved = current is None or current.ip != address.ip
        if has_moved and not is_loopback and others >= self.limits.hosts_per_ip:
            return Refusal.CROWDED
        return None
