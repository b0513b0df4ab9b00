# SPDX-License-Identifier: Apache-2.0
"""Builds the parts of a worker, joins and starts them, and does nothing else."""

import functools
import pathlib
import random
import time
from typing import Any

import pyfuse3
import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cache import cache_files
from acstor_agent.cloud import decision_link
from acstor_agent.cloud import membership
from acstor_agent.cloud import ring_keeper
from acstor_agent.cloud import traffic_meter
from acstor_agent.control import control_requests
from acstor_agent.control import control_socket
from acstor_agent.control import host_health
from acstor_agent.control import image_tasks
from acstor_agent.control import metrics
from acstor_agent.control import status
from acstor_agent.control import supervised_tasks
from acstor_agent.core.mount import inodes
from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import checkpoint_restore
from acstor_agent.disks import disks
from acstor_agent.engine import engine
from acstor_agent.engine.serve import authorization
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import peer_client
from acstor_agent.engine_io import source_client
from acstor_agent.images import event_fanout
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.boot import trace_spool
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import reattach
from acstor_agent.images.image import usage
from acstor_agent.images.keep import fill_status
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import image_eviction
from acstor_agent.images.keep import pin_file
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_agent.images.maps import detached_maps
from acstor_agent.images.prefetch import boot_image_prefetch
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.mount import dead_mounts
from acstor_agent.mount import fuse
from acstor_agent.mount import fuse_connection
from acstor_agent.mount import killed_guests
from acstor_agent.mount import open_files
from acstor_agent.mount import stuck_requests
from acstor_agent.peers import peer_listener
from acstor_agent.peers import peer_network
from acstor_agent.process import loop_lag
from acstor_agent.process import supervisor
from acstor_agent.runtime import disk_io
from acstor_agent.sources import source_factory
from acstor_common.formats import chunk_map
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.wire import trace_message


