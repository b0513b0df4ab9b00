# SPDX-License-Identifier: Apache-2.0
"""Writes arrived chunks to the cache; those that it does not take still reach their readers."""

from acstor_agent.cache import cache_files
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine import actions
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import read_request
from acstor_agent.runtime import disk_io

Priority = read_request.Priority

STREAMS = {
    Priority.READAHEAD: requests.Stream(requests.Klass.PREFETCH, "read-ahead"),
    Priority.PRE_SEED: requests.Stream(requests.Klass.FILL, "pre-seed"),
    Priority.FLATTEN: requests.Stream(requests.Klass.FILL, "flatten"),
    Priority.ADVERTISED: requests.Stream(requests.Klass.PREFETCH, "advertised"),
    Priority.HYDRATE: requests.Stream(requests.Klass.FILL, "hydrate"),
    Priority.PREFETCH: requests.Stream(requests.Klass.PREFETCH, "peers"),
}
"""Disk streams of the writes of chunks that no guest waited for."""
_KEEP = public_cache.KeepClass.BORROWED, public_cache.KeepClass.HOME


class CacheWriter:
    """Carries out ``Store``."""

    def __init__(self, driver: engine_driver.EngineDriver, cache: cache_files.CacheFiles) -> None:
        self._driver, self._core, self._cache = driver, driver.core, cache
        self._is_full = False
        driver.on_action(actions.Store, self._store)

    def _store(self, store: actions.Store) -> None:
        stored: list[actions.ArrivedRun] = []
        refused: list[actions.ArrivedRun] = []
        for run in store.runs:
            with disk_io.use_stream(STREAMS.get(run.priority, disk_io.OWN_STREAM)):
                are_kept = self._keep(run)
            for some, is_kept in (stored, True), (refused, False):
                at = [index for index, this in enumerate(are_kept) if this is is_kept]
                if at:
                    some.append(run if len(at) == len(are_kept) else run.select(at))
        if stored:
            self._driver.handle_event(self._core.chunks_stored, stored)
        if refused:
            self._driver.handle_event(self._core.chunks_not_stored, refused)
        if not self._is_full and not self._cache.has_room:
            self._is_full = True
            self._driver.nursery.start_soon(self._wait_for_room)

    def _keep(self, run: actions.ArrivedRun) -> list[bool]:
        self._count(run)
        cids = [ref.cid for ref in run.refs]
        if not (run.is_stored or any(map(self._cache.is_pinned, cids))):
            return [False] * len(cids)
        chunks = [(cid, data) for cid, (data, _) in zip(cids, run.chunks, strict=True)]
        if not run.is_stored:
            chunks = [chunk for chunk in chunks if self._cache.is_pinned(chunk[0])]
        try:
            stored = self._cache.store_all(chunks, _KEEP[run.is_kept])
        except Exception as error:  # as if the cache were full
            self._driver.faults.record_fault("storing chunks", error)
            return [cid in self._cache for cid in cids]
        if len(stored) == len(cids):
            return stored
        are_kept = iter(stored)
        return [self._cache.is_pinned(cid) and next(are_kept) for cid in cids]

    def _count(self, run: actions.ArrivedRun) -> None:
        total = sum([ref.length for ref in run.refs])
        if run.is_own:
            (_, origin), image_id = run.chunks[0], run.refs[0].image_id
            self._driver.counters.fetched[image_id].add(origin, total, len(run.refs))
            if run.priority is Priority.ADVERTISED:
                self._driver.counters.prefetched_bytes += total
        if run.provider is None:
            self._driver.counters.source_bytes += total

    async def _wait_for_room(self) -> None:
        self._driver.handle_event(self._core.cache_space_changed, False)
        await self._cache.wait_for_room()
        self._is_full = False
        self._driver.handle_event(self._core.cache_space_changed, True)
