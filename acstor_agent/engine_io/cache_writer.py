# SPDX-License-Identifier: Apache-2.0
"""Writes arrived chunks to the cache, and reports to the engine what was stored.

Chunks that cannot be stored are still given to those who wait for them.
"""

import itertools
from collections.abc import Callable
from typing import Any

import trio

from acstor_agent import disk_io
from acstor_agent import faults as faults_
from acstor_agent.cache import cache_files
from acstor_agent.core import counters as counters_
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine import actions
from acstor_agent.engine import engine
from acstor_agent.engine_io import read_request

Priority = read_request.Priority

STREAMS = {
    Priority.SOON: requests.Stream(requests.Klass.PREFETCH, "read-ahead"),
    Priority.SEED: requests.Stream(requests.Klass.FILL, "pre-seed"),
    Priority.HYDRATE: requests.Stream(requests.Klass.FILL, "hydrate"),
    Priority.ADVERTISED: requests.Stream(requests.Klass.PREFETCH, "advertised"),
    Priority.WHOLE: requests.Stream(requests.Klass.FILL, "whole"),
    Priority.LATER: requests.Stream(requests.Klass.PREFETCH, "peers"),
}
"""Whose the writes to the disk are that come of it, where nobody waited for the chunk."""
_KEEP = public_cache.KeepClass.BORROWED, public_cache.KeepClass.HOME


class CacheWriter:
    """What is on its way into the cache."""

    def __init__(
        self,
        feed: Callable[..., str],
        core: engine.Engine,
        cache: cache_files.CacheFiles,
        nursery: trio.Nursery,
        counters: counters_.ExchangeCounters,
        faults: faults_.Faults,
    ) -> None:
        self._feed, self._core, self._cache, self._nursery = feed, core, cache, nursery
        self._counters, self._faults = counters, faults
        self._is_full = False
        self.doing: dict[type, Callable[[Any], None]] = {actions.Store: self._store}

    def _store(self, store: actions.Store) -> None:
        """Put chunks into the cache, each kind in its own turn at the disk."""
        kept: dict[bool, list[actions.Arrived]] = {}
        for priority, chunks in itertools.groupby(store.chunks, lambda chunk: chunk.priority):
            with disk_io.as_stream(STREAMS.get(priority, disk_io.OURS)):
                for chunk in chunks:
                    kept.setdefault(self._keep(chunk), []).append(chunk)
        for is_kept, some in kept.items():
            self._feed(self._core.stored if is_kept else self._core.not_stored, some)
        if not self._is_full and not self._cache.has_room:
            self._is_full = True
            self._nursery.start_soon(self._wait_for_room)

    def _keep(self, chunk: actions.Arrived) -> bool:
        want, (data, origin), giver, _, is_kept, is_own, priority, is_stored = chunk
        if is_own:
            self._counters.fetched[want.image_id].add(origin, want.length)
            if priority is Priority.ADVERTISED:
                self._counters.prefetched_bytes += want.length
        if giver is None:
            self._counters.source_bytes += want.length
        if not (is_stored or self._cache.is_pinned(want.cid)):
            return False
        try:
            return self._cache.store(want.cid, data, _KEEP[is_kept])
        except Exception as error:  # as if there were no room: it is given to who waits for it
            self._faults.note("storing a chunk", error)
            return False

    async def _wait_for_room(self) -> None:
        """Let nothing be fetched ahead until the disk has caught up."""
        self._feed(self._core.has_room, False)
        await self._cache.wait_for_room()
        self._is_full = False
        self._feed(self._core.has_room, True)
