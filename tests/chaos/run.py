# SPDX-License-Identifier: Apache-2.0
"""Runs real agents and byte-exact readers while everything breaks, for as long as it is told.

    python -m tests.chaos.run --seed 7 --minutes 60 --hosts 3

What happens when is decided by the seed alone (``plan``); what it meets is real.  At the end
all is mended, every image is read and compared on every host, and nothing may be left.  A finding
is printed with the command that does the same again; ``--until`` and ``--steps`` do a part of it.
"""

import argparse
import contextlib
import faulthandler
import functools
import heapq
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import cast

from acstor_common import errors
from tests.chaos import actions
from tests.chaos import chaos_hosts
from tests.chaos import hostile_source
from tests.chaos import plan
from tests.chaos import readers
from tests.chaos import watch
from tests.fakes import bad_network
from tests.fakes import hosts as hosts_
from tests.fakes import http_server
from tests.lab import local
from tests.lab import runs

MIB = 1 << 20
IMAGE_BYTES = (24 * MIB + 12345, 16 * MIB)
SPARE_BYTES = 6 * MIB + 777
LOOK_S = 0.5
SERVES_S = 90.0
WHOLE_READ_S = 180.0
ASIDE_S = actions.SPARE_READ_S + 60
"""What was begun aside ends in so long when all is mended."""
GROWTH = {"memory": 256 * MIB, "threads": 48, "descriptors": 96}
"""So much more than after the beginning a worker may use at the end, at rest."""
HANGS_S = 900.0
"""A run that takes so much longer than twice its time is stuck, and ends itself."""
KEPT = runs.CACHE_FOLDER.parent / "chaos"
SETTINGS = (
    {"keep_images": "host", "cache_limit_bytes": 128 * MIB, "whole_limit_mbit": 4.0},
    {"keep_images": "none", "cache_limit_bytes": 12 * MIB},  # chunks come and go all the time
    {"keep_images": "host", "cache_limit_bytes": 32 * MIB},  # one image has no room
    {"keep_images": "none", "cache_limit_bytes": 24 * MIB},
    {"keep_images": "cloud", "cache_limit_bytes": 64 * MIB},
)
"""A seed has one of them."""


