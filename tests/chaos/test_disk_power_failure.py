# SPDX-License-Identifier: Apache-2.0
"""Power failures: each unsynced page may or may not have reached the disk."""

import errno
import os
import random
import uuid

import pytest

from acstor_agent.core.disks import disk_header
from acstor_agent.disks import disk_files
from acstor_agent.disks import disks
from tests.fakes import one_host

PAGE = 4096
CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(12 * CHUNK + 777)
SIZE = 16 * CHUNK
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
FAILURES = 8


class SafePages:
    """Durable pages of files: all of a file at its last fdatasync; later pages are uncertain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._safe: dict[str, bytes] = {}
        self._fdatasync = os.fdatasync
        self.fails_next = False
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        if self.fails_next:
            self.fails_next = False
            raise OSError(errno.EIO, "the power fails")
        self._fdatasync(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        with open(path, "rb") as file:
            self._safe[path] = file.read()

    def fail(self, folder: os.PathLike[str], rng: random.Random) -> None:
        """Leave each page of each file at its durable or at its present content."""
        for entry in os.scandir(folder):
            with open(entry.path, "rb+") as file:
                now = file.read()
                safe = self._safe.get(entry.path, now)
                pages = (rng.choice([safe, now])[at : at + PAGE] for at in range(0, len(now), PAGE))
                left = b"".join(pages)
                file.seek(0)
                file.write(left)
            self._safe[entry.path] = left


def pages_of(data: bytes | bytearray) -> list[bytes]:
    return [bytes(data[at : at + PAGE]) for at in range(0, len(data), PAGE)]


@pytest.mark.allow_log(r"chunks were not synced when the host went down|the power fails")
@pytest.mark.parametrize("seed", range(12))
async def test_pages_after_a_power_failure_are_old_or_new_ones(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    async with one_host.one_host(tmp_path, data=DATA) as host:
        folder = tmp_path / "disks"
        safe = SafePages(monkeypatch)
        monkeypatch.setattr(disk_files.DiskFiles, "note_failure", lambda files: None)  # no power
        image = await host.mirrors.attach_image(one_host.IMAGE)
        one = await disks.Disks(folder, host.opened, bytes(16)).make_disk(DISK, image, SIZE)
        safe._sync(one.fd)
        safe._sync(one._files._state_fd)
        may_be = [{page} for page in pages_of(DATA.ljust(SIZE, b"\0"))]
        for failure in range(FAILURES):
            for _ in range(rng.randrange(12)):
                if rng.random() < 0.25:
                    await one.sync()
                    now = b"".join(
                        [bytes(await one.read(at, CHUNK)) for at in range(0, SIZE, CHUNK)]
                    )
                    may_be = [{page} for page in pages_of(now)]
                first = rng.randrange(SIZE // PAGE)
                count = min(rng.choice([1, 1, 2, 4, 5, 9]), SIZE // PAGE - first)
                data = rng.randbytes(count * PAGE)
                await one.write(first * PAGE, data)
                for page_no, page in enumerate(pages_of(data), first):
                    may_be[page_no].add(page)
            if rng.random() < 0.5:
                safe.fails_next = True
                with pytest.raises(OSError, match="the power fails"):
                    await one.sync()
            await one.aclose()
            safe.fail(folder, rng)
            boot_id = uuid.UUID(int=failure + 1).bytes
            one = await disks.Disks(folder, host.opened, boot_id).open(DISK)
            left = b"".join([bytes(await one.read(at, CHUNK)) for at in range(0, SIZE, CHUNK)])
            for page_no, page in enumerate(pages_of(left)):
                assert page in may_be[page_no], f"page {page_no} after failure {failure}"
            may_be = [{page} for page in pages_of(left)]
        await one.aclose()
