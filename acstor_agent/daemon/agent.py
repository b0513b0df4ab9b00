# SPDX-License-Identifier: Apache-2.0
"""Joins the parts of a worker, starts and stops them."""

import functools
import pathlib
import time
from typing import Any

import pyfuse3
import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.cloud import ring_store
from acstor_agent.control import control_requests
from acstor_agent.control import control_socket
from acstor_agent.control import disk_requests
from acstor_agent.control import host_report
from acstor_agent.control import image_requests
from acstor_agent.control import image_status
from acstor_agent.control import image_tasks
from acstor_agent.control import metrics
from acstor_agent.control import status
from acstor_agent.core.mount import inodes
from acstor_agent.daemon import boot_service
from acstor_agent.daemon import chunk_service
from acstor_agent.daemon import guest_io
from acstor_agent.daemon import image_service
from acstor_agent.daemon import storage
from acstor_agent.images.keep import pin_file
from acstor_agent.mount import fuse
from acstor_agent.mount import fuse_connection
from acstor_agent.process import loop_lag
from acstor_agent.process import supervisor
from acstor_agent.runtime import disk_io
from acstor_agent.runtime import supervised_tasks
from acstor_common import errors
from acstor_common.identity import identity_files


class Agent:
    """The parts of a worker."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nursery: trio.Nursery,
        stored: storage.Storage,
        inode_numbers: inodes.Inodes,
        identity: identity_files.IdentityFiles,
        rings: ring_store.RingStore,
    ) -> None:
        own = conf.acstor_agent
        self._conf, self._nursery, self._stored = conf, nursery, stored
        self._started_s, self._loop_lag = time.monotonic(), loop_lag.LoopLag()
        self._supervised = tasks = supervised_tasks.SupervisedTasks(nursery)
        stored.pins.report_write = functools.partial(tasks.set_state, pin_file.FILE_NAME)
        state_dir = pathlib.Path(own.state_dir)
        maps, heads = (tasks.make_folder(state_dir / name) for name in ("maps", "boot"))
        self._cloud = cloud = membership.Membership(
            conf, settings.host_id(own.host), identity, rings, tasks
        )
        self._chunks = chunks = chunk_service.ChunkService(
            conf, nursery, stored, inode_numbers, cloud, maps, self._loop_lag
        )
        self._guests = guest_io.GuestIo(conf, stored.io, chunks.mirrors, cloud)
        self._boots = boot_service.BootService(conf, nursery, stored.cache, chunks, cloud, heads)
        self._images = image_service.ImageService(
            conf, nursery, stored, cloud, chunks, self._guests, self._boots
        )
        self._operations = self._make_operations()
        images, disks_ = self._make_requests()
        self._requests = self._make_control(images, disks_)
        self._tasks = image_tasks.ImageTasks(
            images, disks_, self._boots.recording, self._images.boot_prefetch
        )
        cloud.make_link(self._make_report(), self._tasks)

    def _make_operations(self) -> fuse.MirrorOperations:
        own = self._conf.acstor_agent
        return fuse.MirrorOperations(
            self._chunks.mirrors,
            self._guests.disks,
            self._stored.cache,
            self._chunks.mirrors.inode_numbers,
            self._guests.reattach,
            fuse.OpenObservers(self._images.usage, self._boots.recording, self._boots.timelines),
            settings.reply_timeout_s(own),
            settings.mirror_gid(own),
        )

    def _make_requests(self) -> tuple[image_requests.ImageRequests, disk_requests.DiskRequests]:
        timeout_s = settings.reply_timeout_s(self._conf.acstor_agent)
        images = image_requests.ImageRequests(
            self._cloud.host,
            self._chunks.mirrors,
            self._images.usage,
            self._images.hydration,
            self._chunks.exchange,
            timeout_s,
        )
        return images, disk_requests.DiskRequests(
            self._guests.disks,
            self._guests.checkpoint_restore,
            images,
            self._chunks.exchange,
            self._conf.acstor.mount_point,
            timeout_s,
        )

    def _make_control(
        self, images: image_requests.ImageRequests, disks: disk_requests.DiskRequests
    ) -> control_requests.ControlRequests:
        return control_requests.ControlRequests(
            images,
            disks,
            detachment=self._images.detachment,
            boots=self._boots.records,
            rings=self._cloud.rings,
            stuck=self._guests.stuck_requests,
            agent=self,
        )

    def _make_report(self) -> host_report.HostReport:
        health = host_report.HealthSummary(
            self._chunks.mirrors,
            self._guests.stuck_requests,
            self._guests.dead_mounts,
            self._requests.nova_fallbacks,
            self._supervised,
            self._chunks.source,
        )
        return host_report.HostReport(
            self._chunks.exchange, self._stored.cache, self._tasks, self._boots.timelines, health
        )

    def set_disk_policy(self, policy: str) -> str:
        """See :meth:`control_requests.ControlledAgent.set_disk_policy`."""
        io = self._stored.io
        if policy not in (disk_io.AUTO, *io.schedulers):
            raise errors.Unusable(f"disk policy {policy}", "there is no such policy")
        io.change_policy(settings.disk_policy(policy, self._conf.acstor_agent.cache_dir))
        self._operations.name_guests(io.is_scheduling)
        return io.policy

    async def start(self, inheritance: supervisor.Inheritance) -> None:
        """Start all parts; those that guests need first, as guests may be waiting."""
        self._operations.name_guests(self._stored.io.is_scheduling)
        await self._nursery.start(self._stored.io.serve)
        await self._nursery.start(self._stored.cache.run)
        await self._nursery.start(self._chunks.peers.run)
        await fuse_connection.adopt(inheritance.connection, self._operations)
        self._nursery.start_soon(
            functools.partial(pyfuse3.main, max_tasks=fuse_connection.MAX_REQUESTS)
        )
        self._nursery.start_soon(self._guests.disks.run)
        self._nursery.start_soon(self._chunks.exchange.run)
        await self._start_optional()

    async def _start_optional(self) -> None:
        images, boots, guests, cloud = self._images, self._boots, self._guests, self._cloud
        runs = {"boot images": boots.sessions.run, "image usage": images.usage.run}
        if images.hydration is not None:
            runs["hydration"] = images.hydration.run
        if images.replication is not None:
            runs["replication"] = images.replication.run
        runs |= {
            "image detachment": images.detachment.run,
            "checkpoints": guests.checkpoint_restore.run,
            "stuck requests": guests.stuck_requests.run,
            "guests on dead mounts": guests.dead_mounts.run,
            "boot recording": boots.recording.run,
            "boot traces": boots.trace_spool.run,
            "boot timelines": boots.timelines.run,
            "v-node table": cloud.rings.watch_file,
        }
        keep = self._supervised.run_supervised
        for name, run in runs.items():
            await keep(name, supervised_tasks.start_at_once(run))
        await keep("peer_listen", self._chunks.listen)
        await keep("control_socket", self._listen_to_control)
        if cloud.enrolment is not None:
            await keep("enrolment", supervised_tasks.start_at_once(cloud.enrolment.run))
        if cloud.decision is not None:
            await keep("decision service", supervised_tasks.start_at_once(cloud.decision.run))
            await keep("tasks", supervised_tasks.start_at_once(self._tasks.run))
        if address := self._conf.acstor_agent.metrics_listen:
            await keep(
                "metrics_listen", functools.partial(metrics.run_endpoint, address, self._metrics)
            )

    async def _listen_to_control(self, task_status: trio.TaskStatus[Any]) -> None:
        await control_socket.listen(
            pathlib.Path(self._conf.acstor.control_socket),
            settings.control_gid(self._conf.acstor_agent),
            self._requests.handle_request,
            task_status=task_status,
        )

    async def leave_bus(self) -> None:
        """Leave the message bus; takes some seconds."""
        await self._cloud.stop()

    async def stop(self) -> None:
        """Close disks and sources after the nursery has ended."""
        await self._guests.disks.aclose()
        await self._chunks.source.aclose()

    def current_status(self) -> dict[str, Any]:
        """Return the agent's status; thread-safe."""
        report = self._image_report()
        return {
            **status.of_agent(self._cloud.host, self._conf, time.monotonic() - self._started_s),
            **report.status(self._images.usage),
            "disks": status.of_disks(self._guests.disks, report.late),
            **self._part_status(),
        }

    def _metrics(self) -> dict[str, Any]:
        by_image = self._conf.acstor_agent.metrics_by_image
        report = self._image_report()
        return {
            "by_image": by_image,
            **(report.numbers_by_image() if by_image else report.totals()),
            **self._part_status(),
        }

    def _image_report(self) -> image_status.ImageReport:
        return image_status.ImageReport(
            self._chunks.mirrors,
            self._images.hydration,
            self._chunks.exchange.counters,
            self._guests.stuck_requests.list_late_requests(),
            self._boots.timelines.histograms,
        )

    def _part_status(self) -> dict[str, Any]:
        cloud = self._cloud
        return {
            "ring": status.of_ring(cloud.rings),
            "identity": status.of_identity(cloud.identity.current_credentials(), cloud.enrolment),
            **self._chunks.status(),
            **self._guests.status(),
            **self._boots.status(),
            **self._images.status(),
            "cache": status.of_cache(self._stored.cache),
            "disk_io": status.of_disk_io(self._stored.io),
            "event_loop": status.of_latency(self._loop_lag.latency),
            "faults": status.of_faults(
                self._supervised.issues, self._chunks.source.list_statuses()
            ),
            "nova": {"fallbacks": dict(self._requests.nova_fallbacks)},
        }
