# SPDX-License-Identifier: Apache-2.0
"""Boots of one or several guests on one host: storage, policy, other load.

Images and the guests' own files are on a modelled device (tests/fakes/shaped_store.py), each image
at its own offset.  A host starts cold: with newly mounted file systems and a new agent.  An agent's
cache is on the machine's disk, not on the device.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from acstor_common import errors
from acstor_common.model import geometry
from evaluation.bench import boots
from evaluation.bench import harness
from evaluation.papers import s2_boot
from evaluation.papers import s2_replay
from tests.lab import agents
from tests.lab import guest
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

ALL_AT_ONCE = "all at once"
ONE_THEN_OTHERS = "one then others"
PREFETCHING = "prefetching boot"
ACSTOR = "acstor"
POLICIES = (ALL_AT_ONCE, ONE_THEN_OTHERS, PREFETCHING, ACSTOR)
PAPER_THINK_S = 3.0
"""Duration of the paper's boot on an SSD without waits: about its CPU time.

The recorded guest runs under emulation and takes several times as long; its think times are scaled
down uniformly to this duration.
"""
GIB = 1024 * geometry.MIB
PIECE_BYTES = 256 * geometry.KIB
"""Size of the programs' writes: a disk driver's request size."""
SPACING_BYTES = 4 * GIB
OWN_AT, LOAD_AT = 200 * GIB, 300 * GIB
BOOT_IMAGES_AT = 150 * GIB
OWN_SPACING_BYTES = GIB
BOOT_MEMORY_BYTES = 4 * GIB
KEPT_S = 3600.0
READY_S = 120.0
REPLAY_DEADLINE_S = 900.0
PAGE_BYTES = 4096
MEMORY_GROUPS = pathlib.Path("/sys/fs/cgroup/memory")


@dataclasses.dataclass(frozen=True)
class Scene:
    """The guests, their storage, and other load.

    :param device: "hdd", "ssd" or "network"
    :param is_same: all guests share one image
    :param think: duration of recorded think times; None: the paper's
    :param programs: number of programs that write to the device
    :param memory_bytes: of guests and their page cache together; None: unlimited
    :param is_real: QEMU's guests instead of replayed ones
    :param is_loaded: acstor has the boot images in memory before guests start
    :param boot_device: source of boot images: "images", the device of the images; "boot", an
        SSD of their own; None: no delay
    :param is_copied: each guest has a copy of the image as its disk, and writes to it
    """

    device: str = "hdd"
    policy: str = ACSTOR
    guests: int = 1
    is_same: bool = True
    think: float | None = None
    programs: int = 0
    memory_bytes: int | None = None
    is_real: bool = False
    is_loaded: bool = True
    boot_device: str | None = None
    is_copied: bool = False

    @property
    def images(self) -> int:
        """The number of images."""
        return 1 if self.is_same else self.guests


@dataclasses.dataclass(frozen=True)
class Place:
    """The paths of a running scene."""

    folder: pathlib.Path
    mount_point: pathlib.Path

    def image(self, boot: s2_boot.Boot, number: int) -> pathlib.Path:
        """Return an image's path on the device."""
        return self.mount_point / f"{boot.image_id(number)}.raw"

    def own(self, number: int) -> pathlib.Path:
        """Return the path of a guest's own file on the device."""
        return self.mount_point / f"own-{number}"

    @property
    def report(self) -> pathlib.Path:
        """The device's report at its end."""
        return self.folder / "report.json"


def of_guests(count: int) -> str:
    """Return a number of guests in words.

    >>> of_guests(1), of_guests(4)
    ('1 guest', '4 guests')
    """
    return "1 guest" if count == 1 else f"{count} guests"


def play(boot: s2_boot.Boot, scene: Scene) -> dict[str, Any]:
    """Boot a scene's guests; return the durations and the device's counters."""
    with runs.Run() as run:
        place = Place(run.folder, run.folder / "store")
        backings = _own_files(boot, scene, place)
        boots.read_whole(boot.image)  # below the device; its model has the delays
        with stored(boot, scene, place), contextlib.ExitStack() as stack:
            if scene.policy == ACSTOR:
                stack.enter_context(attached(boot, scene, place))
            stack.enter_context(programs(place, scene.programs))
            boot_them = _boot_real if scene.is_real else _replay
            found = boot_them(boot, scene, place, backings)
        return {**found, "device": json.loads(place.report.read_text())}


