# SPDX-License-Identifier: Apache-2.0
"""Each file system call of disks fails: answered writes stay, and a lost one is an error."""

import copy
import pathlib
import random
import uuid
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any

import pytest
import trio

from acstor_agent.core.disks import disk_header
from acstor_agent.disks import disk
from acstor_agent.disks import disks
from acstor_common import errors
from acstor_common.formats import chunk_map
from tests.fakes import failing_calls
from tests.fakes import one_host

pytestmark = failing_calls.marks

CHUNK, SECTOR = one_host.CHUNK, 512
IMAGE = one_host.image_bytes(4 * CHUNK + 1024)
SIZE = 6 * CHUNK
BASE = IMAGE.ljust(SIZE, b"\0")
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
OTHER = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e22")
BOOT, NEXT_BOOT = uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes
KIB = 1024


class MemoryImage:
    """An image in memory, the mirror of itself."""

    map = chunk_map.ChunkMap.parse(one_host.map_of(IMAGE), "the map")
    size_bytes = len(IMAGE)

    async def get_mirror(self, _image_id: object, _guest: object) -> Any:
        return self

    async def read_at(self, offset: int, length: int, _guest: object = None) -> bytes:
        return IMAGE[offset : offset + length]


class Expected:
    """Each sector's possible bytes, now and after a power failure."""

    def __init__(self) -> None:
        self.now = [{sector} for sector in sectors(BASE)]
        self.since_sync = copy.deepcopy(self.now)

    def note(self, what: str, offset: int = 0, data: bytes = b"") -> None:
        """Record an operation that begins or ended."""
        if what == "synced":
            self.since_sync = copy.deepcopy(self.now)
        for number, sector in enumerate(sectors(data), offset // SECTOR):
            self.since_sync[number].add(sector)
            self.now[number] = {sector} if what == "written" else {*self.now[number], sector}

    def check(self, raw: bytes, *, is_rebooted: bool = False) -> None:
        possible = self.since_sync if is_rebooted else self.now
        for number, sector in enumerate(sectors(raw)):
            assert sector in possible[number], f"sector {number}"


def sectors(data: bytes) -> list[bytes]:
    return [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]


Tell = Callable[..., None]
Step = Callable[[disk.Disk, Tell], Awaitable[None]]


def write(offset: int, length: int) -> Step:
    data = random.Random(offset + length).randbytes(length)

    async def step(one: disk.Disk, tell: Tell) -> None:
        tell("writes", offset, data)
        assert await one.write(offset, data) == length
        tell("written", offset, data)

    return step


async def sync(one: disk.Disk, tell: Tell) -> None:
    await one.sync()
    tell("synced")


async def read(one: disk.Disk, _tell: Tell) -> None:
    for at in range(0, SIZE, CHUNK):
        await one.read(at, CHUNK)


STEPS: list[Step] = [
    write(3 * KIB, 2 * KIB),  # in a chunk of the image
    write(CHUNK, CHUNK),
    write(3 * CHUNK - 4 * KIB, 8 * KIB),
    sync,
    write(CHUNK + KIB, 4 * KIB),  # in place
    write(5 * CHUNK, KIB),  # after the image
    read,
    sync,
    write(4 * CHUNK, 4 * KIB),
]


def disks_in(folder: pathlib.Path, boot_id: bytes = BOOT) -> disks.Disks:
    return disks.Disks(folder / "disks", MemoryImage(), boot_id)  # type: ignore[arg-type]


async def content(one: disk.Disk) -> bytes:
    return b"".join([bytes(await one.read(at, CHUNK)) for at in range(0, SIZE, CHUNK)])


async def attempt(calls: failing_calls.FailingCalls, work: Awaitable[Any]) -> Any:
    """Await an operation; return None if it fails because of the fault."""
    try:
        return await work
    except (OSError, errors.FormatError):
        assert calls.hit
        return None


async def live(calls: failing_calls.FailingCalls) -> None:
    expected = Expected()
    reported: list[str] = []

    def tell(what: str, *more: Any) -> None:
        reported.append(what)
        expected.note(what, *more)

    with calls:
        known = disks_in(calls.folder)
        one = await attempt(calls, known.make_disk(DISK, MemoryImage(), SIZE))  # type: ignore[arg-type]
        if one is not None:
            for step in STEPS:
                await attempt(calls, step(one, tell))
            check_listed(known, calls)
        if await attempt(calls, known.make_disk(OTHER, MemoryImage(), SIZE)):  # type: ignore[arg-type]
            await attempt(calls, known.drop(OTHER))
    if one is None:
        one = await open_or_make(known, DISK)
    syncs = len([what for what in reported if what == "synced"])
    assert calls.hit or syncs == STEPS.count(sync)
    has_failed = one._sync_failure is not None
    await check_now(one, expected, tell, has_failed=has_failed)
    await one.aclose()
    has_failed = has_failed and not calls.fault.is_lasting
    for boot_id in (BOOT, NEXT_BOOT):
        known = disks_in(calls.folder, boot_id)
        one = await known.open(DISK)
        expected.check(await content(one), is_rebooted=boot_id is NEXT_BOOT)
        if not calls.fault.is_lasting:
            assert (one._sync_failure is not None) == has_failed
        await one.aclose()
    await check_files(known)


def check_listed(known: disks.Disks, calls: failing_calls.FailingCalls) -> None:
    """A folder that cannot be read is an error: images without disks are evicted."""
    try:
        assert known.list_disks() == [DISK]
    except OSError:
        assert calls.hit


async def check_now(one: disk.Disk, expected: Expected, tell: Tell, *, has_failed: bool) -> None:
    """The fault is over: writes work, and syncs unless one has failed."""
    expected.check(await content(one))
    await write(2 * CHUNK, 2 * KIB)(one, tell)
    if has_failed:
        with pytest.raises(OSError, match=r"Input/output error|No space left"):
            await one.sync()
    else:
        await sync(one, tell)
    expected.check(await content(one))


async def open_or_make(known: disks.Disks, disk_id: disk_header.DiskId) -> disk.Disk:
    if known.has_disk(disk_id):
        return await known.open(disk_id)
    return await known.make_disk(disk_id, MemoryImage(), SIZE)  # type: ignore[arg-type]


async def check_files(known: disks.Disks) -> None:
    """Only files of disks are left; the other disk can be made and dropped."""
    if known.has_disk(OTHER):
        await known.drop(OTHER)
    left = [path for path in known.folder.iterdir() if not path.name.startswith(DISK)]
    assert [path.name for path in left if path.stat().st_blocks] == []
    other = await known.make_disk(OTHER, MemoryImage(), SIZE)  # type: ignore[arg-type]
    assert await content(other) == BASE
    await known.drop(OTHER)
    assert {path.suffix for path in known.folder.iterdir()} <= {".data", ".acdisk", ".sync-failed"}


def test_disk_with_a_failed_call_loses_no_answered_write(tmp_path: pathlib.Path) -> None:
    for calls in failing_calls.each_call(tmp_path, least=100):
        trio.run(live, calls)


async def work(folder: pathlib.Path, tell: Tell) -> None:
    def tell_all(*what: Any) -> None:
        tell(what)

    known = disks_in(folder)
    one = await known.make_disk(DISK, MemoryImage(), SIZE)  # type: ignore[arg-type]
    for step in STEPS:
        await step(one, tell_all)
    await known.make_disk(OTHER, MemoryImage(), SIZE)  # type: ignore[arg-type]
    await known.drop(OTHER)
    await one.aclose()


async def check_killed(folder: pathlib.Path, reported: list[Any]) -> None:
    expected = Expected()
    for what in reported:
        expected.note(*what)
    known = disks_in(folder)
    one = await open_or_make(known, DISK)
    expected.check(await content(one))
    await one.aclose()
    one = await disks_in(folder, NEXT_BOOT).open(DISK)
    expected.check(await content(one), is_rebooted=True)
    await write(0, CHUNK)(one, expected.note)
    await sync(one, expected.note)
    await one.aclose()
    await check_files(known)


def test_disk_of_a_worker_killed_at_a_call_loses_no_answered_write(tmp_path: pathlib.Path) -> None:
    def run(folder: pathlib.Path, tell: Tell) -> None:
        trio.run(work, folder, tell)

    for folder, reported, is_killed in failing_calls.each_kill(tmp_path, 60, run):
        trio.run(check_killed, folder, reported)
        assert is_killed or len(reported) == 2 * 6 + STEPS.count(sync)
