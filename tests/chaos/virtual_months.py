# SPDX-License-Identifier: Apache-2.0
"""Months of a cloud in virtual time: hosts come, go, crash and age, and most of a day is idle.

    python -m tests.chaos.virtual_months --seeds 0-9 --days 100
    python -m tests.chaos.virtual_months --seeds 3 --days 100 --verbose

The hosts are those of ``tests.chaos.virtual``.  The first one never restarts.  On two of five days
guests read, mostly in storms: besides the faults of ``virtual``, hosts leave for hours or days and
return with or without their cache, disks fill up or fail, hosts are partitioned for hours, have
wrong clocks or stale v-node tables, or speak the next version of the peer protocol.  Images are
replaced.

Invariants: each read ends with the right bytes, within a bound although lasting faults go on; all
work of hosts ends; no table, task, descriptor or object of a long-lived host grows with the days;
and the source is not read more than hosts without peers would.  Idle hours are jumped: in each step
a task that waits for the time runs once.
"""

import argparse
import collections
import contextlib
import errno
import gc
import logging
import math
import os
import pathlib
import resource
import signal
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence

import trio
import trio.testing

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.images.keep import image_detachment
from acstor_agent.peers import peer_network
from acstor_agent.sources import base
from acstor_common.model import ids
from tests.chaos import table_sizes
from tests.chaos import virtual
from tests.chaos import virtual_faults
from tests.chaos import virtual_hosts
from tests.fakes import one_host

Broken = virtual.Broken
DAY_S = 86400.0
STEP_S = 4 * 3600.0
"""Idle hosts jump so far at once."""
SETTLE_S = 0.05
"""Time between two jumps: each periodic task of a host runs once."""
HOSTS = 10
DAYS = 100
STORM_S = 6.0
CACHES_BYTES = (1 << 20, 2 << 20)
"""They are full after a third of the days."""
READERS = 3
READS = 6
CALM_EVERY = 5
LASTING = 0.5
"""Share of days on which a fault begins that lasts."""
LASTS_S = (3600.0, 3 * DAY_S)
IMAGE_EVERY = 4
"""Days until an image is replaced."""
LOOK_EVERY = 5
CLOSED_S = 600.0
"""Connections without requests are closed after so long."""
DAY_CPU_S = 120
GROWTH, SLACK = 1.25, 100
"""A table may be so much larger in the last third of the days than in the second."""


