# SPDX-License-Identifier: Apache-2.0
"""Creates the parts of a worker, connects and starts them."""

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

    :param known: inode numbers of images and disks
    :param promised: pinned images; the cache has their pins
    :param identity: this host's certificate and keys
    :param rings: the current v-node table
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
        self._conf, self._pins = conf, promised
        self._io, self._nursery, self._cache = io, nursery, cache
        self._supervised = supervised_tasks.SupervisedTasks(nursery)
        self._started_s, self._loop_lag = time.monotonic(), loop_lag.LoopLag()
        self._host = settings.host_id(own.host)
        patience_s, deadline_s = settings.patience_s(own), settings.read_deadline_s(own)
        state_dir, self._ring = pathlib.Path(own.state_dir), rings
        self._membership = membership.Membership(
            conf,
            self._host,
            identity,
            rings,
            self._supervised.note_failure,
            self._supervised.set_logged_state,
        )
        self.leave = self._membership.stop  #: ends what is with the message bus, in some seconds
        self._identity_scheme = settings.policies(own).identity()
        self._peers = peer_network.PeerNetwork(
            self._host,
            heard=lambda host, news: self._event_fanout.announcement_received(host, news),
            broke_rules=lambda host, error: self._exchange.broke_rules(host, error.why),
            unheard=lambda host: self._exchange.announcement_lost(host),
            may_speak=self._ring.may_speak,
            credentials=self._membership.credentials(),
            ring_epoch=lambda: self._ring.ring.epoch,
            hosts_at=self._ring.hosts_at,
            limits=settings.peer_limits(),
            turn_s=lambda: self._loop_lag.lasts_s,
            traffic=settings.peer_traffic(own),
        )
        sources = source_factory.build(
            own.sources,
            conf,
            nursery,
            lambda i: self._chunk_lookup.layout_of(i),
            self._membership.delegated_host,
        )
        self._source = source_client.SourceClient(*sources)
        maps, heads = (self._supervised.make_folder(state_dir / name) for name in ("maps", "boot"))
        self._images = mirrors.Mirrors(maps, self._source, self._make_mirror, known.know_image)
        looked_up = detached_maps.DetachedMaps(self._source, nursery)
        self._chunk_lookup = chunk_lookup.ChunkLookup(
            self._images,
            looked_up,
            promised.pinned_of,
            lambda: self._ring.current_ring().segment_chunks,
        )
        self._identity_scheme.restore_names(cache.iter_cids())
        core = engine.Engine(
            self._host,
            self._ring.current_ring(),
            cache=cache.contents,
            rights=authorization.Authorization(
                self._host,
                self._chunk_lookup,
                self._identity_scheme,
                attached=self._images.attached_now,
            ),
            rng=random.Random(),
            settings=settings.exchange(
                own,
                has_others=self._membership.has_others,
                source_places=self._source.in_flight,
            ),
            given_as=self._source.given_as,
        )
        self._exchange = exchange.Exchange(
            nursery,
            core=core,
            cache=cache,
            source=self._source,
            net=self._peers,
            tables=self._ring,
            maps=self._chunk_lookup,
            meter=self._membership,
        )
        self._boot_sessions = boot_session.BootSessions(
            heads,
            source=self._source,
            chunks=self._exchange,
            cache=cache,
            nursery=nursery,
            memory=settings.boot_memory_of(own),
            frame_patience_s=settings.place_timeout_s(own),
        )
        self._replication = self._make_replication() if own.keep_images == "cloud" else None
        self._event_fanout = event_fanout.EventFanout(
            self._exchange, self._images, cache, self._replication, self._is_for_others
        )
        cache.on_gone(self._event_fanout.chunk_evicted)
        self._read_admission = read_admission.ReadAdmission(deadline_s=deadline_s)
        opened = reattach.Reattach(self._images, self._read_admission, deadline_s, own.lost_after_s)
        self._stuck_requests = stuck_requests.StuckRequests(self._read_admission.table, known)
        self._dead_mounts = dead_mounts.DeadMounts(conf.acstor.mount_point)
        self._disks = disks.Disks(
            state_dir / "disks",
            opened,
            io=self._io,
            claim=known.know_disk,
            forget=known.forget_disk,
            reads=self._read_admission,
            link=checkpoint_client.Link(self._membership.vault_tls_context, deadline_s),
        )
        self._checkpoint_restore = checkpoint_restore.CheckpointRestore(
            self._disks, self._images.attach_image
        )
        look_for_open = functools.partial(open_files.images_open, conf.acstor.mount_point)
        self._usage = usage.ImageUsage(
            self._images, look_for_open, self._disks.list_base_images, is_for_others=self._is_leased
        )
        self._hydration = self._make_hydration(promised)
        self._fill_status = self._hydration.telling if self._hydration else None
        self._trace_spool = trace_spool.TraceSpool(state_dir / "traces")
        self._timelines = boot_timelines.Timelines(killed_guests.instance_of)
        self._boot_recording = boot_recording.BootRecording(
            self._host, settings.boot_limits(own), self._send_trace
        )
        self._operations = fuse.MirrorOperations(
            self._images,
            self._disks,
            self._cache,
            patience_s,
            known,
            self._usage,
            opened,
            self._boot_recording.open,
            settings.mirror_gid(own),
            self._timelines,
        )
        self._image_eviction = image_eviction.ImageEviction(
            self._images,
            self._boot_sessions,
            self._usage,
            own.detach_unused_after_s,
            source=self._source,
            chunks=self._exchange,
            cache=cache,
            is_kept=lambda image_id: (
                promised.get(image_id) is not None or self._is_leased(image_id)
            ),
            others=[self._boot_recording.forget_image, known.image_detached],
        )
        self._requests = control_requests.ControlRequests(
            self._host,
            conf.acstor.mount_point,
            patience_s,
            images=self._images,
            uses=self._usage,
            whole=self._hydration,
            made=self._disks,
            recovered=self._checkpoint_restore,
            chunks=self._exchange,
            detaching=self._image_eviction,
            timelines=self._timelines,
            rings=self._ring,
            io=self._io,
            picture=self.picture,
            change_policy=self._change_policy,
            switched_off=self._stuck_requests.switched_off,
        )
        ahead = boot_image_prefetch.BootAhead(
            self._host,
            boot_image_prefetch.Mode(own.prefetch_boot_images),
            self._boot_sessions,
            self._images,
            self._usage,
            self._chunk_lookup,
            quiet_s=self._read_admission.quiet_s,
            hosts=lambda: len(rings.ring.hosts),
            limit_bytes_s=settings.fill_limits(own).bytes_s,
        )
        self._tasks = image_tasks.ImageTasks(
            self._images,
            self._boot_recording,
            self._requests.pre_seed,
            self._requests.flatten_disks,
            self._requests.apply_image_task,
            self._exchange.counters.fetched.get,
            functools.partial(fill_status.fill_report, self._fill_status, self._usage),
            self._usage.base_images,
            ahead,
        )
        self._membership.make_link(
            held=lambda: decision_link.exchange_totals(self._exchange, self._cache),
            cids=cache.iter_cids,
            images=self._tasks.changed_images,
            take_task=self._tasks.queue_task,
            boots=self._timelines.new_boots,
            health=host_health.Health(
                late=lambda: self._stuck_requests.list_late().values(),
                failed_reads=self._images.failed_reads,
                fallbacks=lambda: self._requests.nova_fallbacks,
                troubles=self._faults,
                on_dead_mounts=lambda: self._dead_mounts.guests,
            ).current_health,
        )

    def _make_replication(self) -> replication.Replication:
        return replication.Replication(
            self._host,
            self._images,
            current_ring=self._ring.current_ring,
            tell=self._exchange.send_announcement,
            own=fill_status.local_images(lambda: self._fill_status),
        )

    def _is_leased(self, image_id: ids.ImageId) -> bool:
        return self._replication is not None and self._replication.is_leased(image_id)

    def _is_for_others(self, image_id: ids.ImageId) -> bool:
        return self._is_leased(image_id) and not self._usage.is_seen(image_id)

    def _make_hydration(self, promised: pins.ImagePins) -> hydration.Hydration | None:
        own = self._conf.acstor_agent
        if own.keep_images == "none":
            return None
        promised.tell = functools.partial(self._supervised.set_state, pin_file.FILE)
        return hydration.Hydration(
            self._images,
            self._usage,
            promised,
            chunks=self._exchange,
            cache=self._cache,
            quiet_s=self._read_admission.quiet_s,
            look=traffic_meter.TrafficMeter(own.traffic_interfaces, own.link_mbit).read_counters,
            limits=settings.fill_limits(own),
            first_chunk=pre_seed.first_chunk_of(self._host),
            sharing=self._replication,
        )

    def _change_policy(self, policy: str) -> None:
        cache_dir = self._conf.acstor_agent.cache_dir
        self._io.change_policy(settings.disk_policy(policy, cache_dir))
        self._operations.name_guests(self._io.is_scheduling)

    def _send_trace(self, trace: trace_message.BootTrace) -> None:
        self._boot_sessions.counters.recorded += 1
        if not self._membership.cast_trace(trace):
            self._trace_spool.put(trace)

    async def start(self, inheritance: supervisor.Inheritance) -> None:
        """Start all parts; those that guests need first, as guests may be waiting."""
        self._operations.name_guests(self._io.is_scheduling)
        await self._nursery.start(self._io.serve)
        await self._nursery.start(self._cache.run)
        await self._nursery.start(self._peers.run)
        await fuse_connection.adopt(inheritance.connection, self._operations)
        self._nursery.start_soon(
            functools.partial(pyfuse3.main, max_tasks=fuse_connection.MAX_REQUESTS)
        )
        self._nursery.start_soon(self._disks.run)
        self._nursery.start_soon(self._exchange.run)
        await self._start_optional()

    async def _start_optional(self) -> None:
        """Start the parts that guests do not need; failed ones are restarted."""
        keep = self._supervised.run_supervised
        await keep("boot images", supervised_tasks.start_at_once(self._boot_sessions.run))
        await keep("uses of images", supervised_tasks.start_at_once(self._usage.run))
        if self._hydration is not None:
            await keep("whole images", supervised_tasks.start_at_once(self._hydration.run))
        if self._replication is not None:
            await keep("shares of images", supervised_tasks.start_at_once(self._replication.run))
        await keep("detaching of images", supervised_tasks.start_at_once(self._image_eviction.run))
        await keep("checkpoints", supervised_tasks.start_at_once(self._checkpoint_restore.run))
        await keep("waiting reads", supervised_tasks.start_at_once(self._stuck_requests.run))
        await keep("guests on dead mounts", supervised_tasks.start_at_once(self._dead_mounts.run))
        await keep("boot recording", supervised_tasks.start_at_once(self._boot_recording.run))
        await keep("boot traces", supervised_tasks.start_at_once(self._trace_spool.run))
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
        if self._membership.enrolment is not None:
            await keep("enrolment", supervised_tasks.start_at_once(self._membership.enrolment.run))
        if self._membership.decision is not None:
            await keep(
                "decision service", supervised_tasks.start_at_once(self._membership.decision.run)
            )
            await keep("tasks", supervised_tasks.start_at_once(self._tasks.run))
        if address := self._conf.acstor_agent.metrics_listen:
            await keep("metrics_listen", functools.partial(metrics.show, address, self._metrics))

    async def _listen_to_peers(self, task_status: trio.TaskStatus[Any]) -> None:
        listeners = await peer_listener.open_at(self._conf.acstor_agent.peer_listen)
        await self._peers.serve_forever(self._exchange.peer_server, listeners, task_status)

    async def stop(self) -> None:
        """Close disks and sources after the nursery has ended."""
        await self._disks.aclose()
        await self._source.aclose()

    def picture(self) -> dict[str, Any]:
        """Return the agent's status; thread-safe."""
        counted, late = self._exchange.counters, self._stuck_requests.list_late()
        return {
            **status.of_agent(self._host, self._conf, time.monotonic() - self._started_s),
            **status.of_images(self._images, self._usage, self._hydration, counted, late),
            "disks": status.of_disks(self._disks, late),
            **self._part_status(),
        }

    def _metrics(self) -> dict[str, Any]:
        """Return the numbers for the metrics; thread-safe."""
        by_image = self._conf.acstor_agent.metrics_by_image
        of_images = status.of_images_apart if by_image else status.of_images_together
        counted, late = self._exchange.counters, self._stuck_requests.list_late()
        return {
            "by_image": by_image,
            **of_images(self._images, self._hydration, counted, late),
            **self._part_status(),
        }

    def _part_status(self) -> dict[str, Any]:
        return {
            "ring": status.of_ring(self._ring),
            "identity": status.of_identity(
                self._membership.identity.current_credentials(), self._membership.enrolment
            ),
            "detached": status.of_detached(self._image_eviction),
            "exchange": status.of_exchange(self._exchange, self._peers),
            "refused": status.of_refused(
                self._exchange, self._chunk_lookup.others, self._peers.unauthenticated
            ),
            "boot": status.of_boots(self._boot_sessions),
            "cache": status.of_cache(self._cache),
            "shares": status.of_shares(self._replication, self._pins),
            "disk_io": status.of_disk_io(self._io),
            "event_loop": status.of_latency(self._loop_lag.latency),
            "faults": self._faults(),
            "sources": status.of_sources(self._source.place_health()),
            "guests": status.of_guests(
                self._read_admission,
                self._disks.writes,
                self._stuck_requests.ended,
                self._dead_mounts.guests,
            ),
            "nova": {"fallbacks": dict(self._requests.nova_fallbacks)},
        }

    def _faults(self) -> dict[str, Any]:
        return status.of_troubles(self._supervised.troubles, self._source.place_health())

    async def _make_mirror(self, image_map: chunk_map.ChunkMap) -> mirror.Mirror:
        own = self._conf.acstor_agent
        boots = self._boot_sessions.boots_of(image_map)
        ahead = advertised_prefetch.AdvertisedPrefetch(
            image_map,
            self._identity_scheme.make_index(image_map),
            self._exchange,
            self._nursery,
            boots.covers_chunk,
            settings.policies(own).prefetcher,
        )
        if not self._is_for_others(image_map.image_id):
            ahead.chunks_advertised(self._exchange.list_known())
        return mirror.Mirror(
            image_map,
            cache=self._cache,
            chunks=self._exchange,
            deadline_s=settings.read_deadline_s(own),
            ahead=settings.read_ahead(own),
            prefetch=ahead,
            boots=boots,
            waiting=self._read_admission,
            total=self._images.reads,
        )
