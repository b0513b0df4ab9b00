# SPDX-License-Identifier: Apache-2.0
"""Access to the agent's own disk, for all I/O that has to wait for it.

With the policy ``none`` each I/O is a call in a thread. With others it waits for its turn from the
scheduler (core/disk_scheduling); after STALL_S without completion of a request, the next one
starts. Reads from the page cache bypass this module.
"""

import contextlib
import contextvars
import logging
import os
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import TypeVar

import trio

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import scheduler

LOG = logging.getLogger(__name__)

T = TypeVar("T")

NONE = "none"
AUTO = "auto"
STALL_S = 1.0
ADDRESSES = 1 << 62  # larger than all files together, so addresses never collide
BLOCK_DEVICES = pathlib.Path("/sys/dev/block")

OWN_STREAM = requests.Stream(requests.Klass.BACKGROUND, "agent")
"""The agent's own work, which no guest or peer waits for."""
_stream: contextvars.ContextVar[requests.Stream] = contextvars.ContextVar(
    "stream", default=OWN_STREAM
)


class _StreamScope:
    __slots__ = ("_before", "_stream")

    def __init__(self, stream: requests.Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._before = _stream.set(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            _stream.reset(self._before)


def use_stream(stream: requests.Stream | None) -> _StreamScope:
    """Assign the I/O in a block, and of tasks started there, to a stream, if any."""
    return _StreamScope(stream)


def current_guest() -> str | None:
    """Return the guest of the current context; None if there is none."""
    klass, name = _stream.get()
    return name if klass is requests.Klass.GUEST else None


def deferred_stream() -> requests.Stream:
    """Return the stream of a deferred write, which delays its requester no more."""
    stream = _stream.get()
    return stream if stream.klass >= OWN_STREAM.klass else OWN_STREAM


def policy_for(folder: str | os.PathLike[str], devices: pathlib.Path = BLOCK_DEVICES) -> str:
    """Return the policy that suits the device of a folder; ``none`` for a missing folder.

    A virtual disk reports that it rotates whatever it is, so it gets ``none``.
    """
    try:
        number = os.stat(folder).st_dev
    except OSError:
        return NONE
    device = devices / f"{os.major(number)}:{os.minor(number)}"
    if "/virtio" in os.path.realpath(device):
        return NONE
    for at in (device, device / ".."):  # a partition uses its disk's queue
        with contextlib.suppress(OSError):
            rotates = (at / "queue/rotational").read_text().strip() == "1"
            return "pregather" if rotates else NONE
    return NONE


class DiskIo:
    """I/O of a worker on its own disk; keep :meth:`serve` running, except under ``none``."""

    def __init__(
        self,
        policy: str = NONE,
        schedulers: Mapping[str, type[policies.SchedulingPolicy]] = scheduler.POLICIES,
    ) -> None:
        self.schedulers = schedulers
        self._scheduler = scheduler.Scheduler(policies.Fifo(), ADDRESSES)
        self._bases: dict[object, int] = {}
        self._next_base = 0
        self._serving: dict[requests.DiskRequest, float] = {}
        self._changed = trio.Event()
        self.stalls = 0
        self.policy = NONE
        self.change_policy(policy)

    @property
    def is_scheduling(self) -> bool:
        """Return whether a policy other than ``none`` is in force."""
        return self.policy != NONE

    @property
    def counters(self) -> scheduler.Account:
        """Return the counters since the start."""
        return self._scheduler.account

    @property
    def waiting_count(self) -> int:
        """Return the number of waiting requests."""
        return len(self._scheduler)

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice."""
        return self._scheduler.slice_s(stream)

    def address_of(self, file: object, offset: int, size_bytes: int) -> int:
        """Return the address of a byte; files are laid out in the order of first use."""
        base = self._bases.get(file)
        if base is None:
            base = self._bases[file] = self._next_base
            self._next_base += size_bytes
        return base + offset

    def forget_file(self, file: object) -> None:
        """Forget the address of a deleted file."""
        self._bases.pop(file, None)

    def change_policy(self, policy: str) -> None:
        """Use another policy from now on; what waits is served by it."""
        self._scheduler.change_policy(self.schedulers[policy]())
        self.policy = policy
        self._pump()

    async def run(
        self,
        place: int,
        length: int,
        is_write: bool,
        function: Callable[..., T],
        *args: object,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Run ``function(*args)``, which moves ``length`` bytes (1 or more), in a thread in turn.

        :param place: address on the disk (see :meth:`address_of`)
        """
        if not self.is_scheduling:
            return await trio.to_thread.run_sync(function, *args, limiter=limiter)
        turn = trio.Event()
        request = requests.DiskRequest(_stream.get(), place, length, is_write, token=turn)
        self._scheduler.submit_request(request, trio.current_time())
        try:
            self._pump()
            await turn.wait()
            return await trio.to_thread.run_sync(function, *args, limiter=limiter)
        finally:
            if not self._scheduler.cancel_request(request):
                self._serving.pop(request, None)
                self._scheduler.request_completed(request, trio.current_time())
            self._pump()

    def _pump(self) -> None:
        """Start requests: one at a time, or all of them with ``none``."""
        if not len(self._scheduler):
            return
        now_s = trio.current_time()
        while not self._is_busy(now_s) or not self.is_scheduling:
            found = self._scheduler.pick_request(now_s)
            if found is None:
                break
            if self._serving and self.is_scheduling:
                self.stalls += 1
                LOG.warning(
                    "the disk has not answered for %g s; starting the next request", STALL_S
                )
            self._serving[found] = now_s
            assert isinstance(found.token, trio.Event)
            found.token.set()
        self._changed.set()

    def _is_busy(self, now_s: float) -> bool:
        return any(now_s - since_s < STALL_S for since_s in self._serving.values())

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start requests that are due by time, forever; at the end start all."""
        task_status.started()
        try:
            while True:
                self._changed = trio.Event()
                with trio.move_on_at(self._wakes_s()) as slept:
                    await self._changed.wait()
                if slept.cancelled_caught:
                    self._pump()
        finally:
            self.change_policy(NONE)

    def _wakes_s(self) -> float:
        if not len(self._scheduler):
            return float("inf")
        now_s = trio.current_time()
        if self._is_busy(now_s):
            return max(self._serving.values()) + STALL_S
        timeout_s = self._scheduler.next_timeout()
        return now_s + STALL_S if timeout_s is None else timeout_s
