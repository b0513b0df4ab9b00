# SPDX-License-Identifier: Apache-2.0
"""Runs real agents and byte-exact readers under faults for a given time.

    python -m tests.chaos.run --seed 7 --minutes 60 --hosts 3

The seed alone decides the schedule (``plan``); the faults are real.  At the end all faults are
repaired, every image is compared on every host, and no resource may be left.  A finding is printed
with the command that repeats it; ``--until`` and ``--steps`` do a part of the run.  With
``--guests`` QEMU runs some, too, which boot from a mirror and read their whole disk in a loop.  ^C
ends the storm early, with the usual repair, comparison and report; a second one stops that, too.
"""

import argparse
import contextlib
import faulthandler
import functools
import heapq
import pathlib
import random
import shutil
import signal
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
from tests.chaos import guests
from tests.chaos import plan
from tests.chaos import readers
from tests.chaos import world as world_
from tests.fakes import hosts
from tests.fakes import next_version
from tests.lab import runs

MIB = 1 << 20
LOOK_S = 0.5
SERVES_S = 90.0
WHOLE_READ_S = 180.0
ASIDE_S = actions.SPARE_READ_S + 60
"""Limit for work in threads once all faults are repaired."""
GROWTH = {"memory": 256 * MIB, "threads": 48, "descriptors": 96}
"""Additional resources that an idle worker may use at the end of the run."""
HANGS_S = 900.0
"""A run that takes so much longer than twice its time is stuck, and ends itself."""
KEPT = runs.CACHE_FOLDER.parent / "chaos"


def go_on(some: Mapping[str, Sequence[readers.Reader | guests.Guest]], limit_s: float) -> list[str]:
    """Return the readers without a completed read in a while, though no fault is left."""
    left = {reader.pid: (reader, reader.state.reads) for one in some.values() for reader in one}
    began_s = time.monotonic()
    late: list[readers.Reader | guests.Guest] = []
    while left:
        time.sleep(LOOK_S)
        for pid, (reader, before) in list(left.items()):
            state = reader.state
            since_s = max(began_s, state.since_s)
            if state.reads > before:
                del left[pid]
            elif time.monotonic() - since_s > limit_s + reader.extra_s:
                late.append(left.pop(pid)[0])
    return [f"{reader.name}: no read ended in {limit_s:g} s" for reader in late]


def storm(
    world: world_.World,
    steps: Sequence[plan.Step],
    end_s: float,
    is_verbose: bool,
    is_over: threading.Event,
) -> None:
    """Do and undo the steps at their times, and check the guarantees.

    :param is_over: once set, no more steps are done, and those in effect are undone at once
    """
    began_s = time.monotonic()
    due: list[tuple[float, int, int, plan.Step]] = [
        (step.at_s, 1, step.number, step) for step in steps
    ]
    heapq.heapify(due)
    undo: dict[int, actions.Undo] = {}
    while due or time.monotonic() - began_s < end_s:
        if is_over.is_set() and end_s:
            print("the storm is over; ^C again ends it as it is", flush=True)
            due, end_s = [(0.0, *one[1:]) for one in due if one[3].number in undo], 0.0
            heapq.heapify(due)
        while due and due[0][0] <= time.monotonic() - began_s:
            _, is_begin, _, step = heapq.heappop(due)
            if is_begin:
                heapq.heappush(due, (step.until_s, 0, step.number, step))
                world.watch.begins(step)
                undo[step.number] = begin(world, step)
            else:
                attempt(world, step, undo.pop(step.number))
                world.watch.ended(step)
                world.tidy()
            if is_verbose:
                at_s = time.monotonic() - began_s
                print(f"[{at_s:.1f} s] {'begins' if is_begin else 'ends'} {step}", flush=True)
        world.look()
        time.sleep(LOOK_S)


def begin(world: world_.World, step: plan.Step) -> actions.Undo:
    """Do a step and count it; return the function that undoes it."""
    try:
        undo = attempt(world, step, functools.partial(actions.begin, world, step))
    except actions.NothingToDoError:
        world.tally.did(step, found_nothing=True)
        return lambda: None
    world.tally.did(step)
    return undo


def attempt(world: world_.World, step: plan.Step, work: Callable[[], object]) -> actions.Undo:
    """Do or undo a step; return the function that undoes it.  A failure is a finding.

    :raises actions.NothingToDoError: it has nothing to do
    """
    try:
        return cast(actions.Undo, work())
    except (errors.AcstorError, OSError, subprocess.SubprocessError) as e:
        world.found(f"{step} cannot be done or undone: {e}")
        return lambda: None


