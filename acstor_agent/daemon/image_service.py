# SPDX-License-Identifier: Apache-2.0
"""The images of a host: usage, reads, pins and detachment."""

import functools
from typing import Any

import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.cloud import traffic_meter
from acstor_agent.control import image_status
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.images import replica_leases
from acstor_agent.daemon import boot_service
from acstor_agent.daemon import chunk_service
from acstor_agent.daemon import guest_io
from acstor_agent.daemon import storage
from acstor_agent.images import event_fanout
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import boot_deferral
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import image_detachment
from acstor_agent.images.keep import replication
from acstor_agent.images.prefetch import boot_image_prefetch
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import mirror
from acstor_agent.mount import open_files
from acstor_common.formats import chunk_map


class ImageService:
    """Makes mirrors of images, fills pinned ones, and evicts unused ones."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nursery: trio.Nursery,
        stored: storage.Storage,
        cloud: membership.Membership,
        chunks: chunk_service.ChunkService,
        guests: guest_io.GuestIo,
        boots: boot_service.BootService,
    ) -> None:
        own = conf.acstor_agent
        self._own, self._nursery, self._stored, self._cloud = own, nursery, stored, cloud
        self._chunks, self._guests, self._boots = chunks, guests, boots
        filler, leases = self._make_filler(), replica_leases.Leases()
        self.replication: replication.Replication | None = None
        if own.keep_images == "cloud":
            self.replication = replication.Replication(
                cloud.host, chunks.mirrors, filler, chunks.exchange, cloud.rings, leases
            )
        self.usage = usage.ImageUsage(
            chunks.mirrors,
            functools.partial(open_files.list_open_images, conf.acstor.mount_point),
            guests.disks.list_base_images,
            leases=leases,
        )
        self.hydration: hydration.Hydration | None = None
        if own.keep_images != "none":
            self.hydration = hydration.Hydration(
                chunks.mirrors, self.usage, stored.pins, filler, self.replication
            )
        self.detachment = self._make_detachment()
        self.boot_prefetch = self._make_boot_prefetch()
        self._subscribe()
        chunks.mirrors.set_mirror_factory(self._make_mirror)

    def _make_detachment(self) -> image_detachment.ImageDetachment:
        return image_detachment.ImageDetachment(
            self._chunks.mirrors,
            self._boots.sessions,
            self.usage,
            self._stored.pins,
            limits=image_detachment.DetachLimits(self._own.detach_unused_after_s),
            detach_handlers=[
                self._boots.recording.forget_image,
                self._chunks.mirrors.inode_numbers.image_detached,
            ],
        )

    def _subscribe(self) -> None:
        chunks, cache = self._chunks, self._stored.cache
        fanout = event_fanout.EventFanout(
            chunks.exchange, chunks.mirrors, cache, self.usage, self.replication
        )
        chunks.peers.set_callbacks(
            on_announcement=fanout.announcement_received,
            protocol_violated=chunks.exchange.protocol_violated,
            on_announcement_lost=chunks.exchange.announcement_lost,
            on_dialled=chunks.exchange.peer_dialled,
        )

    def _make_filler(self) -> background_fill.BackgroundFill:
        meter = traffic_meter.TrafficMeter(self._own.traffic_interfaces, self._own.link_mbit)
        mirrors = self._chunks.mirrors
        return background_fill.BackgroundFill(
            mirrors,
            self._stored.pins,
            self._chunks.exchange,
            boot_deferral.BootDeferral(
                mirrors,
                self._boots.sessions,
                boot_memory.IDLE_S,
                boot_memory.LONGEST_S,
                self._chunks.source,
            ),
            self._guests.read_admission,
            meter,
            first_chunk=pre_seed.first_chunk_of(self._cloud.host),
            limits=background_fill.FillLimits(settings.fill_rate_bytes_s(self._own)),
        )

    def _make_boot_prefetch(self) -> boot_image_prefetch.BootImagePrefetch:
        bytes_s = min(boot_image_prefetch.BYTES_S, settings.fill_rate_bytes_s(self._own))
        return boot_image_prefetch.BootImagePrefetch(
            boot_image_prefetch.Mode(self._own.prefetch_boot_images),
            self._boots.sessions,
            self._chunks.mirrors,
            self.usage,
            self._chunks.chunk_lookup,
            self._guests.read_admission,
            self._cloud.rings,
            limits=boot_image_prefetch.PrefetchLimits(bytes_s),
        )

    async def _make_mirror(self, image_map: chunk_map.ChunkMap) -> mirror.Mirror:
        chunks, boots = self._chunks, self._boots.sessions.boots_of(image_map)
        ahead = advertised_prefetch.AdvertisedPrefetch(
            image_map,
            chunks.identity_scheme.make_index(image_map),
            chunks.exchange,
            self._nursery,
            boots,
            settings.load_policies(self._own).prefetcher,
        )
        if not self.usage.is_leased_only(image_map.image_id):
            ahead.chunks_advertised(chunks.exchange.list_announced())
        return mirror.Mirror(
            image_map,
            cache=self._stored.cache,
            chunks=chunks.exchange,
            ahead=settings.make_read_ahead(self._own, chunks.source),
            prefetch=ahead,
            boots=boots,
            reads=self._guests.read_admission,
            total=chunks.mirrors.reads,
        )

    def status(self) -> dict[str, Any]:
        """Return the numbers of replicas and of evicted images; thread-safe."""
        return {
            "detached": image_status.of_detached(self.detachment),
            "replicas": image_status.of_replicas(self.replication, self._stored.pins),
        }
