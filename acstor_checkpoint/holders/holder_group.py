# SPDX-License-Identifier: Apache-2.0
"""Calls all holders of one disk's checkpoints concurrently.

A holder that lacks more than ``lost_chunks`` acknowledged chunks is replaced: a new holder costs
the same read of the whole disk (``HolderPool.record_failure`` limits how often).
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import supervision

T = TypeVar("T")
_ENDS_S = 5.0  # for requests whose connection was closed


class HolderLimits(NamedTuple):
    """Limits of a holder group.

    :param slack_s: time in addition to that of the rates: a slow disk syncs a few MiB in it
    :param missing_names: names in memory (8 MiB); if a holder lacks more, the disk is sent again
    :param lost_chunks: acknowledged chunks of a disk that a holder may lack in one checkpoint; a
        pass of scrubbing removes up to 100 unreadable files
    :param slow_s: of a checkpoint, or a part: a holder that took so much longer than the fastest
        one, and more than twice as long, is named
    :param stalled_s: of a request: a slow disk takes 20 s for the largest deletion
    """

    slack_s: float = 60.0
    min_bytes_per_s: int = 1 << 20  # least rate of a holder, in bytes of the disk or of a manifest
    min_names_per_s: int = 1 << 13  # least rate of lookups: an eighth of a vault's limit for a host
    names_per_request: int = object_names.MAX_NAMES  # of a lookup
    missing_names: int = 1 << 16
    lost_chunks: int = 128
    slow_s: float = 60.0
    stalled_s: float = 30.0


LIMITS = HolderLimits()


@dataclasses.dataclass(eq=False)
class HolderFailed(errors.AcstorError):
    """A holder failed: choose another one."""

    holder: ids.HostId
    why: str
    text = "{holder} keeps no checkpoint: {why}"


class HolderSlow(HolderFailed):
    """A holder used up its time; ``is_stalled``: one request took ``stalled_s`` or more."""

    def __init__(self, holder: ids.HostId, *, is_stalled: bool) -> None:
        super().__init__(holder, "it is too slow")
        self.is_stalled = is_stalled


class HolderLost(HolderFailed):
    """A holder lacks acknowledged chunks."""


class HolderChooser(Protocol):
    """Hosts that can keep checkpoints."""

    def choose_holders(
        self, disk: ids.ImageId, copies: int, current: Sequence[ids.HostId]
    ) -> Sequence[checkpoint_record.VaultHolder]:
        """Return holders of a disk; current ones if they are usable."""

    def client_of(self, holder: checkpoint_record.VaultHolder) -> vault_client.VaultClient:
        """Return a client of a holder's vault."""

    def record_failure(self, holder: ids.HostId, *, is_costly: bool) -> None:
        """Avoid a holder for a while; ``is_costly``: its failure costs a read of a full disk."""


class AllNames(Container[ids.Cid]):
    """Contains everything."""

    def __contains__(self, _one: object) -> bool:
        return True