class World:
    """A cloud that is broken and mended, and its readers; see :class:`actions.World`."""

    def __init__(self, folder: pathlib.Path, seed: int, names: Sequence[str]) -> None:
        self.folder, self.seed = folder, seed
        self.names = names
        self.truth = folder / "truth"
        self.hosts: dict[str, chaos_hosts.Host] = {}
        self.readers: dict[str, list[readers.Reader]] = {name: [] for name in names}
        self.aside: list[threading.Thread] = []
        self.idle = 0
        """Steps that found nothing to do."""
        self.image_ids: list[str] = []
        self.spare_id = ""
        self.watch = watch.Watch(names)
        self.found = self.watch.found
        self._ring_file = folder / "ring.json"
        self._epoch = self._made_readers = 0
        self._reads_before = self._bytes_before = 0  # by readers that were killed
        self._rng = random.Random(f"world/{seed}")

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Have all of it until the block ends."""
        files = self._make_images()
        with contextlib.ExitStack() as stack:
            self.server = stack.enter_context(http_server.serve(files))
            self.source = hostile_source.HostileSource(self.server)
            stack.callback(self.source.mend)
            for name in self.names:
                self.hosts[name] = self._make_host(name, stack)
            self.write_ring(dict.fromkeys(self.names, 100))
            for host in self.hosts.values():
                stack.enter_context(host.living())
            stack.callback(self._kill_readers)
            for host in self.hosts.values():
                for image_id in self.image_ids:
                    host.ask("ensure", image_id=image_id)
                for number in range(len(self.image_ids) * 2):
                    self.readers[host.name].append(self._make_reader(host, number))
            yield

    def _make_images(self) -> dict[str, bytes]:
        images = local.ImageFolder(self.folder / "source")
        self.truth.mkdir()
        for number, size in enumerate((*IMAGE_BYTES, SPARE_BYTES)):
            data = local.random_bytes(size, self.seed * 10 + number, zero_share=0.1)
            self.spare_id = images.add(data)
            (self.truth / self.spare_id).write_bytes(data)
            self.image_ids.append(self.spare_id)
        self.image_ids.pop()
        return {path.name: path.read_bytes() for path in images.folder.iterdir()}

    def _make_host(self, name: str, stack: contextlib.ExitStack) -> chaos_hosts.Host:
        folder = self.folder / name
        folder.mkdir()
        port = local.unused_port()
        relay = stack.enter_context(bad_network.relaying(port, self._rng.randrange(1000), 0, 0))
        own = {
            "sources": "http",
            "ring_file": self._ring_file,
            "peer_timeout_s": 0.5,
            "boot_memory_idle_s": 2.0,
            "cache_slab_bytes": 2 * MIB,
            **SETTINGS[self.seed % len(SETTINGS)],
        }
        changes = {
            "acstor_agent": own,
            "source_http": {"url": self.server.url, "timeout_s": 2.0},
        }
        return chaos_hosts.Host(name, folder, port, relay, changes)

    def _make_reader(self, host: chaos_hosts.Host, number: int) -> readers.Reader:
        self._made_readers += 1
        way = list(readers.WAYS)[number % len(readers.WAYS)]
        image_id = self.image_ids[number % len(self.image_ids)]
        seed, own = self.seed + self._made_readers, host.folder / f"reader-{self._made_readers}"
        return readers.Reader(way, self.truth / image_id, host.image_path(image_id), seed, own)

    def end_readers(self) -> None:
        """Kill all readers, which must end."""
        for host, some in self.readers.items():
            for reader in some:
                self.watch.hear(host, reader)
                hosts_.kill(reader.pid)
                if not reader.ended_in(watch.DIES_S):
                    self.found(f"{host}: {reader.name} does not end")

    def _kill_readers(self) -> None:
        for reader in (reader for some in self.readers.values() for reader in some):
            hosts_.kill(reader.pid)

    def write_ring(self, vnodes: dict[str, int]) -> None:
        """Put a v-node table in force."""
        self._epoch += 1
        ports = {name: self.hosts[name].relay.port for name in vnodes}
        hosts_.write_ring(self._ring_file, ports, self._epoch, vnodes)

    def replace_reader(self, host: str, number: int) -> None:
        """Kill a reader, which must end, and start another one."""
        old = self.readers[host][number]
        state = old.state
        self._reads_before += state.reads
        self._bytes_before += state.bytes
        hosts_.kill(old.pid)
        self.watch.killed(host, old)
        self.readers[host][number] = self._make_reader(self.hosts[host], number)

    def look(self) -> None:
        """Look after the promises."""
        self.watch.look(self.hosts, self.readers)

    def tidy(self) -> None:
        """Forget what was counted: a run lasts for hours."""
        self.source.tidy()
        for host in self.hosts.values():
            host.relay.tidy()

    def reads(self) -> tuple[int, int]:
        """Return how many reads, and bytes, readers have compared."""
        states = [reader.state for some in self.readers.values() for reader in some]
        reads = self._reads_before + sum(state.reads for state in states)
        return reads, self._bytes_before + sum(state.bytes for state in states)


def go_on(some: Mapping[str, Sequence[readers.Reader]], limit_s: float) -> list[str]:
    """Return the readers none of whose reads end in a while, though nothing is broken any more."""
    before = {reader.pid: (reader, reader.state.reads) for one in some.values() for reader in one}
    ends_s = time.monotonic() + limit_s
    while before and time.monotonic() < ends_s:
        time.sleep(LOOK_S)
        before = {pid: old for pid, old in before.items() if old[0].state.reads <= old[1]}
    return [f"{reader.name}: no read ended in {limit_s:g} s" for reader, _ in before.values()]


def storm(world: World, steps: Sequence[plan.Step], end_s: float, is_verbose: bool) -> None:
    """Do the steps at their times, undo them at theirs, and look after the promises."""
    began_s = time.monotonic()
    due: list[tuple[float, int, int, plan.Step]] = [
        (step.at_s, 1, step.number, step) for step in steps
    ]
    heapq.heapify(due)
    undo: dict[int, actions.Undo] = {}
    while due or time.monotonic() - began_s < end_s:
        while due and due[0][0] <= time.monotonic() - began_s:
            _, is_begin, _, step = heapq.heappop(due)
            if is_begin:
                heapq.heappush(due, (step.until_s, 0, step.number, step))
                world.watch.begins(step)
                undo[step.number] = attempt(
                    world, step, functools.partial(actions.begin, world, step)
                )
            else:
                attempt(world, step, undo.pop(step.number))
                world.watch.ended(step)
                world.tidy()
            if is_verbose:
                at_s = time.monotonic() - began_s
                print(f"[{at_s:.1f} s] {'begins' if is_begin else 'ends'} {step}", flush=True)
        world.look()
        time.sleep(LOOK_S)


def attempt(world: World, step: plan.Step, work: Callable[[], object]) -> actions.Undo:
    """Do or undo a step, and return what undoes it; that it cannot be done is a finding."""
    try:
        return cast(actions.Undo, work())
    except actions.NothingToDoError:
        world.idle += 1
        return lambda: None
    except (errors.AcstorError, OSError, subprocess.SubprocessError) as e:
        world.found(f"{step} cannot be done or undone: {e}")
        return lambda: None


def mend(world: World) -> None:
    """Wait until nothing is broken and nobody waits; whatever does then is a finding."""
    world.write_ring(dict.fromkeys(world.names, 100))
    for host in world.hosts.values():
        if not chaos_hosts.wait_serving(host, SERVES_S):
            world.found(f"{host.name}: does not answer:\n{host.log()[-2000:]}")
    for why in go_on(world.readers, SERVES_S):
        world.found(why)
    ends_s = time.monotonic() + ASIDE_S
    for thread in world.aside:
        thread.join(max(0.0, ends_s - time.monotonic()))
        if thread.is_alive():
            world.found("what an operator asked for, or a read of the spare image, does not end")


def read_all(world: World) -> None:
    """Compare every byte of every image on every host."""
    for host in world.hosts.values():
        for image_id in world.image_ids:
            argv = ["cmp", str(host.image_path(image_id)), str(world.truth / image_id)]
            done = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                said = done.communicate(timeout=WHOLE_READ_S)[0].decode()
            except subprocess.TimeoutExpired:
                world.found(f"{host.name}: image {image_id} cannot be read in {WHOLE_READ_S:g} s")
                done.kill()
                continue
            if done.returncode:
                world.found(f"{host.name}: image {image_id}: {said}")


def end(world: World, before: dict[str, dict[str, int]]) -> None:
    """Look at what is left when the readers have gone."""
    world.end_readers()
    for name, host in world.hosts.items():
        for what, count in host.use().items():
            if count > before[name][what] + GROWTH[what]:
                world.found(f"{name}: {what} grew from {before[name][what]} to {count}")
        log = host.log()
        if "Traceback" in log:
            at = log.index("Traceback")
            world.found(f"{name}: the log has a traceback:\n{log[max(0, at - 500) : at + 2500]}")
        for words in ("bytes of it are lost", "fault of its own"):
            if words in log:
                world.found(f"{name}: the log says: {words}")
        if (died := log.count("; starting another")) > host.ended_by_us:
            world.found(
                f"{name}: {died} workers died, and {host.ended_by_us} were ended by the run"
            )


def play(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Do a run; return what was found."""
    names = [f"h{number}" for number in range(1, options.hosts + 1)]
    length_s = options.minutes * 60
    numbers = {int(number) for number in options.steps.split(",")} if options.steps else None
    steps = plan.only(plan.make(options.seed, names, length_s), numbers, options.until)
    world = World(folder, options.seed, names)
    with world.living():
        before = {name: host.use() for name, host in world.hosts.items()}
        try:
            storm(world, steps, length_s, options.verbose)
            if steps and world.idle == len(steps):
                world.found("no step found anything to do")
            mend(world)
            storm(world, [], min(plan.CALM_S, length_s / 2), False)
            read_all(world)
            reads, count = world.reads()
            end(world, before)
        finally:
            if world.watch.findings or sys.exc_info()[0]:
                keep(world, folder, steps)
    left = hosts_.mounts(folder)
    if left:
        world.found(f"still mounted: {', '.join(left)}")
    print(
        f"seed {options.seed}: {len(steps)} steps, {world.idle} found nothing to do; "
        f"readers compared {reads} reads, {count / MIB:.0f} MiB; "
        f"{len(world.watch.findings)} findings"
    )
    return world.watch.findings


