# SPDX-License-Identifier: Apache-2.0
"""Looks up contents of detached images for peers: one task for each image and connection."""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Protocol

import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import read_request
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids

Priority = priority.Priority

Failure = read_request.Failure


class ImageMaps(Protocol):
    """Chunk maps, which may have to be read from the source."""

    async def read_map_for_peer(
        self, host: ids.HostId, image_id: ids.ImageId, offset: int, length: int
    ) -> ids.Content:
        """Return the content at a range; raises errors.ChunkUnavailable."""


def stream_of(host: ids.HostId, priority: Priority) -> requests.Stream:
    """Return the disk stream of a peer's request; its prefetches come after guests."""
    is_urgent = priority <= Priority.READAHEAD
    return requests.Stream(requests.Klass.PEER if is_urgent else requests.Klass.PREFETCH, host)


class _ImageLookup:
    __slots__ = ("image_id", "requests", "scope")

    def __init__(self, image_id: ids.ImageId) -> None:
        self.image_id = image_id
        self.requests: dict[int, chunk_ref.Request] = {}  # by the number of each waiting chunk
        self.scope = trio.CancelScope()


class _ConnectionLookups:
    __slots__ = ("of_image", "of_number")

    def __init__(self) -> None:
        self.of_image: dict[ids.ImageId, _ImageLookup] = {}
        self.of_number: dict[int, _ImageLookup] = {}


class MapLookup:
    """The look-ups under way."""

    def __init__(self, driver: engine_driver.EngineDriver, maps: ImageMaps) -> None:
        self._driver, self._core, self._maps = driver, driver.core, maps
        self._lookups: dict[Hashable, _ConnectionLookups] = {}
        driver.on_action(actions.LookUpContents, self.start_lookup)

    def start_lookup(self, action: actions.LookUpContents) -> None:
        """Look up the contents of requests, and feed them as they are found."""
        lookups = self._lookups.get(action.connection)
        if lookups is None:
            lookups = self._lookups[action.connection] = _ConnectionLookups()
        for request in action.requests:
            lookup = lookups.of_image.get(request.image_id)
            if lookup is None:
                lookup = lookups.of_image[request.image_id] = _ImageLookup(request.image_id)
                self._driver.nursery.start_soon(
                    self._run_lookup, action.connection, action.host, lookup
                )
            lookup.requests.update(dict.fromkeys(request.numbers, request))
            lookups.of_number.update(dict.fromkeys(request.numbers, lookup))

    def forget_requests(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Drop requests of a connection; end look-ups that no request needs."""
        lookups = self._lookups.get(connection)
        for number in numbers if lookups is not None else ():
            assert lookups is not None
            lookup = lookups.of_number.pop(number, None)
            if lookup is not None:
                lookup.requests.pop(number, None)
                if not lookup.requests:
                    lookup.scope.cancel()
                    self._end_task(connection, lookup)

    def connection_ended(self, connection: Hashable) -> None:
        """Drop all requests of a connection."""
        if (lookups := self._lookups.get(connection)) is not None:
            self.forget_requests(connection, list(lookups.of_number))

    def _end_task(self, connection: Hashable, lookup: _ImageLookup) -> None:
        """Make later requests start a new task."""
        lookups = self._lookups.get(connection)
        if lookups is not None and lookups.of_image.get(lookup.image_id) is lookup:
            del lookups.of_image[lookup.image_id]
            if not lookups.of_image:
                del self._lookups[connection]

    async def _run_lookup(
        self, connection: Hashable, host: ids.HostId, lookup: _ImageLookup
    ) -> None:
        with lookup.scope:
            while lookup.requests:
                request = next(iter(lookup.requests.values()))
                found = await self._look_up(host, request)
                waiting = [n for n in request.numbers if lookup.requests.get(n) is request]
                for number in waiting:
                    del lookup.requests[number]
                    self._lookups[connection].of_number.pop(number, None)
                if waiting:
                    self._driver.handle_event(
                        self._core.contents_looked_up, connection, [(request, found)]
                    )
            self._end_task(connection, lookup)

    async def _look_up(
        self, host: ids.HostId, request: chunk_ref.Request
    ) -> Sequence[ids.Content] | Failure:
        try:
            with disk_io.use_stream(stream_of(host, request.priority)):
                return [
                    await self._maps.read_map_for_peer(host, request.image_id, offset, length)
                    for offset, length in request.iter_ranges()
                ]
        except errors.AcstorError as error:
            why = read_request.failure_of(error)
            return () if why is Failure.MISSING else why
        except Exception as error:
            self._driver.faults.record_fault("a look-up of chunks", error)
            return Failure.UNREACHABLE
