# SPDX-License-Identifier: Apache-2.0
"""The chunks of a host: its peers, its sources and chunk maps, joined by the exchange."""

import pathlib
import random
from typing import Any

import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.control import status
from acstor_agent.core.mount import inodes
from acstor_agent.daemon import storage
from acstor_agent.engine import engine
from acstor_agent.engine.serve import authorization
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.image import mirrors
from acstor_agent.images.maps import detached_maps
from acstor_agent.peers import peer_listener
from acstor_agent.peers import peer_network
from acstor_agent.process import loop_lag
from acstor_agent.sources import source_client
from acstor_agent.sources import source_factory


class ChunkService:
    """Fetches chunks from peers and sources, and serves peers; ``maps`` is a folder."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nursery: trio.Nursery,
        stored: storage.Storage,
        inode_numbers: inodes.Inodes,
        cloud: membership.Membership,
        maps: pathlib.Path,
        lag: loop_lag.LoopLag,
    ) -> None:
        own, rings = conf.acstor_agent, cloud.rings
        self._own, self._nursery, self._cloud = own, nursery, cloud
        self.identity_scheme = settings.load_policies(own).identity_scheme()
        self.identity_scheme.record_cached_at_start(stored.cache.iter_cids())
        self.peers = self._make_network(lag)
        self.source = source_client.SourceClient(
            *source_factory.build(
                own.sources,
                conf,
                nursery,
                # Sources need the maps that are read from them.
                lambda image_id: self.chunk_lookup.layout_of(image_id),
                cloud.delegated_host,
                cloud.image_grants(),
            )
        )
        self.mirrors = mirrors.Mirrors(maps, self.source, inode_numbers)
        self.chunk_lookup = chunk_lookup.ChunkLookup(
            self.mirrors, detached_maps.DetachedMaps(self.source, nursery), stored.pins, rings
        )
        self.exchange = self._make_exchange(stored)

    def _make_network(self, lag: loop_lag.LoopLag) -> peer_network.PeerNetwork:
        rings = self._cloud.rings
        return peer_network.PeerNetwork(
            self._cloud.host,
            admission=rings,
            credentials=self._cloud.credentials(),
            limits=settings.peer_limits(),
            turns=lag,
            traffic=settings.peer_traffic(self._own),
        )

    def _make_exchange(self, stored: storage.Storage) -> exchange.Exchange:
        cloud, rings = self._cloud, self._cloud.rings
        core = engine.Engine(
            cloud.host,
            rings.current_ring(),
            cache=stored.cache.contents,
            rights=authorization.Authorization(
                cloud.host,
                self.chunk_lookup,
                self.identity_scheme,
                attached=self.mirrors.attached_now,
            ),
            rng=random.Random(),
            settings=settings.exchange_settings(
                self._own,
                has_others=cloud.has_others,
                max_source_reads=self.source.max_concurrent_reads,
            ),
            source_access=self.source.source_access,
        )
        return exchange.Exchange(
            self._nursery,
            core=core,
            cache=stored.cache,
            source=self.source,
            net=self.peers,
            tables=rings,
            maps=self.chunk_lookup,
            meter=cloud,
        )

    async def listen(self, task_status: trio.TaskStatus[Any]) -> None:
        """Serve peers, forever."""
        listeners = await peer_listener.open_at(self._own.peer_listen)
        await self.peers.serve_forever(self.exchange.peer_server, listeners, task_status)

    def status(self) -> dict[str, Any]:
        """Return the status of peers and sources; thread-safe."""
        return {
            "exchange": status.of_exchange(self.exchange, self.peers),
            "refused": status.of_refused(
                self.exchange, self.chunk_lookup.detached, self.peers.unauthenticated
            ),
            "sources": status.of_sources(self.source.list_statuses()),
        }