def keep(world: World, folder: pathlib.Path, steps: Sequence[plan.Step]) -> None:
    """Keep the logs of a run that found something."""
    kept = KEPT / f"seed-{world.seed}-{time.strftime('%H%M%S')}"
    kept.mkdir(parents=True)
    for name in world.names:
        with contextlib.suppress(OSError):
            shutil.copy(folder / name / "agent.log", kept / f"{name}.log")
            shutil.copy(folder / name / "acstor.conf", kept / f"{name}.conf")
    (kept / "steps").write_text("".join(f"{step}\n" for step in steps))
    (kept / "last-steps").write_text("\n".join(world.watch.history))
    (kept / "findings").write_text("\n".join(world.watch.findings))
    print(f"logs: {kept}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="decides everything (random)")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it goes on (5)")
    parser.add_argument("--hosts", type=int, default=3, help="how many (3)")
    parser.add_argument("--until", type=int, help="number of the last step that is done")
    parser.add_argument("--steps", help="numbers of the steps that are done, with commas between")
    parser.add_argument("--verbose", action="store_true", help="print each step")
    parser.add_argument("--list", action="store_true", help="print the steps and do nothing")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.randrange(1 << 20)
    names = [f"h{number}" for number in range(1, options.hosts + 1)]
    if options.list:
        print(*plan.make(options.seed, names, options.minutes * 60), sep="\n")
        return 0
    command = (
        f"python -m tests.chaos.run --seed {options.seed} --minutes {options.minutes:g} "
        f"--hosts {options.hosts}"
    )
    for name in ("until", "steps"):
        if (value := getattr(options, name)) is not None:
            command += f" --{name} {value}"
    print(command, flush=True)
    faulthandler.dump_traceback_later(options.minutes * 60 * 2 + HANGS_S, exit=True)
    try:
        with runs.Run() as run:
            findings = play(options, run.folder)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if findings:
        print(f"The same again: {command}; less of it: --until NUMBER, --steps NUMBER,NUMBER")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
