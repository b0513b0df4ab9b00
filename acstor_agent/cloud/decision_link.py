# SPDX-License-Identifier: Apache-2.0
"""Sends samples of this host to the decision service; without it the v-node table stays."""

import collections
import dataclasses
import heapq
import logging
import random
import time
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

import trio

from acstor_agent.cache import cache_files
from acstor_agent.cloud import decision_receiver
from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_store
from acstor_agent.cloud import traffic_meter
from acstor_agent.core import counters
from acstor_agent.core.cloud import interface_traffic
from acstor_agent.engine_io import exchange
from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.model import minhash
from acstor_common.util import log_once
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

SKETCH_INTERVAL_S = 30.0
"""Interval between sketches; one of a full cache takes some tenths of a second."""
MAX_PEERS = 256  # limit of the peers in a sample, those with the most bytes

CLOCK_SET_S = 1.0  # difference from the monotonic clock that shows a set clock; slewing is less

Images = dict[str, decision_messages.HeldImage] | None


class ExchangeTotals(NamedTuple):
    """Bytes exchanged since the start, and the size of the cache."""

    chunks: interface_traffic.TrafficBytes
    cache_bytes: int
    cache_limit_bytes: int
    source: decision_messages.TimedTraffic = decision_messages.TimedTraffic()  # guests waited


def exchange_totals(chunks: exchange.Exchange, cache: cache_files.CacheFiles) -> ExchangeTotals:
    """Return the totals of a host's exchange and cache."""
    counted, statistics = chunks.counters, cache.statistics
    given = (counters.Origin.PEER, counters.Origin.HOME)
    came = counted.bytes_from(given) + counted.source_bytes
    moved = interface_traffic.TrafficBytes(came, counted.served_bytes)
    source = decision_messages.TimedTraffic(counted.source_timed_bytes, counted.source_s)
    return ExchangeTotals(moved, statistics.stored_bytes, statistics.limit_bytes, source)


class HostReport(Protocol):
    """Contents of this host's samples (:class:`acstor_agent.control.host_report.HostReport`)."""

    def exchange_totals(self) -> ExchangeTotals:
        """Return the totals of exchange and cache."""

    def iter_cids(self) -> Iterator[ids.Cid]:
        """Yield the CIDs in the cache; called in a thread."""

    async def changed_images(self) -> Images:
        """Return the images to report."""

    def new_boots(self) -> tuple[boot_timeline.Timeline, ...]:
        """Return boots that were not returned before."""

    def current_health(self) -> decision_messages.HostHealth:
        """Return the host's health."""


class HostAddress(NamedTuple):
    """Where other agents reach a host, and its place in the cloud's topology."""

    host: ids.HostId
    address: str
    location: str


@dataclasses.dataclass(slots=True)
class _Peer:
    received: int = 0
    sent: int = 0
    timed: int = 0
    took_s: float = 0.0

    def as_message(self) -> decision_messages.PeerTraffic:
        timed = decision_messages.TimedTraffic(self.timed, self.took_s)
        return decision_messages.PeerTraffic(self.received, self.sent, timed)


