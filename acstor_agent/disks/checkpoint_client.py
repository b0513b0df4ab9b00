# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint from other hosts: its sealed manifest and chunks.

Everything is opened with the disk's key (formats/checkpoint_encryption.py), so holders need not be
trusted. The fastest holder of late is asked first, a hedge goes to the next, a failed one is last.
"""

import functools
import itertools
import math
import os
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent.core.disks import restore_record
from acstor_agent.images.read import read_admission
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.identity import credentials
from acstor_common.model import ids
from acstor_common.util import backoff
from acstor_common.util import lru_table
from acstor_common.wire import vault_paths

T = TypeVar("T")
HolderRequest = Callable[[restore_record.CheckpointHolder], Awaitable[T]]
Hedge = Callable[[Sequence[restore_record.CheckpointHolder]], float]

CONNECTIONS = 8  # per holder, of 16 that its vault allows a host; background reads use a quarter
HOLDERS = 64
MANIFEST_S = 25.0  # the maker of a disk gets an error within 30 s
TIMEOUT_S = 5.0  # timeout without data; the first delay of a guest if only one holder is left
REMEMBERED_S = 60.0  # how long a response time or a failure counts
REMEMBERED = 256
RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 2.0  # first and longest pause between tries
HEDGE_S = 0.5  # delay of a hedge without known response times
SHORTEST_HEDGE_S, LONGEST_HEDGE_S = 0.05, 1.0
"""Bounds of this delay; the longest is for manifests, of up to 80 MiB."""
_SMOOTHING = 0.25
_MAY_PASS = (errors.SourceUnreachable, errors.ChunkRefused)


class ResponseTimes:
    """Recent response times of holders for a chunk, by address."""

    def __init__(self) -> None:
        # (response time, when recorded)
        self._noted = lru_table.LruTable[str, tuple[float, float]](REMEMBERED)

    def expected_s(self, address: str) -> float:
        """Return the expected response time; 0: unknown, inf: it failed recently."""
        took_s, noted_s = self._noted.get(address, (0.0, -math.inf))
        return took_s if trio.current_time() - noted_s < REMEMBERED_S else 0.0

    def record_time(self, address: str, took_s: float) -> None:
        """Record a response time; inf: a failure."""
        former_s = self.expected_s(address)
        if 0 < former_s < math.inf and took_s < math.inf:
            took_s = former_s + _SMOOTHING * (took_s - former_s)
        self._noted[address] = took_s, trio.current_time()

    def forget_holder(self, address: str) -> None:
        """Forget a holder's response time."""
        self._noted.pop(address, None)


