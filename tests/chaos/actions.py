# SPDX-License-Identifier: Apache-2.0
"""Actions of a plan's steps on a cloud, and their reversal.

Each action finds the cloud in any state, and may have nothing to do.  It returns a function that
undoes it under any circumstances.

"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Protocol

from acstor_common import errors
from acstor_policies import variants
from tests.chaos import chaos_hosts
from tests.chaos import guests
from tests.chaos import hostile_source
from tests.chaos import plan
from tests.chaos import readers
from tests.fakes import http_server
from tests.lab import runs

Undo = Callable[[], object]
ROT_BYTES = 64
CLOCK_OFF_S = {"minutes": 3600.0, "days": 40 * 86400.0, "years": 25 * 365 * 86400.0}
"""The largest clock errors, ahead or behind; some years reach beyond 2038."""
SPARE_READ_S = 300.0
"""Limit for a read of the spare image, under any faults."""
OTHER_VARIANTS = (
    ("", variants.Variant.CACHE_LFU, variants.Variant.CACHE_FIFO),
    ("", variants.Variant.NO_READ_AHEAD, variants.Variant.READ_AHEAD_BY_UNITS),
    ("", variants.Variant.NO_COPY_HINTS),
    (
        "",
        variants.Variant.NO_PREFETCH,
        variants.Variant.UNBOUNDED_PREFETCH,
        variants.Variant.PREFETCH_BY_LIMIT,
    ),
    ("", variants.Variant.NO_HEDGES),
    ("", variants.Variant.NO_SOURCE_FIRST),
    ("", variants.Variant.NO_REFERRALS, variants.Variant.RING),
    ("", variants.Variant.NO_ADVERTISEMENTS),
)
"""Options that an upgrade may change; all may differ among the hosts of a cloud."""


class NothingToDoError(Exception):
    """A step has nothing to do, as when a host has no worker to stop."""


class World(Protocol):
    """The target of actions."""

    hosts: dict[str, chaos_hosts.Host]
    source: hostile_source.HostileSource
    server: http_server.LocalServer
    image_ids: list[str]
    spare_id: str
    truth: pathlib.Path
    readers: dict[str, list[readers.Reader | guests.Guest]]
    aside: list[threading.Thread]
    next_tree: pathlib.Path

    def write_ring(self, vnodes: dict[str, int]) -> None:
        """Publish a ring table."""

    def replace_reader(self, host: str, number: int) -> None:
        """Kill a reader, which must end, and start another one."""

    def found(self, what: str) -> None:
        """Record a broken guarantee."""


Action = Callable[[World, plan.Step, random.Random], Undo | None]


def begin(world: World, step: plan.Step) -> Undo:
    """Do a step; return the function that undoes it.

    :raises NothingToDoError: it has nothing to do
    """
    return ACTIONS[step.name](world, step, random.Random(step.seed)) or _nothing


def _nothing() -> None:
    """Undo an action that is over already."""


# Processes


def _kill_worker(world: World, step: plan.Step, _: random.Random) -> None:
    world.hosts[step.host].end_worker(signal.SIGKILL)


def _stop_worker(world: World, step: plan.Step, _: random.Random) -> None:
    world.hosts[step.host].end_worker(signal.SIGTERM)


def _freeze_worker(world: World, step: plan.Step, _: random.Random) -> Undo:
    pid = world.hosts[step.host].worker_pid()
    if not pid:
        raise NothingToDoError
    return _frozen(pid)


def _frozen(pid: int) -> Undo:
    since = runs.start_ticks(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        if since is not None and runs.start_ticks(pid) == since:  # the pid may have been reused
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return thaw


def _kill_supervisor(world: World, step: plan.Step, _: random.Random) -> Undo:
    host = world.hosts[step.host]
    host.end_supervisor(signal.SIGKILL)
    return host.start


def _kill_agent(world: World, step: plan.Step, _: random.Random) -> Undo:
    host = world.hosts[step.host]
    host.end_supervisor(signal.SIGKILL, with_worker=True)
    return host.start


def _upgrade(world: World, step: plan.Step, rng: random.Random) -> Undo:
    host = world.hosts[step.host]
    host.end_supervisor(signal.SIGTERM)
    match step.way:
        case "other options":
            chosen = filter(None, map(rng.choice, OTHER_VARIANTS))
            host.configure({"variants": ",".join(chosen)})
        case "other version":  # to the other version, and the next time back
            host.tree = None if host.tree else world.next_tree
    return host.start


def _start_read_only(world: World, step: plan.Step, _: random.Random) -> Undo:
    host = world.hosts[step.host]
    host.end_supervisor(signal.SIGTERM)
    with contextlib.suppress(errors.Unusable):  # open for writing: it stays writable
        host.remount("ro")
    host.start()
    return lambda: host.remount("rw")


# The source


def _break_source(world: World, step: plan.Step, _: random.Random) -> Undo:
    world.source.break_(step.way)
    return world.source.recover


def _delete_image(world: World, step: plan.Step, rng: random.Random) -> Undo:
    image_id = rng.choice(world.image_ids)
    names = [name for name in world.server.files if name.startswith(image_id)]
    gone = {name: world.server.files.pop(name) for name in names}
    return lambda: world.server.files.update(gone)


# Links, the ring


def _break_link(world: World, step: plan.Step, rng: random.Random) -> Undo:
    relay = world.hosts[step.host].relay
    match step.way:
        case "silent":
            relay.lost_share = 1.0
        case "lossy":
            relay.lost_share = rng.choice((0.1, 0.4))
        case "late":
            relay.late_share = 0.8
        case "cut":
            relay.cut()

    def undo() -> None:
        relay.lost_share = relay.late_share = 0.0
        relay.is_cut = False

    return undo


def _remap(world: World, step: plan.Step, rng: random.Random) -> None:
    names = sorted(world.hosts)
    if step.way == "without one" and len(names) > 1:
        names.remove(rng.choice(names))
    world.write_ring({name: rng.choice((10, 50, 100, 200)) for name in names})


# Disks


def _break_disk(world: World, step: plan.Step, _: random.Random) -> Undo:
    host = world.hosts[step.host]
    if step.way == "full":
        host.fill_disk()
        return host.clear_disk
    host.limit_files(chaos_hosts.FILE_LIMIT_BYTES)
    return host.limit_files


def _rot(world: World, step: plan.Step, rng: random.Random) -> None:
    slabs = world.hosts[step.host].slabs()
    if not slabs:
        raise NothingToDoError
    with contextlib.suppress(OSError), rng.choice(slabs).open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(ROT_BYTES):
            at = rng.randrange(max(1, size))
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([(byte or b"\0")[0] ^ 0x10]), at)


def _delete_slab(world: World, step: plan.Step, rng: random.Random) -> None:
    slabs = world.hosts[step.host].slabs()
    if not slabs:
        raise NothingToDoError
    for slab in slabs if step.way == "all" else rng.sample(slabs, min(1, len(slabs))):
        with contextlib.suppress(OSError):
            slab.unlink(missing_ok=True)


# Clocks


def _set_clock(world: World, step: plan.Step, rng: random.Random) -> Undo:
    clock = world.hosts[step.host].clock
    clock.set_off(rng.choice((-1, 1)) * rng.uniform(0.1, 1.0) * CLOCK_OFF_S[step.way])
    return lambda: clock.set_off(0.0)


# Readers and operators


def _kill_reader(world: World, step: plan.Step, rng: random.Random) -> None:
    world.replace_reader(step.host, rng.randrange(len(world.readers[step.host])))


def _stop_reader(world: World, step: plan.Step, rng: random.Random) -> Undo:
    return _frozen(rng.choice(world.readers[step.host]).pid)


FILL_MODES = {"hydrate": "urgent", "pause": "paused", "resume": "normal"}


def _be_operator(world: World, step: plan.Step, rng: random.Random) -> Undo:
    host, image_id = world.hosts[step.host], rng.choice(world.image_ids)
    if step.way in FILL_MODES:
        mode = FILL_MODES[step.way]
        return _aside(world, lambda: host.ask("set-fill-mode", image_id=image_id, mode=mode))
    return _aside(world, lambda: host.ask(step.way, image_id=image_id))


def _attach_and_drop(world: World, step: plan.Step, _: random.Random) -> Undo:
    host, path = world.hosts[step.host], world.truth / world.spare_id

    def work() -> None:
        host.ask("attach-image", image_id=world.spare_id)
        argv = ["dd", f"if={host.image_path(world.spare_id)}", "iflag=direct", "bs=1M"]
        if why := read_wrong([*argv, "status=none"], path.read_bytes(), SPARE_READ_S):
            world.found(f"{step.host}: a read of the spare image: {why}")
        host.ask("detach-image", image_id=world.spare_id)

    return _aside(world, work)


def read_wrong(argv: Sequence[str], wanted: bytes, limit_s: float) -> str:
    """Let a program read; return the error in its output, or ""."""
    done = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said, why = done.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        done.kill()  # no wait: it may hang in the kernel
        return f"it did not end in {limit_s:g} s"
    if done.returncode:
        return why.decode()
    return "" if said == wanted else "wrong bytes"


def _aside(world: World, work: Callable[[], object]) -> Undo:
    """Run slow work in a thread; an agent that refuses it, or is away, is no finding."""

    def run() -> None:
        with contextlib.suppress(errors.AcstorError, OSError, ValueError, TimeoutError):
            work()

    thread = threading.Thread(target=run, daemon=True)
    world.aside = [one for one in world.aside if one.is_alive()]
    world.aside.append(thread)
    thread.start()
    return _nothing


ACTIONS: dict[str, Action] = {
    "kill-worker": _kill_worker,
    "stop-worker": _stop_worker,
    "freeze-worker": _freeze_worker,
    "kill-supervisor": _kill_supervisor,
    "kill-agent": _kill_agent,
    "upgrade": _upgrade,
    "start-read-only": _start_read_only,
    "source": _break_source,
    "delete-image": _delete_image,
    "link": _break_link,
    "remap": _remap,
    "disk": _break_disk,
    "rot": _rot,
    "delete-slab": _delete_slab,
    "clock": _set_clock,
    "kill-reader": _kill_reader,
    "stop-reader": _stop_reader,
    "operator": _be_operator,
    "attach-and-drop": _attach_and_drop,
}

assert set(ACTIONS) == set(plan.KINDS), "each kind of step has its action"