class DecisionLink:
    """Sends a sample in each collection, and listens for tables and tasks."""

    def __init__(
        self,
        address: HostAddress,
        *,
        message_bus: decision_receiver.Bus,
        meter: traffic_meter.TrafficMeter,
        sender: message_signing.MessageSigner,
        receiver: decision_receiver.DecisionReceiver,
        rings: ring_store.RingStore,
        report: HostReport,
        collection_s: float,
    ) -> None:
        self._address, self._bus, self._meter = address, message_bus, meter
        self._sender, self._receiver, self._rings = sender, receiver, rings
        self._report, self._collection_s = report, collection_s
        self._unsent_boots: tuple[boot_timeline.Timeline, ...] = ()  # in no sample that was sent
        self._session = random.getrandbits(63)
        self._began_s, self._started_s = time.monotonic(), time.time()
        self._number = 0
        self._peers: collections.defaultdict[ids.HostId, _Peer] = collections.defaultdict(_Peer)
        self._sketch: tuple[int, ...] = ()
        self._sketched_s = -SKETCH_INTERVAL_S
        self._meter_fault = log_once.LogOnce(LOG)

    def count_received(self, peer: ids.HostId, count: int, took_s: float | None = None) -> None:
        """Count bytes of a chunk from a peer; ``took_s`` if a guest waited."""
        counted = self._peers[peer]
        counted.received += count
        if took_s is not None:
            counted.timed += count
            counted.took_s += took_s

    def count_sent(self, peer: ids.HostId, count: int) -> None:
        """Count bytes of a chunk sent to a peer."""
        self._peers[peer].sent += count

    async def run(self) -> None:
        """Send a sample in every collection, forever; may be called again after a failure."""
        self._receiver.subscribe(trio.lowlevel.current_trio_token())
        look = await self._read_meter()
        before = self._report.exchange_totals()
        while True:
            await trio.sleep(self._collection_s)
            newer, held = await self._read_meter(), self._report.exchange_totals()
            peers = self._take_peers()
            if look is not None and newer is not None:
                await self._make_sketch()
                images = await self._report.changed_images()
                self._send(self._sample(look, newer, before, held, peers, images))
            look, before = newer, held

    def _send(self, sample: decision_messages.Sample) -> None:
        payload = self._sender.sign_message(sample, signing.SAMPLE)
        if payload is not None:
            self._bus.cast_message(
                decision_messages.TOPIC, decision_messages.SAMPLE_COLLECTED, payload, is_fanout=True
            )
            self._unsent_boots = ()

    async def _read_meter(self) -> traffic_meter.InterfaceSample | None:
        try:
            look = await trio.to_thread.run_sync(self._meter.read_counters)
        except errors.Unusable as e:
            self._meter_fault.log_warning(f"{e}; the decision service gets no samples of this host")
            return None
        self._meter_fault.log_warning("")
        return look

    async def _make_sketch(self) -> None:
        now_s = trio.current_time()
        if now_s - self._sketched_s >= SKETCH_INTERVAL_S:
            self._sketch = await trio.to_thread.run_sync(
                lambda: minhash.make_sketch(self._report.iter_cids())
            )
            self._sketched_s = now_s

    def _take_peers(self) -> dict[str, decision_messages.PeerTraffic]:
        counted, self._peers = self._peers, collections.defaultdict(_Peer)
        busiest = heapq.nlargest(
            MAX_PEERS, counted.items(), key=lambda item: item[1].received + item[1].sent
        )
        return {peer: bytes_of.as_message() for peer, bytes_of in busiest}

    def _start_time(self) -> float:
        """Return the start time by the current wall clock, which may have been set since."""
        started_s = time.time() - (time.monotonic() - self._began_s)
        if abs(started_s - self._started_s) > CLOCK_SET_S:
            LOG.info("the clock was stepped by %+.0f s", started_s - self._started_s)
            self._started_s = started_s
        return self._started_s

    def _sample(
        self,
        look: traffic_meter.InterfaceSample,
        newer: traffic_meter.InterfaceSample,
        before: ExchangeTotals,
        held: ExchangeTotals,
        peers: dict[str, decision_messages.PeerTraffic],
        images: Images,
    ) -> decision_messages.Sample:
        total = interface_traffic.traffic_between(look.links, newer.links)
        moved = interface_traffic.TrafficBytes(
            held.chunks.received - before.chunks.received, held.chunks.sent - before.chunks.sent
        )
        chunks = interface_traffic.bytes_on_wire(moved, total)
        self._number += 1
        self._unsent_boots = self._unsent_boots or self._report.new_boots()
        return decision_messages.Sample(
            **self._address._asdict(),
            session=self._session,
            started_s=self._start_time(),
            number=self._number,
            sent_s=time.time(),
            interval_s=max(decision_messages.LEAST_INTERVAL_S, newer.at_s - look.at_s),
            link_bytes_s=newer.link_bytes_s,
            total=decision_messages.TrafficBytes(total.received, total.sent),
            chunks=decision_messages.TrafficBytes(chunks.received, chunks.sent),
            cache_bytes=held.cache_bytes,
            cache_limit_bytes=held.cache_limit_bytes,
            ring_epoch=self._rings.reported_epoch(),
            sketch=self._sketch,
            peers=peers,
            source=decision_messages.TimedTraffic(
                held.source.received - before.source.received,
                held.source.took_s - before.source.took_s,
            ),
            images=images,
            boots=self._unsent_boots,
            health=self._report.current_health(),
        )