class HolderGroup:
    """The holders of one disk, called concurrently; not thread-safe.

    A leaky bucket bounds their time: a request has the time of its size at the slowest rate, and
    the rest of the slack, which quicker requests refill.  The slack is half an interval if that is
    shorter, so that another holder can be asked in time.  Methods raise :class:`HolderFailed` if a
    holder is slower, or fails.

    :param acknowledged: holders that acknowledged every chunk of the last manifest
    :param interval_s: of the server's checkpoints; 0: it has none
    :ivar filled_holders: holders that acknowledged chunks of the disk, now or before
    """

    def __init__(
        self,
        disk: object_names.VaultDisk,
        clients: Sequence[vault_client.VaultClient],
        acknowledged: Collection[ids.HostId] = (),
        clock: clocks.Clock = time,
        interval_s: int = 0,
        limits: HolderLimits = LIMITS,
    ) -> None:
        self._disk, self._clients, self._clock = disk, clients, clock
        self._acknowledged, self.filled_holders = acknowledged, set(acknowledged)
        self._limits = limits
        self.slack_left_s = self._slack_s = min(limits.slack_s, interval_s / 2 or limits.slack_s)
        self.holders = tuple(client.holder for client in clients)
        self._took_s = dict.fromkeys(self.holders, 0.0)

    def missing_names(self, names: Iterable[ids.Cid]) -> Container[ids.Cid]:
        """Return ``names`` (ascending) that any holder lacks; all if these are too many."""
        found: set[bytes] = set()
        lost = collections.Counter[ids.HostId]()
        left = iter(names)
        while part := list(itertools.islice(left, self._limits.names_per_request)):
            work = functools.partial(_missing, self._disk, part)
            missing = self._call_holders(work, len(part) / self._limits.min_names_per_s)
            lost.update(dict(zip(self.holders, map(len, missing), strict=True)))
            self._check_lost(lost)
            found.update(*missing)
            if len(found) > self._limits.missing_names:
                return AllNames()
        return {ids.Cid(name) for name in found}

    def _check_lost(self, lost: Mapping[ids.HostId, int]) -> None:
        for holder in self._acknowledged:
            if lost.get(holder, 0) > self._limits.lost_chunks:
                raise HolderLost(holder, f"it lacks {lost[holder]} chunks that it acknowledged")

    def put(
        self, names: Sequence[ids.Cid], sealed: Callable[[ids.Cid], bytes], plain_bytes: int
    ) -> int:
        """Store chunks as :class:`.disk_capture.HolderGroup` specifies; return the bytes sent."""

        def put(client: vault_client.VaultClient) -> int:
            missing = map(ids.Cid, sorted(client.missing_chunks(self._disk, names)))
            chunks = [object_names.SealedChunk(name, sealed(name)) for name in missing]
            client.put(self._disk, chunks)
            return sum(len(chunk.data) for chunk in chunks)

        sent = self._call_holders(put, plain_bytes / self._limits.min_bytes_per_s)
        self.filled_holders.update(self.holders)
        return sum(sent)

    def put_manifest(self, sealed: bytes | bytearray) -> None:
        """Store a sealed manifest at every holder."""
        size_s = len(sealed) / self._limits.min_bytes_per_s
        self._call_holders(lambda client: client.put_manifest(self._disk, sealed), size_s)

    def retain_only(self, parts: Iterable[object_names.RetainedNames]) -> None:
        """Have each holder delete all other objects; no checkpoint waits, so all slack applies."""
        self.slack_left_s = self._slack_s = self._limits.slack_s
        for part in parts:
            self._call_holders(
                functools.partial(_retain, self._disk, part),
                len(part.names) / self._limits.min_names_per_s,
            )

    def slow_holder(self) -> str:
        """Return the holder that delayed the others by ``slow_s``; "": none."""
        slow = max(self.holders, key=self._took_s.__getitem__)
        slow_s, fast_s = self._took_s[slow], min(self._took_s.values())
        return slow if slow_s > max(2 * fast_s, fast_s + self._limits.slow_s) else ""

    def _call_holders(
        self, work: Callable[[vault_client.VaultClient], T], size_s: float
    ) -> list[T]:
        """Call all holders; ``size_s`` is the time of the request's size at the least rate."""
        allowed_s, began_s = self.slack_left_s + size_s, self._clock.monotonic()

        def timed(client: vault_client.VaultClient) -> T:
            answer = work(client)
            self._took_s[client.holder] += self._clock.monotonic() - began_s
            return answer

        answers = call_holders(self._clients, timed, allowed_s, self._limits.stalled_s)
        self.slack_left_s = min(self._slack_s, allowed_s - (self._clock.monotonic() - began_s))
        return answers


def _missing(
    disk: object_names.VaultDisk, names: Sequence[ids.Cid], client: vault_client.VaultClient
) -> set[bytes]:
    return client.missing_chunks(disk, names)


def _retain(
    disk: object_names.VaultDisk, part: object_names.RetainedNames, client: vault_client.VaultClient
) -> int:
    return client.retain_only(disk, part)


def call_holders(
    clients: Sequence[vault_client.VaultClient],
    work: Callable[[vault_client.VaultClient], T],
    allowed_s: float,
    stalled_s: float = LIMITS.stalled_s,
) -> list[T]:
    """Return the results of all holders' concurrent calls; the first failure aborts the others.

    :raises HolderFailed: one of them failed, or took longer than ``allowed_s``
    :raises vault_client.HostFault: this host has no threads, descriptors or route
    """
    answers = [_start_call(client, work) for client in clients]
    done, _ = futures.wait(answers, allowed_s, futures.FIRST_EXCEPTION)
    began_s = time.monotonic() - stalled_s
    for client, answer in zip(clients, answers, strict=True):
        if answer not in done:
            client.abort()
    futures.wait(answers, _ENDS_S)
    has_failed = any(answer.exception() for answer in done)
    for client, answer in zip(clients, answers, strict=True):
        if answer in done:
            with _blame_holder(client, clients):
                answer.result()
        elif not has_failed:
            raise HolderSlow(client.holder, is_stalled=client.request_began_s < began_s)
    return [answer.result() for answer in answers]


def _start_call(
    client: vault_client.VaultClient, work: Callable[[vault_client.VaultClient], T]
) -> futures.Future[T]:
    answer: futures.Future[T] = futures.Future()

    def run() -> None:
        try:
            answer.set_result(work(client))
        except BaseException as e:
            answer.set_exception(e)

    try:
        supervision.start_once(f"holder {client.holder}", run)
    except RuntimeError as e:  # no thread can be started; running requests are aborted
        answer.set_exception(vault_client.HostFault(str(e)))
    return answer


@contextlib.contextmanager
def _blame_holder(
    client: vault_client.VaultClient, clients: Sequence[vault_client.VaultClient]
) -> Iterator[None]:
    try:
        yield
    except vault_client.NoRoute as e:
        if any(other.has_route() for other in clients):
            raise HolderFailed(client.holder, str(e)) from e
        raise
    except vault_client.HostFault:
        raise
    except (errors.AcstorError, ValueError) as e:  # invalid responses raise any of these
        raise HolderFailed(client.holder, str(e)) from e