class Months(virtual.World):
    """A run of ``days``.

    :ivar stop_s: ends the run with the day, by the real monotonic clock
    :ivar sizes: of each table of the oldest host, and of the process, every LOOK_EVERY days
    """

    def __init__(
        self, seed: int, folder: pathlib.Path, days: int = DAYS, hosts: int = HOSTS
    ) -> None:
        super().__init__(seed, folder, FAULTS, hosts)
        self.is_calm = False
        if self.settings.limits is virtual_hosts.ROOMY:
            self.settings.limits = peer_network.PeerLimits()
        self.settings.cache_bytes = self.rng.choice(CACHES_BYTES)
        self.days, self.day, self.host_days = days, 0, 0.0
        self.versions: dict[str, int] = {}
        self.disk_errors: dict[str, int] = {}
        self.sizes: dict[str, list[int]] = collections.defaultdict(list)
        self.most_requests = self.most_read = 0
        self.longest_s = 0.0
        self.stop_s = math.inf
        self._away: dict[str, trio.Event] = {}
        self._lasting: list[tuple[float, Callable[[], object]]] = []
        self._images_made = 0

    def _make_images(self, seed: int) -> dict[ids.ImageId, bytes]:
        chunk = virtual.CHUNK
        data = one_host.image_bytes(24 * chunk + 777, seed)
        other = data[: 8 * chunk] + bytes(2 * chunk) + one_host.image_bytes(14 * chunk, seed + 1)
        return {one_host.IMAGE: data, one_host.OTHER: other}

    def conditions(self) -> contextlib.AbstractContextManager[object]:
        """Return the block in which faults of single hosts have an effect."""
        block = contextlib.ExitStack()
        block.enter_context(super().conditions())
        block.enter_context(virtual_faults.peer_versions(self.versions))
        block.enter_context(virtual_faults.failing_disks(self.folder, self.disk_errors))
        return block

    def victim(self) -> str:
        """Return a host that is here, but not the oldest."""
        return self.rng.choice([name for name in self.names[1:] if name in self.hosts] or ["h2"])

    async def stay_down(self, name: str) -> None:
        """Wait until a host that left returns, or a killed one restarts."""
        if name in self._away:
            await self._away[name].wait()
        else:
            await trio.sleep(self.rng.random() * 5)

    # Faults that last

    def leave(self) -> Callable[[], object] | None:
        """Stop a host until it returns; most tables omit it meanwhile."""
        name = self.victim()
        if name in self._away or len(self._away) > len(self.names) // 3:
            return None
        self.wipe(name) if self.rng.random() < 0.3 else self.kill(name)
        event = self._away[name] = trio.Event()
        if self.rng.random() < 0.7:
            self._publish()

        def end() -> None:
            self.note(f"{name} returns")
            del self._away[name]
            event.set()
            self._publish()

        return end

    def _publish(self) -> None:
        """Publish a table of the hosts that did not leave."""
        names = [name for name in self.names if name not in self._away]
        self._table = self._new_table(self._table.epoch + 1, names)
        for host in self.hosts.values():
            self.give_table(host)

    def split(self) -> Callable[[], object]:
        """Silence two groups of hosts to each other."""
        some = self.rng.sample(self.names, self.rng.randint(1, len(self.names) // 2))
        pairs = [(one, other) for one in some for other in self.names if other not in some]
        self.note(f"{', '.join(some)} are cut off")
        for one, other in pairs:
            self.network.silence(one, other, True)

        def end() -> None:
            self.note(f"{', '.join(some)} are connected")
            for one, other in pairs:
                self.network.silence(one, other, False)

        return end

    def upgrade(self) -> Callable[[], object] | None:
        """Restart a host with the next version of the peer protocol."""
        name = self.victim()
        if name in self.versions:
            return None
        self.versions[name] = 1
        self.kill(name)
        self.note(f"{name} speaks the next version")

        def end() -> None:
            del self.versions[name]
            self.kill(name)

        return end

    def fail_disk(self) -> Callable[[], object] | None:
        """Let the disk of a host be full, or fail."""
        name = self.rng.choice(self.names)
        if name in self.disk_errors:
            return None
        self.disk_errors[name] = self.rng.choice((errno.ENOSPC, errno.EIO))
        self.note(f"{name}: {errno.errorcode[self.disk_errors[name]]}")
        return lambda: self.disk_errors.pop(name)

    def begin_lasting(self) -> None:
        """Begin a fault that lasts for hours or days."""
        fault = self.rng.choice(LASTING_FAULTS)
        undo = fault(self)
        self.done[f"{fault.__name__}, lasting"] += 1
        if undo is not None:
            self._lasting.append((trio.current_time() + self.rng.uniform(*LASTS_S), undo))

    def end_lasting(self, now_s: float) -> None:
        """End the faults that have lasted long enough."""
        for end_s, undo in list(self._lasting):
            if end_s <= now_s:
                self._lasting.remove((end_s, undo))
                undo()

    # Days

    async def run(self) -> None:
        """Do the whole run.

        :raises Broken: a guarantee does not hold
        """
        async with trio.open_nursery() as nursery:
            await self.start_all(nursery)
            for day in range(1, self.days + 1):
                self.day = day
                signal.setitimer(signal.ITIMER_PROF, DAY_CPU_S)
                await self._play_day()
                if self.day % LOOK_EVERY == 0:
                    await self._idle(trio.current_time() + CLOSED_S)
                    self._look()
                if self.day % IMAGE_EVERY == 0:
                    await self._replace_image()
                if time.monotonic() > self.stop_s:
                    break
            self.must_not_grow()
            nursery.cancel_scope.cancel()

    async def _play_day(self) -> None:
        begin_s = trio.current_time()
        is_calm = self.day % CALM_EVERY == 0
        before = [(source.read_bytes, source.requests) for source in self.sources]
        self.note(f"day {self.day}{', calm' if is_calm else ''}")
        episodes = self.rng.choice((0, 0, 0, 1, 1))
        at_s = sorted(self.rng.random() * (DAY_S - 3600) for _ in range(episodes))
        for start_s in at_s:
            await self._idle(begin_s + start_s)
            if not is_calm and self.rng.random() < LASTING:
                self.begin_lasting()
            await self._episode(is_calm)
        await self._idle(begin_s + DAY_S)
        self.host_days += len(self.hosts) * (trio.current_time() - begin_s) / DAY_S
        self._check_source(before)
        self._must_be_foreseen()

    async def _idle(self, until_s: float) -> None:
        while (left_s := until_s - trio.current_time()) > SETTLE_S:
            self.clock.jump(min(left_s, STEP_S) - SETTLE_S)
            await trio.sleep(SETTLE_S)
            self.end_lasting(trio.current_time())
            await self._must_be_empty()
            for host in list(self.hosts.values()):  # some were away when an image was replaced
                await self._forget_replaced(host)

    async def _episode(self, is_calm: bool) -> None:
        """Let guests read on some hosts, in a storm unless it is a calm day."""
        present = [name for name in self.names if name not in self._away]
        names = self.rng.sample(present, min(READERS, len(present)))
        self.is_over = False
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._read_some, name)
            if not is_calm:
                await self._storm()
            self.mend_short()
            nursery.start_soon(self._must_end, nursery.cancel_scope)
        await self._must_be_empty()

    async def _read_some(self, name: str) -> None:
        self.network.be(name)
        stream = requests.Stream(requests.Klass.GUEST, name)
        for _ in range(READS):
            image_id = self.rng.choice(list(self.images))
            offset = self.rng.randrange(len(self.images[image_id]))
            length = self.rng.choice((4, 16, 64, 200)) * virtual.KIB
            if name in self._away:
                return
            began_s = trio.current_time()
            while not await self._read_once(name, stream, image_id, offset, length):
                if name in self._away:
                    return
            self.longest_s = max(self.longest_s, trio.current_time() - began_s)
            await trio.sleep(self.rng.expovariate(2.0))

    async def _storm(self) -> None:
        end_s = trio.current_time() + STORM_S
        while trio.current_time() < end_s:
            await trio.sleep(self.rng.expovariate(0.4))
            self.cause_fault()

    def mend_short(self) -> None:
        """Undo the faults of a storm; most hosts get the table in force."""
        for undo in list(self._undo):
            self._undo_fault(undo)
        self._publish()
        self.is_over = True

    async def _must_end(self, scope: trio.CancelScope) -> None:
        with trio.move_on_after(virtual.ENDS_S):
            while any(self._scopes.values()) or any(  # noqa: ASYNC110 - no event announces it
                name not in self.hosts and name not in self._away for name in self.names
            ):
                await trio.sleep(0.5)
            return
        raise Broken(f"reads wait {virtual.ENDS_S:g} s after the storm: {self._waits()}")

    async def _replace_image(self) -> None:
        """Replace the second image by a new one everywhere."""
        self._images_made += 1
        old = list(self.images)[-1]
        new = ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-{self._images_made:012x}")
        data = self.images.pop(old)
        kept = self.rng.randrange(len(data))
        self.images[new] = data[:kept] + one_host.image_bytes(len(data) - kept, self._images_made)
        for source in self.sources:
            for kind in (base.BlobKind.IMAGE, base.BlobKind.CHUNK_MAP):
                del source.blobs[base.Blob(old, kind)]
            source.blobs.update(self._blobs())
        for host in list(self.hosts.values()):
            host.uses.image_closed(old)
            host.uses.image_opened(new)
            await self._forget_replaced(host)
        await self._must_be_empty()

    async def _forget_replaced(self, host: virtual_hosts.Host) -> None:
        """Detach and unpin the images of a host that were replaced, as the command does."""
        self.network.be(host.name)
        detachment = image_detachment.ImageDetachment(
            host.images,
            host.boots,
            host.uses,
            host.pins,
            limits=image_detachment.DetachLimits(0.0),
            detach_handlers=[host.images.inode_numbers.image_detached],
        )
        known = {*host.images.list_attached(), *host.pins.list_pins()}
        for image_id in sorted(known - self.images.keys()):
            if host.images.is_attached(image_id):
                detachment.detach_image(image_id)
            await host.hydration.forget_image(image_id)

    # Checks

    def _check_source(self, before: Sequence[tuple[int, int]]) -> None:
        """Check that the source gave less than hosts without peers would have read."""
        read = sum(s.read_bytes - was[0] for s, was in zip(self.sources, before, strict=True))
        asked = sum(s.requests - was[1] for s, was in zip(self.sources, before, strict=True))
        self.most_read = max(self.most_read, read)
        self.most_requests = max(self.most_requests, asked)
        all_bytes = sum(map(len, self.images.values())) * len(self.names)
        if read > 2 * all_bytes:
            raise Broken(f"day {self.day}: the source gave {read} bytes")

    def _look(self) -> None:
        gc.collect()
        oldest = self.hosts[self.names[0]]
        seen = {f"{self.names[0]}{path}": n for path, n in table_sizes.sizes(oldest).items()}
        seen["tasks of all hosts"] = trio.lowlevel.current_statistics().tasks_living
        seen["descriptors but of slabs"] = _descriptors()
        seen["objects, in thousands"] = len(gc.get_objects()) // 1000
        seen["resident memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        looks = self.day // LOOK_EVERY
        for what in seen.keys() | self.sizes.keys():
            sizes = self.sizes[what]
            sizes += [0] * (looks - 1 - len(sizes)) + [seen.get(what, 0)]

    def must_not_grow(self) -> None:
        """Check that nothing grows with the days."""
        third = self.day // LOOK_EVERY // 3
        grown = {}
        for what, sizes in self.sizes.items():
            if third and max(sizes[-third:]) > GROWTH * max(sizes[third:-third]) + SLACK:
                grown[what] = sizes
        if grown:
            raise Broken(f"these grow with the days: {grown}")


def _descriptors() -> int:
    """Return the number of open files; those of the caches' slabs depend on their content."""
    with os.scandir("/proc/self/fd") as entries:
        return sum("/slab-" not in os.readlink(entry.path) for entry in entries)


FAULTS: tuple[virtual.Fault, ...] = (
    *virtual.FAULTS,
    Months.fail_disk,  # type: ignore[arg-type]
    Months.split,  # type: ignore[arg-type]
)
LASTING_FAULTS: tuple[Callable[[Months], Callable[[], object] | None], ...] = (
    Months.leave,
    Months.leave,
    Months.split,
    Months.upgrade,
    Months.set_clock,
    Months.fail_disk,
    Months.slow_links,
)


def play(
    seed: int, days: int = DAYS, hosts: int = HOSTS, stop_s: float = math.inf
) -> tuple[Months, BaseException | None]:
    """Do one run; return it, and its error."""

    def make(folder: pathlib.Path) -> Months:
        world = Months(seed, folder, days, hosts)
        world.stop_s = stop_s
        return world

    return virtual.play_world(seed, make, DAY_CPU_S)


def show(world: Months, took_s: float) -> None:
    """Print what a run did, and the largest tables."""
    print(
        f"{world.day} days, {world.host_days:.0f} host-days, {world.reads} reads compared "
        f"(the longest took {world.longest_s:.1f} s), {sum(world.done.values())} faults; "
        f"in a day the source gave {world.most_read / 2**20:.1f} MiB at most, in "
        f"{world.most_requests} requests; {took_s:.0f} s of processor time"
    )
    largest = sorted(world.sizes.items(), key=lambda item: -max(item[1]))
    for what, sizes in largest[:32]:
        third = max(len(sizes) // 3, 1)
        print(f"  {what:<90}{max(sizes[:third]):>8}{max(sizes[-third:]):>8}")


def main() -> int:
    """Run seeds, and print those with errors."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have an order, too
        argv = [sys.executable, "-m", "tests.chaos.virtual_months", *sys.argv[1:]]
        os.execve(sys.executable, argv, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.virtual_months")
    parser.add_argument("--seeds", default="0-9", help="one, or FIRST-LAST (0-9)")
    parser.add_argument("--days", type=int, default=DAYS, help=f"of each seed ({DAYS})")
    parser.add_argument("--hosts", type=int, default=HOSTS, help=f"of each seed ({HOSTS})")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--verbose", action="store_true", help="print what the hosts log")
    options = parser.parse_args()
    level = logging.DEBUG if options.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(name)s %(message)s")
    first, _, last = options.seeds.partition("-")
    began_s, failed, host_days = time.monotonic(), [], 0.0
    faults: collections.Counter[str] = collections.Counter()
    for seed in range(int(first), int(last or first) + 1):
        if time.monotonic() - began_s > options.seconds:
            break
        start_s = time.process_time()
        world, error = play(seed, options.days, options.hosts, began_s + options.seconds)
        host_days += world.host_days
        faults.update(world.done)
        if error is not None:
            failed.append(seed)
            virtual.report_failure(seed, world, error, f"virtual_months --days {options.days}")
        print(f"seed {seed}:", end=" ")
        show(world, time.process_time() - start_s)
    for name, count in sorted(faults.items()):
        print(f"{name:<24}{count:>6}")
    took_s = time.monotonic() - began_s
    print(f"{host_days:.0f} host-days, {took_s:.0f} s; broken: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