class HolderConnections:
    """Connections to the holders of all checkpoints; ``own``: credentials of this host."""

    def __init__(
        self, own: credentials.Credentials, deadline_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._credentials, self._timeout_s = own, timeout_s
        # By address, so holders do not share connections.
        self._pools = lru_table.LruTable[str, http_pool.HttpPool](HOLDERS)
        self._limiter = trio.CapacityLimiter(len(os.sched_getaffinity(0)))
        self.deadline_s = deadline_s
        self.times = ResponseTimes()

    def check_credentials(self) -> None:
        """Check that this host can authenticate to holders, or raise Unusable if it cannot."""
        try:
            self._credentials.client_context()
        except OSError as e:
            raise errors.Unusable("checkpoints", f"no holder returned them: {e}") from e

    async def get(self, url: str, limit_bytes: int) -> bytes:
        """Return the body at ``url``; raise ChunkUnavailable if it fails or exceeds the limit."""
        address, _, path = url.removeprefix("https://").partition("/v1/")
        asked = http_range.RangeRequest(path, url, 0, 0)
        async with (await self._pool_of(address)).send_request(asked) as answer:
            if answer.status != 200:
                raise http_range.status_error(asked, answer.status)
            return await answer.read_body(limit_bytes)

    async def _pool_of(self, address: str) -> http_pool.HttpPool:
        if (found := self._pools.get_as_used(address)) is None:
            limits = http_pool.HttpLimits(CONNECTIONS, self._timeout_s)
            found = http_pool.HttpPool("checkpoints", limits, own=self._credentials)
            if evicted := self._pools.put(address, found):
                await evicted[1].aclose()
        return found

    async def in_thread(self, work: Callable[[bytes, str], T], sealed: bytes, where: str) -> T:
        """Run ``work`` in a thread."""
        return await trio.to_thread.run_sync(
            work, sealed, where, limiter=self._limiter, abandon_on_cancel=True
        )

    async def aclose(self) -> None:
        """Close the connections."""
        for connections in self._pools.values():
            await connections.aclose()


class CheckpointClient:
    """The holders of one checkpoint; raises ValueError if the key is invalid."""

    def __init__(
        self, connections: HolderConnections, record: restore_record.RestoreRecord
    ) -> None:
        self._connections, self._record = connections, record
        self._seal = checkpoint_encryption.Seal(record.key)
        self._failed: set[restore_record.CheckpointHolder] = set()

    async def fetch_manifest(self) -> bytes:
        """Return the sealed manifest, verified by its name."""
        name = self._record.manifest_name
        limit_bytes = checkpoint_manifest.MAX_BYTES + checkpoint_encryption.SEAL_BYTES

        def checked(sealed: bytes, where: str) -> bytes:
            if checkpoint_encryption.manifest_name(sealed) != name:
                raise errors.ChunkInvalid(
                    f"manifest {name.hex()}", where, "its hash does not match its name"
                )
            return sealed

        path = vault_paths.manifest(self._record.owner, self._record.vault_disk, name)
        within_s = min(MANIFEST_S, self._connections.deadline_s)

        def noted(address: str, _took_s: float) -> None:  # a manifest may be long
            self._connections.times.forget_holder(address)

        ask = functools.partial(self._from, path, limit_bytes, checked, noted)
        return await self._first(path, ask, lambda _others: LONGEST_HEDGE_S, within_s)

    def open_manifest(self, sealed: bytes) -> checkpoint_manifest.Manifest:
        """Return the manifest or raise NotAuthenticated or CheckpointFormatError; may block 1 s."""
        plain = self._seal.open_manifest(sealed, checkpoint_manifest.MAX_BYTES)
        what = f"the manifest of checkpoint {self._record.checkpoint_id}"
        return checkpoint_manifest.Manifest.parse(plain, what)

    async def fetch_chunk(self, name: ids.Cid, length: int) -> bytes:
        """Return a chunk's bytes, or raise ChunkLost (no valid copy) or DeadlineExceeded."""

        def opened(sealed: bytes, where: str) -> bytes:
            return self._seal.open(name, sealed, length, where)

        limit_bytes = length + checkpoint_encryption.SEAL_BYTES
        path = vault_paths.chunk(self._record.owner, self._record.vault_disk, name)
        ask = functools.partial(
            self._from, path, limit_bytes, opened, self._connections.times.record_time
        )
        return await self._first(path, ask, self._hedge_s, self._connections.deadline_s)

    async def _first(self, path: str, ask: HolderRequest[T], hedge_s: Hedge, within_s: float) -> T:
        why = ""
        with trio.move_on_after(within_s):
            for tries in itertools.count():
                race = _Race(ask)
                await race.run(self._fastest_first(), hedge_s)
                self._failed |= race.failures.keys()
                if race.won is not None:
                    self._note_slow(race.pending)
                    self._failed.discard(race.won[0])
                    return race.won[1]
                for failure in race.failures.values():
                    why = str(failure)
                if not any(isinstance(error, _MAY_PASS) for error in race.failures.values()):
                    raise errors.ChunkLost(path, "any holder of its checkpoint", why)
                read_admission.note_wait(why)
                await trio.sleep(backoff.pause_s(tries, RETRY_FIRST_S, RETRY_LONGEST_S))
        raise errors.DeadlineExceeded(path, within_s, why)

    async def _from(
        self,
        path: str,
        limit_bytes: int,
        check: Callable[[bytes, str], T],
        noted: Callable[[str, float], None],
        holder: restore_record.CheckpointHolder,
    ) -> T:
        began_s = trio.current_time()
        try:
            sealed = await self._connections.get(f"https://{holder.address}{path}", limit_bytes)
        except errors.SourceOverloaded:  # that is no response time
            raise
        except errors.SourceUnreachable:
            self._connections.times.record_time(holder.address, math.inf)
            raise
        noted(holder.address, trio.current_time() - began_s)
        return await self._connections.in_thread(check, sealed, holder.host)

    def _note_slow(self, pending: Mapping[restore_record.CheckpointHolder, float]) -> None:
        for holder, began_s in pending.items():
            took_s = trio.current_time() - began_s
            if took_s > self._connections.times.expected_s(holder.address):
                self._connections.times.record_time(holder.address, took_s)

    def _hedge_s(self, others: Sequence[restore_record.CheckpointHolder]) -> float:
        """Return the hedge delay: twice the shortest expected time of the others."""
        expected = (self._connections.times.expected_s(other.address) for other in others)
        known = [took_s for took_s in expected if 0 < took_s < math.inf]
        if not known:
            return HEDGE_S
        return min(max(2 * min(known), SHORTEST_HEDGE_S), LONGEST_HEDGE_S)

    def _fastest_first(self) -> list[restore_record.CheckpointHolder]:
        def rank(holder: restore_record.CheckpointHolder) -> tuple[bool, float]:
            return holder in self._failed, self._connections.times.expected_s(holder.address)

        return sorted(self._record.holders, key=rank)


class _Race(Generic[T]):
    """Asks holders one after the other, with hedges; ``pending`` has the start of each request."""

    def __init__(self, ask: HolderRequest[T]) -> None:
        self._ask = ask
        self.won: tuple[restore_record.CheckpointHolder, T] | None = None
        self.failures: dict[restore_record.CheckpointHolder, errors.ChunkUnavailable] = {}
        self.pending: dict[restore_record.CheckpointHolder, float] = {}

    async def run(self, order: Sequence[restore_record.CheckpointHolder], hedge_s: Hedge) -> None:
        async with trio.open_nursery() as nursery:
            for number, holder in enumerate(order):
                ended = trio.Event()
                nursery.start_soon(self._one, holder, nursery.cancel_scope, ended)
                with trio.move_on_after(hedge_s(order[number + 1 :]) * 2**number):
                    await ended.wait()

    async def _one(
        self,
        holder: restore_record.CheckpointHolder,
        all_of_them: trio.CancelScope,
        ended: trio.Event,
    ) -> None:
        self.pending[holder] = trio.current_time()
        try:
            given = await self._ask(holder)
        except errors.ChunkUnavailable as e:
            self.failures[holder] = e
        else:
            self.won = self.won or (holder, given)
            all_of_them.cancel()
        del self.pending[holder]
        ended.set()