class Agent:
    """The parts of a worker.

    :param nursery: where all of them live
    :param known: the numbers by which the kernel knows images and disks
    :param promised: the images that are to stay whole; the cache has their pins
    :param identity: who this host can prove to be
    :param rings: the v-node table in force
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nursery: trio.Nursery,
        cache: cache_files.CacheFiles,
        io: disk_io.DiskIo,
        known: inodes.Inodes,
        promised: pins.ImagePins,
        identity: identity_files.IdentityFiles,
        rings: ring_keeper.RingKeeper,
    ) -> None:
        own = conf.acstor_agent
        self._conf, self._promises = conf, promised
        self._io, self._nursery, self._cache = io, nursery, cache
        self._optional = supervised_tasks.SupervisedTasks(nursery)
        self._started_s, self._turns = time.monotonic(), loop_lag.LoopLag()
        self._host = settings.host_id(own.host)
        patience_s, deadline_s = settings.patience_s(own), settings.read_deadline_s(own)
        state_dir, self._ring = pathlib.Path(own.state_dir), rings
        self._member = membership.Membership(
            conf,
            self._host,
            identity,
            rings,
            self._optional.note_failure,
            self._optional.set_logged_state,
        )
        self.leave = self._member.stop  #: ends what is with the message bus, in some seconds
        self._named = settings.policies(own).identity()
        self._peers = peer_network.PeerNetwork(
            self._host,
            heard=lambda host, news: self._news.announcement_received(host, news),
            broke_rules=lambda host, error: self._chunks.broke_rules(host, error.why),
            unheard=lambda host: self._chunks.announcement_lost(host),
            may_speak=self._ring.may_speak,
            credentials=self._member.credentials(),
            ring_epoch=lambda: self._ring.ring.epoch,
            hosts_at=self._ring.hosts_at,
            limits=settings.peer_limits(),
            turn_s=lambda: self._turns.lasts_s,
            traffic=settings.peer_traffic(own),
        )
        sources = source_factory.build(
            own.sources,
            conf,
            nursery,
            lambda i: self._naming.layout_of(i),
            self._member.delegated_host,
        )
        self._source = source_client.SourceClient(*sources)
        maps, heads = (self._optional.make_folder(state_dir / name) for name in ("maps", "boot"))
        self._images = mirrors.Mirrors(maps, self._source, self._make_mirror, known.know_image)
        looked_up = detached_maps.DetachedMaps(self._source, nursery)
        self._naming = chunk_lookup.ChunkLookup(
            self._images,
            looked_up,
            promised.pinned_of,
            lambda: self._ring.current_ring().segment_chunks,
        )
        self._named.restore_names(cache.iter_cids())
        core = engine.Engine(
            self._host,
            self._ring.current_ring(),
            cache=cache.contents,
            rights=authorization.Authorization(
                self._host,
                self._naming,
                self._named,
                attached=self._images.attached_now,
            ),
            rng=random.Random(),
            settings=settings.exchange(
                own,
                has_others=self._member.has_others,
                source_places=self._source.in_flight,
            ),
            given_as=self._source.given_as,
        )
        self._chunks = exchange.Exchange(
            self._host,
            nursery,
            core=core,
            cache=cache,
            source=self._source,
            net=self._peers,
            tables=exchange.RingTables(self._ring.current_ring, self._ring.former_ring),
            learn=self._naming.read_map_for_peer,
            may_refer=settings.policies(own).may_refer,
            heard=lambda heard: self._news.listened_to(heard),
            moved=peer_client.TransferMeters(self._member.count_received, self._member.count_sent),
        )
        self._boots = boot_session.BootSessions(
            heads,
            source=self._source,
            chunks=self._chunks,
            cache=cache,
            nursery=nursery,
            memory=settings.boot_memory_of(own),
            frame_patience_s=settings.place_timeout_s(own),
        )
        self._sharing = self._share_images() if own.keep_images == "cloud" else None
        self._news = event_fanout.EventFanout(
            self._chunks, self._images, cache, self._sharing, self._is_for_others
        )
        cache.on_gone(self._news.chunk_evicted)
        self._waiting = read_admission.ReadAdmission(deadline_s=deadline_s)
        opened = reattach.Reattach(self._images, self._waiting, deadline_s, own.lost_after_s)
        self._rescue = stuck_requests.StuckRequests(self._waiting.table, known)
        self._dead_mounts = dead_mounts.DeadMounts(conf.acstor.mount_point)
        self._disks = disks.Disks(
            state_dir / "disks",
            opened,
            io=self._io,
            claim=known.know_disk,
            forget=known.forget_disk,
            reads=self._waiting,
            link=checkpoint_client.Link(self._member.vault_tls_context, deadline_s),
        )
        self._recovering = checkpoint_restore.CheckpointRestore(
            self._disks, self._images.attach_image
        )
        look_for_open = functools.partial(open_files.images_open, conf.acstor.mount_point)
        self._uses = usage.ImageUsage(
            self._images, look_for_open, self._disks.list_base_images, is_for_others=self._is_leased
        )
        self._whole = self._keep_whole(promised)
        self._telling = self._whole.telling if self._whole else None
        self._traces = trace_spool.TraceSpool(state_dir / "traces")
        self._timelines = boot_timelines.Timelines(killed_guests.instance_of)
        self._recording = boot_recording.BootRecording(
            self._host, settings.boot_limits(own), self._send_trace
        )
        self._operations = fuse.MirrorOperations(
            self._images,
            self._disks,
            self._cache,
            patience_s,
            known,
            self._uses,
            opened,
            self._recording.open,
            settings.mirror_gid(own),
            self._timelines,
        )
        self._detaching = image_eviction.ImageEviction(
            self._images,
            self._boots,
            self._uses,
            own.detach_unused_after_s,
            source=self._source,
            chunks=self._chunks,
            cache=cache,
            is_kept=lambda image_id: (
                promised.get(image_id) is not None or self._is_leased(image_id)
            ),
            others=[self._recording.forget_image, known.image_detached],
        )
        self._requests = control_requests.ControlRequests(
            self._host,
            conf.acstor.mount_point,
            patience_s,
            images=self._images,
            uses=self._uses,
            whole=self._whole,
            made=self._disks,
            recovered=self._recovering,
            chunks=self._chunks,
            detaching=self._detaching,
            timelines=self._timelines,
            rings=self._ring,
            io=self._io,
            picture=self.picture,
            change_policy=self._change_policy,
            switched_off=self._rescue.switched_off,
        )
        ahead = boot_image_prefetch.BootAhead(
            self._host,
            boot_image_prefetch.Mode(own.prefetch_boot_images),
            self._boots,
            self._images,
            self._uses,
            self._naming,
            quiet_s=self._waiting.quiet_s,
            hosts=lambda: len(rings.ring.hosts),
            limit_bytes_s=settings.fill_limits(own).bytes_s,
        )
        self._tasks = image_tasks.ImageTasks(
            self._images,
            self._recording,
            self._requests.pre_seed,
            self._requests.flatten_disks,
            self._requests.apply_image_task,
            self._chunks.counters.fetched.get,
            functools.partial(fill_status.fill_report, self._telling, self._uses),
            self._uses.base_images,
            ahead,
        )
        self._member.make_link(
            held=lambda: decision_link.exchange_totals(self._chunks, self._cache),
            cids=cache.iter_cids,
            images=self._tasks.changed_images,
            take_task=self._tasks.queue_task,
            boots=self._timelines.new_boots,
            health=host_health.Health(
                late=lambda: self._rescue.list_late().values(),
                failed_reads=self._images.failed_reads,
                fallbacks=lambda: self._requests.nova_fallbacks,
                troubles=self._troubles,
                on_dead_mounts=lambda: self._dead_mounts.guests,
            ).current_health,
        )

    def _share_images(self) -> replication.Replication:
        return replication.Replication(
            self._host,
            self._images,
            current_ring=self._ring.current_ring,
            tell=self._chunks.send_announcement,
            own=fill_status.local_images(lambda: self._telling),
        )

    def _is_leased(self, image_id: ids.ImageId) -> bool:
        return self._sharing is not None and self._sharing.is_leased(image_id)

    def _is_for_others(self, image_id: ids.ImageId) -> bool:
        return self._is_leased(image_id) and not self._uses.is_seen(image_id)

    def _keep_whole(self, promised: pins.ImagePins) -> hydration.Hydration | None:
        own = self._conf.acstor_agent
        if own.keep_images == "none":
            return None
        promised.tell = functools.partial(self._optional.set_state, pin_file.FILE)
        return hydration.Hydration(
            self._images,
            self._uses,
            promised,
            chunks=self._chunks,
            cache=self._cache,
            quiet_s=self._waiting.quiet_s,
            look=traffic_meter.TrafficMeter(own.traffic_interfaces, own.link_mbit).read_counters,
            limits=settings.fill_limits(own),
            first_chunk=pre_seed.first_chunk_of(self._host),
            sharing=self._sharing,
        )

    def _change_policy(self, policy: str) -> None:
        cache_dir = self._conf.acstor_agent.cache_dir
        self._io.change_policy(settings.disk_policy(policy, cache_dir))
        self._operations.name_guests(self._io.is_scheduling)

    def _send_trace(self, trace: trace_message.BootTrace) -> None:
        self._boots.counters.recorded += 1
        if not self._member.cast_trace(trace):
            self._traces.put(trace)

    async def start(self, inheritance: supervisor.Inheritance) -> None:
        """Start all parts; guests first, because they may be waiting already."""
        self._operations.name_guests(self._io.is_scheduling)
        await self._nursery.start(self._io.serve)
        await self._nursery.start(self._cache.run)
        await self._nursery.start(self._peers.run)
        await fuse_connection.adopt(inheritance.connection, self._operations)
        self._nursery.start_soon(
            functools.partial(pyfuse3.main, max_tasks=fuse_connection.MAX_REQUESTS)
        )
        self._nursery.start_soon(self._disks.run)
        self._nursery.start_soon(self._chunks.run)
        await self._start_optional()

    async def _start_optional(self) -> None:
        """Start what guests do not need; what cannot be started is tried again and again."""
        keep = self._optional.run_supervised
        await keep("boot images", supervised_tasks.start_at_once(self._boots.run))
        await keep("uses of images", supervised_tasks.start_at_once(self._uses.run))
        if self._whole is not None:
            await keep("whole images", supervised_tasks.start_at_once(self._whole.run))
        if self._sharing is not None:
            await keep("shares of images", supervised_tasks.start_at_once(self._sharing.run))
        await keep("detaching of images", supervised_tasks.start_at_once(self._detaching.run))
        await keep("checkpoints", supervised_tasks.start_at_once(self._recovering.run))
        await keep("waiting reads", supervised_tasks.start_at_once(self._rescue.run))
        await keep("guests on dead mounts", supervised_tasks.start_at_once(self._dead_mounts.run))
        await keep("boot recording", supervised_tasks.start_at_once(self._recording.run))
        await keep("boot traces", supervised_tasks.start_at_once(self._traces.run))
        await keep("timelines of boots", supervised_tasks.start_at_once(self._timelines.run))
        await keep("v-node table", supervised_tasks.start_at_once(self._ring.watch_file))
        await keep("peer_listen", self._listen_to_peers)
        listen = functools.partial(
            control_socket.listen,
            pathlib.Path(self._conf.acstor.control_socket),
            settings.control_gid(self._conf.acstor_agent),
            self._requests.handle_request,
        )
        await keep("control_socket", listen)
        if self._member.enrolment is not None:
            await keep("enrolment", supervised_tasks.start_at_once(self._member.enrolment.run))
        if self._member.decision is not None:
            await keep(
                "decision service", supervised_tasks.start_at_once(self._member.decision.run)
            )
            await keep("tasks", supervised_tasks.start_at_once(self._tasks.run))
        if address := self._conf.acstor_agent.metrics_listen:
            await keep("metrics_listen", functools.partial(metrics.show, address, self._numbers))

    async def _listen_to_peers(self, task_status: trio.TaskStatus[Any]) -> None:
        listeners = await peer_listener.open_at(self._conf.acstor_agent.peer_listen)
        await self._peers.serve_forever(self._chunks.giving, listeners, task_status)

    async def stop(self) -> None:
        """Let go of what a nursery does not end by itself, when nobody uses it any more."""
        await self._disks.aclose()
        await self._source.aclose()

    def picture(self) -> dict[str, Any]:
        """Return the agent's status; may be called from any thread."""
        counted, late = self._chunks.counters, self._rescue.list_late()
        return {
            **status.of_agent(self._host, self._conf, time.monotonic() - self._started_s),
            **status.of_images(self._images, self._uses, self._whole, counted, late),
            "disks": status.of_disks(self._disks, late),
            **self._of_parts(),
        }

    def _numbers(self) -> dict[str, Any]:
        """Return what the metrics show; may be called from any thread."""
        by_image = self._conf.acstor_agent.metrics_by_image
        of_images = status.of_images_apart if by_image else status.of_images_together
        counted, late = self._chunks.counters, self._rescue.list_late()
        return {
            "by_image": by_image,
            **of_images(self._images, self._whole, counted, late),
            **self._of_parts(),
        }

    def _of_parts(self) -> dict[str, Any]:
        """Return what status and metrics show of each part of the agent."""
        return {
            "ring": status.of_ring(self._ring),
            "identity": status.of_identity(
                self._member.identity.current_credentials(), self._member.enrolment
            ),
            "detached": status.of_detached(self._detaching),
            "exchange": status.of_exchange(self._chunks, self._peers),
            "refused": status.of_refused(
                self._chunks, self._naming.others, self._peers.unauthenticated
            ),
            "boot": status.of_boots(self._boots),
            "cache": status.of_cache(self._cache),
            "shares": status.of_shares(self._sharing, self._promises),
            "disk_io": status.of_disk_io(self._io),
            "event_loop": status.of_latency(self._turns.latency),
            "faults": self._troubles(),
            "sources": status.of_sources(self._source.place_health()),
            "guests": status.of_guests(
                self._waiting,
                self._disks.writes,
                self._rescue.ended,
                self._dead_mounts.guests,
            ),
            "nova": {"fallbacks": dict(self._requests.nova_fallbacks)},
        }

    def _troubles(self) -> dict[str, Any]:
        return status.of_troubles(self._optional.troubles, self._source.place_health())

    async def _make_mirror(self, image_map: chunk_map.ChunkMap) -> mirror.Mirror:
        own = self._conf.acstor_agent
        boots = self._boots.boots_of(image_map)
        ahead = advertised_prefetch.AdvertisedPrefetch(
            image_map,
            self._named.make_index(image_map),
            self._chunks,
            self._nursery,
            boots.covers_chunk,
            settings.policies(own).prefetcher,
        )
        if not self._is_for_others(image_map.image_id):
            ahead.chunks_advertised(self._chunks.list_known())
        return mirror.Mirror(
            image_map,
            cache=self._cache,
            chunks=self._chunks,
            deadline_s=settings.read_deadline_s(own),
            ahead=settings.read_ahead(own),
            prefetch=ahead,
            boots=boots,
            waiting=self._waiting,
            total=self._images.reads,
        )