def _own_files(boot: s2_boot.Boot, scene: Scene, place: Place) -> list[pathlib.Path]:
    """Make the guests' own files; return each guest's image."""
    images = place.folder / "g" / "agent" / "mirror" / "images"
    used = []
    for number in range(scene.guests):
        image_no = 0 if scene.is_same else number
        path = place.image(boot, image_no)
        if scene.policy == ACSTOR:
            path = images / f"{boot.image_id(image_no)}.raw"
        used.append(path)
        own = place.folder / f"own-{number}"
        if scene.is_real:
            guest.make_overlay(own, path, "raw", boot.image.stat().st_size)
        else:
            own.touch()
    return used


def stored(
    boot: s2_boot.Boot, scene: Scene, place: Place
) -> contextlib.AbstractContextManager[None]:
    """Mount the device with all its files."""
    return mounted(scene.device, list(_files(boot, scene, place)), place)


@contextlib.contextmanager
def mounted(device: str, files: Sequence[dict[str, Any]], place: Place) -> Iterator[None]:
    """Mount a device with files; boot images may be on their own SSD."""
    place.mount_point.mkdir()
    plan = place.folder / "store.json"
    reported = {
        "devices": {"images": device, "boot": "ssd"},
        "mount_point": str(place.mount_point),
        "report": str(place.report),
        "files": files,
    }
    plan.write_text(json.dumps(reported))
    argv = [sys.executable, "-m", "tests.fakes.shaped_store", str(plan)]
    process = subprocess.Popen(argv, cwd=harness.ROOT, start_new_session=True)
    try:
        runs.wait_for(lambda: os.path.ismount(place.mount_point), READY_S, "the device", str)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_S)


def _files(boot: s2_boot.Boot, scene: Scene, place: Place) -> Iterator[dict[str, Any]]:
    """Yield the files of the device."""
    for number in range(scene.images):
        image_id = boot.image_id(number)
        yield file_of(f"{image_id}.raw", boot.image, number * SPACING_BYTES)
        if scene.policy == ACSTOR:
            at = BOOT_IMAGES_AT + number * OWN_SPACING_BYTES
            boot_image = boot.boot_image_file(number)
            yield file_of(f"{image_id}.acboot", boot_image, at, device=scene.boot_device)
            yield file_of(f"{image_id}.acmap", boot.map_file(number), at, device=None)
    for name, count, begin in (("own", scene.guests, OWN_AT), ("load", scene.programs, LOAD_AT)):
        for number in range(count):
            path = place.folder / f"{name}-{number}"
            path.touch()
            at = begin + number * OWN_SPACING_BYTES
            yield file_of(f"{name}-{number}", path, at, is_written=True)


def file_of(
    name: str,
    path: pathlib.Path,
    at: int,
    *,
    device: str | None = "images",
    is_written: bool = False,
) -> dict[str, Any]:
    """Return a file's entry in the device's plan."""
    return {
        "name": name,
        "path": str(path),
        "at": at,
        "device": device,
        "is_written": is_written,
    }


@contextlib.contextmanager
def attached(boot: s2_boot.Boot, scene: Scene, place: Place) -> Iterator[agents.Agent]:
    """Run an agent with the device as source, and boot images loaded if wanted."""
    with local.agent(
        place.folder / "g",
        local.ImageFolder(place.folder / "unused"),
        sections={"source_file": {"folder": place.mount_point}},
        constants={tuned.BOOT_IDLE_S: KEPT_S},
        boot_memory_limit_bytes=BOOT_MEMORY_BYTES,
    ) as agent:
        agent.wait_ready()
        if scene.is_loaded:
            for number in range(scene.images):
                boots.wait_ready(agent, boot.image_id(number))
        yield agent


@contextlib.contextmanager
def programs(place: Place, count: int) -> Iterator[None]:
    """Let programs write to the device at full speed, each to its own file."""
    is_over = threading.Event()
    writers = [
        threading.Thread(target=_write, args=(place.mount_point / f"load-{number}", is_over))
        for number in range(count)
    ]
    for writer in writers:
        writer.start()
    try:
        time.sleep(1.0 if count else 0.0)
        yield
    finally:
        is_over.set()
        for writer in writers:
            writer.join()


def _write(path: pathlib.Path, is_over: threading.Event) -> None:
    """Write pieces in sequence, again from the start at the file's full length."""
    fd, at = os.open(path, os.O_WRONLY), 0
    try:
        while not is_over.is_set():
            os.pwrite(fd, s2_replay.WRITTEN[:PIECE_BYTES], at)
            at = (at + PIECE_BYTES) % (64 * geometry.MIB)
    finally:
        os.close(fd)