def wait_for_recovery(world: world_.World) -> None:
    """Wait until no fault is left; report each read that still waits as a finding."""
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


def read_all(world: world_.World) -> None:
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


def end(world: world_.World, before: dict[str, dict[str, int]]) -> None:
    """Check what is left after the readers' end."""
    world.end_readers()
    for name, host in world.hosts.items():
        for what, count in host.use().items():
            if count > before[name][what] + GROWTH[what]:
                world.found(f"{name}: {what} grew from {before[name][what]} to {count}")
        log = host.log()
        if "Traceback" in log:
            at = log.index("Traceback")
            world.found(f"{name}: the log has a traceback:\n{log[max(0, at - 500) : at + 2500]}")
        for words in ("data is lost", "fault of its own"):
            if words in log:
                world.found(f"{name}: the log says: {words}")
        if log.count(next_version.NEXT_SAYS) < host.starts_of_next:
            world.found(f"{name}: it is not the next version that {host.starts_of_next} starts had")
        if (died := log.count("; starting another")) > host.ended_by_us:
            world.found(
                f"{name}: {died} workers died, and {host.ended_by_us} were ended by the run"
            )


def play(options: argparse.Namespace, folder: pathlib.Path, is_over: threading.Event) -> list[str]:
    """Do a run; return its findings.

    :param is_over: set by the caller to end the storm early
    """
    names = [f"h{number}" for number in range(1, options.hosts + 1)]
    length_s = options.minutes * 60
    numbers = {int(number) for number in options.steps.split(",")} if options.steps else None
    steps = plan.only(plan.make(options.seed, names, length_s), numbers, options.until)
    world = world_.World(folder, options.seed, names, options.guests)
    with world.living():
        before = {name: host.use() for name, host in world.hosts.items()}
        try:
            storm(world, steps, length_s, options.verbose, is_over)
            if steps and not is_over.is_set() and world.tally.idle == len(steps):
                world.found("no step found anything to do")
            wait_for_recovery(world)
            calm_s = 0.0 if is_over.is_set() else min(plan.CALM_S, length_s / 2)
            storm(world, [], calm_s, False, is_over)
            read_all(world)
            end(world, before)
        finally:
            if world.watch.findings or sys.exc_info()[0]:
                keep(world, folder, steps)
    left = hosts.mounts(folder)
    if left:
        world.found(f"still mounted: {', '.join(left)}")
    print(*world.tally.table(), sep="\n")
    print(f"seed {options.seed}: {len(world.watch.findings)} findings")
    return world.watch.findings


def keep(world: world_.World, folder: pathlib.Path, steps: Sequence[plan.Step]) -> None:
    """Keep the logs of a run with findings."""
    kept = KEPT / f"seed-{world.seed}-{time.strftime('%H%M%S')}"
    kept.mkdir(parents=True)
    for name in world.names:
        with contextlib.suppress(OSError):
            shutil.copy(folder / name / "agent.log", kept / f"{name}.log")
            shutil.copy(folder / name / "acstor.conf", kept / f"{name}.conf")
        for reader in world.readers[name]:
            if isinstance(reader, guests.Guest):
                with contextlib.suppress(OSError):
                    shutil.copy(reader.console_path, kept / f"{name}-{reader.pid}.console")
    (kept / "steps").write_text("".join(f"{step}\n" for step in steps))
    (kept / "last-steps").write_text("\n".join(world.watch.history))
    (kept / "findings").write_text("\n".join(world.watch.findings))
    print(f"logs: {kept}")


@contextlib.contextmanager
def ended_by_operator() -> Iterator[threading.Event]:
    """Yield an event that the first ^C sets; the second one raises KeyboardInterrupt."""
    is_over = threading.Event()

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        is_over.set()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield is_over
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="decides everything (random)")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it goes on (5)")
    parser.add_argument("--hosts", type=int, default=3, help="how many (3)")
    parser.add_argument("--guests", type=int, default=0, help="how many, by QEMU (0)")
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
    if options.guests:
        command += f" --guests {options.guests}"
    for name in ("until", "steps"):
        if (value := getattr(options, name)) is not None:
            command += f" --{name} {value}"
    print(command, flush=True)
    faulthandler.dump_traceback_later(options.minutes * 60 * 2 + HANGS_S, exit=True)
    try:
        with runs.Run() as run, ended_by_operator() as is_over:
            findings = play(options, run.folder, is_over)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if findings:
        print(f"The same again: {command}; less of it: --until NUMBER, --steps NUMBER,NUMBER")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
