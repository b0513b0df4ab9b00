# SPDX-License-Identifier: Apache-2.0
"""Link to the decision service: sends samples, receives v-node tables and tasks.

Without the service the last table stays in force. Messages without the service's signature are
refused and logged.
"""

import collections
import dataclasses
import heapq
import logging
import random
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol

import trio

from acstor_agent.cache import cache_files
from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_keeper
from acstor_agent.cloud import traffic_meter
from acstor_agent.core import counters
from acstor_agent.core.cloud import interface_traffic
from acstor_agent.engine_io import exchange
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import replay_filter
from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.util import minhash
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

LOG = logging.getLogger(__name__)

SKETCH_AGAIN_S = 30.0
"""Interval between sketches; one of a full cache takes some tenths of a second."""
MOST_PEERS = 256
"""Limit of the peers in a sample, those with the most bytes."""

CLOCK_SET_S = 1.0
"""Difference from the monotonic clock that shows a set clock; slewing is less."""

Images = dict[str, decision_messages.HeldImage] | None


class ExchangeTotals(NamedTuple):
    """Bytes exchanged since the start, and the size of the cache.

    :param source: bytes read from sources for waiting guests
    """

    chunks: interface_traffic.TrafficBytes
    cache_bytes: int
    cache_limit_bytes: int
    source: decision_messages.TimedTraffic = decision_messages.TimedTraffic()


def exchange_totals(chunks: exchange.Exchange, cache: cache_files.CacheFiles) -> ExchangeTotals:
    """Return the totals of a host's exchange and cache."""
    counted, statistics = chunks.counters, cache.statistics
    given = (counters.Origin.PEER, counters.Origin.HOME)
    came = counted.given_by(given) + counted.source_bytes
    moved = interface_traffic.TrafficBytes(came, counted.served_bytes)
    source = decision_messages.TimedTraffic(counted.source_timed_bytes, counted.source_s)
    return ExchangeTotals(moved, statistics.stored_bytes, statistics.limit_bytes, source)


class Bus(Protocol):
    """The message bus (:class:`acstor_agent.cloud.bus.Bus`)."""

    def cast_message(
        self, topic: str, method: str, payload: Mapping[str, Any], *, is_fanout: bool = False
    ) -> None:
        """Queue a message; never waits."""

    def subscribe(self, topic: str, heard: Mapping[str, Callable[[Any], None]]) -> None:
        """Receive messages to a topic."""

    def stop(self) -> None:
        """Close the connection."""


@dataclasses.dataclass(slots=True)
class _Peer:
    received: int = 0
    sent: int = 0
    timed: int = 0
    took_s: float = 0.0

    def told(self) -> decision_messages.PeerTraffic:
        timed = decision_messages.TimedTraffic(self.timed, self.took_s)
        return decision_messages.PeerTraffic(self.received, self.sent, timed)


