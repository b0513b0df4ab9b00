# SPDX-License-Identifier: Apache-2.0
"""The boots of a host's guests: served from boot images, recorded, and timed."""

import pathlib
from typing import Any

import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cache import cache_files
from acstor_agent.cloud import membership
from acstor_agent.control import image_status
from acstor_agent.daemon import chunk_service
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.boot import trace_spool
from acstor_agent.images.read import boot_session
from acstor_agent.mount import killed_guests
from acstor_common.wire import trace_message


class BootService:
    """Loads boot images, whose heads are in a folder, records boots, and sends their traces."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nursery: trio.Nursery,
        cache: cache_files.CacheFiles,
        chunks: chunk_service.ChunkService,
        cloud: membership.Membership,
        heads: pathlib.Path,
    ) -> None:
        own = conf.acstor_agent
        self._cloud = cloud
        self.sessions = boot_session.BootSessions(
            heads,
            source=chunks.source,
            chunks=chunks.exchange,
            cache=cache,
            nursery=nursery,
            memory=settings.boot_memory_of(own),
            frame_timeout_s=settings.provider_timeout_s(own),
        )
        self.timelines = boot_timelines.BootTimelines(killed_guests.instance_of)
        self.trace_spool = trace_spool.TraceSpool(pathlib.Path(own.state_dir) / "traces")
        self.recording = boot_recording.BootRecording(
            cloud.host,
            settings.boot_limits(own),
            self._send_trace,
            instance_of=self.timelines.instance_of,
        )
        self.records = boot_recording.BootRecords(self.recording, self.timelines)

    def _send_trace(self, trace: trace_message.BootTrace) -> None:
        self.sessions.counters.recorded += 1
        if not self._cloud.cast_trace(trace):
            self.trace_spool.queue_trace(trace)

    def status(self) -> dict[str, Any]:
        """Return the numbers of boot images; thread-safe."""
        return {"boot": image_status.of_boots(self.sessions)}