def spans(ops: Sequence[s2_boot.Op]) -> list[tuple[int, int]]:
    """Return a boot's reads of its image, in pages, ordered by offset, merged.

    >>> spans([(0.0, "r", 8192, 512), (0.0, "w", 0, 512), (0.1, "r", 0, 4097)])
    [(0, 12288)]
    """
    pages = {
        page
        for _, kind, offset, length in ops
        if kind == s2_boot.READ
        for page in range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES))
    }
    merged: list[tuple[int, int]] = []
    for page in sorted(pages):
        start, length = merged[-1] if merged else (0, 0)
        if merged and start + length == page * PAGE_BYTES:
            merged[-1] = (start, length + PAGE_BYTES)
        else:
            merged.append((page * PAGE_BYTES, PAGE_BYTES))
    return merged


def think(boot: s2_boot.Boot, scene: Scene) -> float:
    """Return the factor of recorded think times."""
    if scene.think is not None:
        return scene.think
    return PAPER_THINK_S / sum(op[0] for op in boot.ops())


def _replay(
    boot: s2_boot.Boot, scene: Scene, place: Place, backings: Sequence[pathlib.Path]
) -> dict[str, Any]:
    """Boot replayed guests."""
    plan = place.folder / "replay.json"
    with _memory(scene.memory_bytes) as group:
        plan.write_text(
            json.dumps(
                {
                    "ops": str(boot.ops_file(is_copied=scene.is_copied)),
                    "think": think(boot, scene),
                    "in_turn": scene.policy == ONE_THEN_OTHERS,
                    "memory": str(group) if group else None,
                    "guests": [
                        {"image": str(backing), "own": str(place.own(number))}
                        for number, backing in enumerate(backings)
                    ],
                    "prefetch": _prefetched(boot, scene, place),
                }
            )
        )
        argv = [sys.executable, "-m", "evaluation.papers.s2_replay", str(plan)]
        done = subprocess.run(
            argv, cwd=harness.ROOT, capture_output=True, text=True, timeout=REPLAY_DEADLINE_S
        )
    if done.returncode:
        raise errors.Unusable("the replay", done.stderr[-1000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _prefetched(boot: s2_boot.Boot, scene: Scene, place: Place) -> list[dict[str, Any]]:
    if scene.policy != PREFETCHING:
        return []
    wanted = spans(boot.ops())
    return [
        {"image": str(place.image(boot, number)), "spans": wanted} for number in range(scene.images)
    ]


@contextlib.contextmanager
def _memory(limit_bytes: int | None) -> Iterator[pathlib.Path | None]:
    """Make a cgroup with a memory limit that includes page cache."""
    if limit_bytes is None:
        yield None
        return
    group = MEMORY_GROUPS / f"acstor-s2-{os.getpid()}"
    if not MEMORY_GROUPS.is_dir():
        raise harness.CannotRun("no memory controller of cgroup version 1 is mounted")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()


def _boot_real(
    boot: s2_boot.Boot, scene: Scene, place: Place, backings: Sequence[pathlib.Path]
) -> dict[str, Any]:
    """Boot guests of QEMU."""
    began_s = time.monotonic()
    for one in _prefetched(boot, scene, place):
        reader = threading.Thread(
            target=s2_replay.prefetch, args=(one["image"], one["spans"]), daemon=True
        )
        reader.start()
    numbers = range(scene.guests)
    groups = [numbers[:1], numbers[1:]] if scene.policy == ONE_THEN_OTHERS else [numbers]
    ends: list[float] = []
    with contextlib.ExitStack() as stack:
        for group in groups:
            guests = [stack.enter_context(_qemu(place, number)) for number in group]
            before_s = time.monotonic() - began_s
            seen = guest.boot_all(guests)
            ends += [before_s + (milestones.login_s or 0.0) for milestones in seen]
    return {"all_s": round(max(ends), 3), "each_s": [round(end, 3) for end in ends]}


def _qemu(place: Place, number: int) -> guest.Guest:
    folder = place.folder / f"guest-{number}"
    folder.mkdir()
    disk = folder / "disk.qcow2"
    disk.symlink_to(place.own(number))
    host = local.LocalHost(f"g{number}", "", local.LOOPBACK, folder)
    return guest.Guest(host, disk, cache="writethrough")


@contextlib.contextmanager
def booted(boot: s2_boot.Boot, scene: Scene) -> Iterator[list[guest.Guest]]:
    """Boot a scene's QEMU guests concurrently, and keep them running."""
    with runs.Run() as run, contextlib.ExitStack() as stack:
        place = Place(run.folder, run.folder / "store")
        _own_files(boot, scene, place)
        boots.read_whole(boot.image)
        stack.enter_context(stored(boot, scene, place))
        if scene.policy == ACSTOR:
            stack.enter_context(attached(boot, scene, place))
        guests = [stack.enter_context(_qemu(place, number)) for number in range(scene.guests)]
        guest.boot_all(guests)
        yield guests