class DecisionLink:
    """Sends a sample in each collection and receives tables and tasks.

    :param address: where other agents reach this one
    :param held: returns the totals of exchange and cache
    :param cids: returns the CIDs in the cache; called in a thread
    :param files: trusted signers of tables and tasks
    :param images: returns the images to report; None if unchanged
    :param take_task: receives tasks about images
    :param boots: returns new boot timelines; called again when these were sent
    :param health: returns the host's health
    """

    def __init__(
        self,
        here: ids.HostId,
        address: str,
        place: str,
        *,
        message_bus: Bus,
        meter: traffic_meter.TrafficMeter,
        collection_s: float,
        held: Callable[[], ExchangeTotals],
        cids: Callable[[], Iterable[ids.Cid]],
        files: identity_files.IdentityFiles,
        sender: message_signing.Sender,
        rings: ring_keeper.RingKeeper,
        images: Callable[[], Awaitable[Images]],
        take_task: Callable[[decision_messages.ImageTask], None],
        boots: Callable[[], tuple[boot_timeline.Timeline, ...]],
        health: Callable[[], decision_messages.HostHealth],
    ) -> None:
        self._here, self._address, self._place = here, address, place
        self._bus, self._meter = message_bus, meter
        self._collection_s = collection_s
        self._held, self._cids = held, cids
        self._files, self._sender, self._rings = files, sender, rings
        self._replay_filter = replay_filter.ReplayFilter()
        self._images, self._take_task, self._boots = images, take_task, boots
        self._health = health
        self._unsent_boots: tuple[boot_timeline.Timeline, ...] = ()  # in no sample that was sent
        self._session = random.getrandbits(63)
        self._began_s, self._started_s = time.monotonic(), time.time()
        self._number = 0
        self._peers: collections.defaultdict[ids.HostId, _Peer] = collections.defaultdict(_Peer)
        self._sketch: tuple[int, ...] = ()
        self._sketched_s = -SKETCH_AGAIN_S
        self._can_read_meter = True
        self._is_listening = False

    def count_received(self, peer: ids.HostId, count: int, took_s: float | None = None) -> None:
        """Count bytes of a chunk from a peer.

        :param took_s: from request to data, if a guest waited
        """
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
        self._subscribe(trio.lowlevel.current_trio_token())
        if not self._files.signer_keys():
            LOG.warning(
                "v-node tables and tasks are refused for now: %s", message_signing.NO_SIGNERS
            )
        look = await self._read_meter()
        before = self._held()
        while True:
            await trio.sleep(self._collection_s)
            newer, held, peers = await self._read_meter(), self._held(), self._take_peers()
            if look is not None and newer is not None:
                await self._make_sketch()
                images = await self._images()
                self._send(self._sample(look, newer, before, held, peers, images))
            look, before = newer, held

    def _subscribe(self, token: trio.lowlevel.TrioToken) -> None:
        """Subscribe once; the bus keeps the subscription and its threads."""
        if self._is_listening:
            return
        heard = {
            decision_messages.RING_PUBLISHED: lambda payload: self._receive_table(payload, token),
            decision_messages.IMAGE_TASK_GIVEN: lambda payload: self._receive_task(payload, token),
        }
        self._bus.subscribe(decision_messages.AGENT_TOPIC, heard)
        self._is_listening = True

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
            if self._can_read_meter:
                LOG.warning("%s; the decision service gets no samples of this host", e)
            self._can_read_meter = False
            return None
        self._can_read_meter = True
        return look

    async def _make_sketch(self) -> None:
        now_s = trio.current_time()
        if now_s - self._sketched_s >= SKETCH_AGAIN_S:
            self._sketch = await trio.to_thread.run_sync(lambda: minhash.make_sketch(self._cids()))
            self._sketched_s = now_s

    def _take_peers(self) -> dict[str, decision_messages.PeerTraffic]:
        counted, self._peers = self._peers, collections.defaultdict(_Peer)
        busiest = heapq.nlargest(
            MOST_PEERS, counted.items(), key=lambda item: item[1].received + item[1].sent
        )
        return {peer: bytes_of.told() for peer, bytes_of in busiest}

    def _start_time(self) -> float:
        """Return the start time by the current wall clock, which may have been set since."""
        started_s = time.time() - (time.monotonic() - self._began_s)
        if abs(started_s - self._started_s) > CLOCK_SET_S:
            LOG.info("the clock was set by %+.0f s", started_s - self._started_s)
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
        self._unsent_boots = self._unsent_boots or self._boots()
        return decision_messages.Sample(
            host=self._here,
            address=self._address,
            location=self._place,
            session=self._session,
            started_s=self._start_time(),
            number=self._number,
            sent_s=time.time(),
            interval_s=max(decision_messages.LEAST_INTERVAL_S, newer.at_s - look.at_s),
            link_bytes_s=newer.link_bytes_s,
            total=decision_messages.Traffic(total.received, total.sent),
            chunks=decision_messages.Traffic(chunks.received, chunks.sent),
            cache_bytes=held.cache_bytes,
            cache_limit_bytes=held.cache_limit_bytes,
            ring_epoch=self._rings.told_epoch(),
            sketch=self._sketch,
            peers=peers,
            source=decision_messages.TimedTraffic(
                held.source.received - before.source.received,
                held.source.took_s - before.source.took_s,
            ),
            images=images,
            boots=self._unsent_boots,
            health=self._health(),
        )

    # In a thread of the bus

    def _receive_table(self, payload: object, token: trio.lowlevel.TrioToken) -> None:
        """Verify a table in this thread, as large ones take seconds, and put it in force.

        :raises errors.NotAuthenticated: it is not authentic or not acceptable
        """
        sent = decision_messages.decode(payload, decision_messages.RingTable)
        if why := self._rings.why_not_taken(sent.epoch):
            if sent.epoch == self._rings.ring.epoch:
                return  # it was sent to all, and to this host alone
            raise errors.NotAuthenticated(f"v-node table {sent.epoch}", why)
        table = message_signing.verify_table(sent, self._files.signer_keys())
        try:
            trio.from_thread.run_sync(self._rings.accept_table, table, sent, trio_token=token)
        except trio.RunFinishedError:
            LOG.debug("epoch %d came when the agent had ended", sent.epoch)
        except ValueError as e:
            LOG.debug("%s", e)  # a newer one was faster

    def _receive_task(self, payload: object, token: trio.lowlevel.TrioToken) -> None:
        """Verify a task in this thread and hand it to the agent.

        :raises errors.NotAuthenticated: it is not authentic, not for this host, or old
        """
        signed = decision_messages.decode(payload, decision_messages.Signed)
        signers = self._files.signer_keys()
        given = signed_messages.verify_from_service(
            signed, signing.TASK, signers, decision_messages.TaskForHosts
        )
        try:
            why = trio.from_thread.run_sync(self._accept_task, given, trio_token=token)
        except trio.RunFinishedError:
            LOG.debug("a task for image %s came when the agent had ended", given.task.image_id)
        else:
            if why:
                raise errors.NotAuthenticated(f"a task for image {given.task.image_id}", why)

    def _accept_task(self, given: decision_messages.TaskForHosts) -> str:
        task = given.task
        message = (task.request, task.kind, task.image_id, given.given_s)
        if given.hosts and self._here not in given.hosts:
            return "it is for other hosts"
        if why := self._replay_filter.why_not(message, given.given_s, time.time()):
            return why
        self._take_task(task)
        return ""
