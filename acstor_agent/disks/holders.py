# SPDX-License-Identifier: Apache-2.0
"""Reads what other hosts keep of a checkpoint: its manifest and its chunks, sealed.

Who gives something need not be believed.  What a holder gives is opened with the disk's key
(:mod:`acstor_common.checkpoint_sealing`), which nobody else could have closed it with; that the
holder is a host of this cloud at all only spares others the question.

A holder that has failed is asked last, until it has answered again; for a minute that is so of all
checkpoints that it keeps, where it was silent.
"""

import itertools
import math
import os
import ssl
from collections.abc import Callable
from typing import TypeVar

import trio

from acstor_agent.core.disks import recovery as recovery_
from acstor_agent.engine import backoff
from acstor_agent.images import waiting
from acstor_agent.sources import http_link
from acstor_agent.sources import http_range
from acstor_common import checkpoint_manifest
from acstor_common import checkpoint_sealing
from acstor_common import errors
from acstor_common import ids
from acstor_common import vault_paths

T = TypeVar("T")

CONNECTIONS = vault_paths.CONNECTIONS_OF_HOST
"""To all holders together, for all may be one; what nobody waits for takes a quarter of them
(``recovering``)."""
MANIFEST_S = 25.0
"""Who has a disk made of a checkpoint is told within 30 s why it cannot be."""
TIMEOUT_S = 5.0
"""Of silence: so long a guest waits at first for a holder that is away."""
SILENT_S = 60.0
"""So long all remember that an address was silent."""
SILENT_MOST = 256
"""Addresses that are remembered."""


class Silent:
    """Addresses of holders that did not answer some time ago."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # the one that was silent last is the last

    def __contains__(self, address: str) -> bool:
        """Say whether an address was silent within SILENT_S."""
        return trio.current_time() - self._since_s.get(address, -math.inf) < SILENT_S

    def note(self, address: str) -> None:
        """Remember that an address was silent."""
        self.forget(address)
        if len(self._since_s) >= SILENT_MOST:
            self.forget(next(iter(self._since_s)))
        self._since_s[address] = trio.current_time()

    def forget(self, address: str) -> None:
        """Remember nothing of an address: it has answered."""
        self._since_s.pop(address, None)


class Link:
    """Connections to the holders of all checkpoints.

    :param context: what one is begun with: this host's certificate, and the cloud's authorities
    """

    def __init__(self, context: Callable[[], ssl.SSLContext], deadline_s: float) -> None:
        self._context = context
        limits = http_link.Limits(CONNECTIONS, TIMEOUT_S)
        self._link = http_link.Link("checkpoints", limits, context=context)
        self._limiter = trio.CapacityLimiter(len(os.sched_getaffinity(0)))
        self.deadline_s = deadline_s
        self.silent = Silent()

    def check(self) -> None:
        """Return if this host can prove to holders who it is.

        :raises errors.Unusable: it cannot
        """
        try:
            self._context()
        except OSError as e:
            raise errors.Unusable("checkpoints", f"no holder would give them: {e}") from e

    async def get(self, url: str, limit_bytes: int) -> bytes:
        """Return what lies at ``url``.

        :raises errors.ChunkUnavailable: it cannot be had, or is longer than ``limit_bytes``
        """
        asked = http_range.Asked(url.rpartition("/v1/")[2], url, 0, 0)
        async with self._link.answer(asked) as answer:
            if answer.status != 200:
                raise http_range.refusal(asked, answer.status)
            return await answer.body(limit_bytes)

    async def in_thread(self, work: Callable[[bytes, str], T], sealed: bytes, where: str) -> T:
        """Return what ``work`` does, in a thread."""
        return await trio.to_thread.run_sync(
            work, sealed, where, limiter=self._limiter, abandon_on_cancel=True
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._link.aclose()


class Holders:
    """Those who have one checkpoint.

    :raises ValueError: the key is none
    """

    def __init__(self, link: Link, recovery: recovery_.Recovery) -> None:
        self._link, self._recovery = link, recovery
        self._seal = checkpoint_sealing.Seal(recovery.key)
        self._in_order = list(recovery.holders)

    async def manifest(self) -> bytes:
        """Return the sealed manifest, which has the name that it should have."""
        name = self._recovery.manifest_name
        limit_bytes = checkpoint_manifest.MAX_BYTES + checkpoint_sealing.SEAL_BYTES

        def checked(sealed: bytes, where: str) -> bytes:
            if checkpoint_sealing.manifest_name(sealed) != name:
                raise errors.ChunkInvalid(f"manifest {name.hex()}", where, "it is another one")
            return sealed

        path = vault_paths.manifest(self._recovery.owner, self._recovery.vault_disk, name)
        within_s = min(MANIFEST_S, self._link.deadline_s)
        return await self._first(path, limit_bytes, checked, within_s)

    def opened(self, sealed: bytes) -> checkpoint_manifest.Manifest:
        """Return what a sealed manifest says; blocks, for a second where it is of a large disk.

        :raises errors.NotAuthentic: it is not of this disk
        :raises errors.CheckpointFormatError: it cannot be
        """
        plain = self._seal.open_manifest(sealed, checkpoint_manifest.MAX_BYTES)
        what = f"the manifest of checkpoint {self._recovery.checkpoint_id}"
        return checkpoint_manifest.Manifest.parse(plain, what)

    async def chunk(self, name: ids.Cid, length: int) -> bytes:
        """Return the bytes of a chunk.

        :raises errors.ChunkLost: all holders say that they have not got it, or have a wrong one
        :raises errors.DeadlineExceeded: nobody gave it in time
        """

        def opened(sealed: bytes, where: str) -> bytes:
            return self._seal.open(name, sealed, length, where)

        limit_bytes = length + checkpoint_sealing.SEAL_BYTES
        path = vault_paths.chunk(self._recovery.owner, self._recovery.vault_disk, name)
        return await self._first(path, limit_bytes, opened, self._link.deadline_s)

    async def _first(
        self, path: str, limit_bytes: int, check: Callable[[bytes, str], T], within_s: float
    ) -> T:
        """Return what the first holder gives that ``check`` takes; ask again while one may."""
        why = ""
        with trio.move_on_after(within_s):
            for tries in itertools.count():
                may_come = False
                for holder in self._silent_last():
                    try:
                        return await self._from(holder, path, limit_bytes, check)
                    except errors.ChunkUnavailable as e:
                        why = str(e)
                        may_come |= isinstance(e, errors.SourceUnreachable | errors.ChunkRefused)
                        self._ask_last(holder)
                if not may_come:
                    raise errors.ChunkLost(path, "any holder of its checkpoint", why)
                waiting.note(why)
                await trio.sleep(backoff.pause_s(tries))
        raise errors.DeadlineExceeded(path, within_s, why)

    async def _from(
        self,
        holder: recovery_.Holder,
        path: str,
        limit_bytes: int,
        check: Callable[[bytes, str], T],
    ) -> T:
        try:
            sealed = await self._link.get(f"https://{holder.address}{path}", limit_bytes)
        except errors.SourceCrowded:  # that says nothing of it
            raise
        except errors.SourceUnreachable:
            self._link.silent.note(holder.address)
            raise
        self._link.silent.forget(holder.address)
        return await self._link.in_thread(check, sealed, holder.host)

    def _silent_last(self) -> list[recovery_.Holder]:
        return sorted(self._in_order, key=lambda holder: holder.address in self._link.silent)

    def _ask_last(self, holder: recovery_.Holder) -> None:
        self._in_order.remove(holder)
        self._in_order.append(holder)
