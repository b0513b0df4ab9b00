# SPDX-License-Identifier: Apache-2.0
"""Each file system call on files of images fails: each file is right or absent."""

import contextlib
import pathlib
import random
import types
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import trio

from acstor_agent.core.mount import inodes
from acstor_agent.images.image import mirrors
from acstor_agent.images.read import boot_head
from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources import glance
from acstor_agent.sources.wrappers import full_download
from acstor_cinder import base_files
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.controller import image_export
from tests.fakes import failing_calls
from tests.fakes import faulty_source
from tests.fakes import glance_records as records
from tests.fakes import one_host

pytestmark = failing_calls.marks

IMAGE = one_host.IMAGE
DATA = one_host.image_bytes(6 * one_host.CHUNK)
MAP = one_host.map_of(DATA)
BLOBS = {
    base.Blob(IMAGE, base.BlobKind.IMAGE): DATA,
    base.Blob(IMAGE, base.BlobKind.CHUNK_MAP): MAP,
    base.Blob(IMAGE, base.BlobKind.BOOT_IMAGE): one_host.boot_image_of(DATA, range(4)),
}
FAILURES = (OSError, errors.AcstorError)


def source(blobs: dict[base.Blob, bytes] = BLOBS) -> base.Source:
    return faulty_source.FaultySource(faulty_source.MemorySource(blobs))


def no_leftovers(folder: pathlib.Path) -> bool:
    return not list(folder.rglob(f"{atomic_file.INCOMING}*"))


def images_in(folder: pathlib.Path) -> mirrors.Mirrors:
    async def make(image_map: chunk_map.ChunkMap) -> Any:
        return types.SimpleNamespace(map=image_map, attached_s=None)

    numbers = inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
    made = mirrors.Mirrors(folder / "maps", base.Wrapper(source()), numbers)
    made.set_mirror_factory(make)
    return made


async def use_images(folder: pathlib.Path, tell: Callable[[str], None]) -> None:
    images = images_in(folder)
    await images.attach_image(IMAGE)
    tell("attached")
    images.save_time_stamp(IMAGE, 10**18)
    assert images.touched_ns(IMAGE) == 10**18
    images = images_in(folder)
    await images.open_attached(IMAGE)
    assert images.size_bytes(IMAGE) in (len(DATA), None)
    tell("detaches")
    images.detach_image(IMAGE)
    tell("detached")


async def check_images(folder: pathlib.Path, reported: list[str]) -> None:
    images = images_in(folder)
    assert images.is_attached(IMAGE) == (folder / "maps" / f"{IMAGE}.acmap").exists()
    if "detaches" not in reported:
        assert images.is_attached(IMAGE) or "attached" not in reported
    assert not (images.is_attached(IMAGE) and "detached" in reported)
    found: Any = await images.attach_image(IMAGE)
    assert [found.map.cid_of(n) for n in range(6)] == [
        chunk_map.ChunkMap.parse(MAP, "the map").cid_of(n) for n in range(6)
    ]
    assert no_leftovers(folder)


def test_image_is_attached_or_detached_after_a_failed_call(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=30):
        reported: list[str] = []
        with calls:
            check_failure(calls, use_images, reported.append)
        assert calls.hit or reported == ["attached", "detaches", "detached"]
        trio.run(check_images, calls.folder, reported)


def check_failure(
    calls: failing_calls.FailingCalls, work: Callable[..., Awaitable[None]], *more: object
) -> None:
    try:
        trio.run(work, calls.folder, *more)
    except FAILURES:
        assert calls.hit
    except AssertionError:
        if not calls.hit:
            raise


def test_image_is_attached_or_detached_after_a_kill_at_a_call(tmp_path):
    def work(folder: pathlib.Path, tell: Callable[[str], None]) -> None:
        trio.run(use_images, folder, tell)

    for folder, reported, is_killed in failing_calls.each_kill(tmp_path, 12, work):
        assert is_killed or reported == ["attached", "detaches", "detached"]
        trio.run(check_images, folder, reported)


async def load_head(folder: pathlib.Path) -> None:
    image_map = chunk_map.ChunkMap.parse(MAP, "the map")
    for _ in range(2):
        head = boot_head.BootHead(image_map, folder / "head", source(), "the boot image")
        await head.load()
        assert len(head.frames) == 4
        head.forget_head()
        await head.load()


def test_boot_image_head_is_loaded_despite_a_failed_call(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=60):
        with calls:
            trio.run(load_head, calls.folder)
        atomic_file.remove_leftovers(calls.folder)  # as the next worker does
        trio.run(load_head, calls.folder)
        assert [path.name for path in calls.folder.iterdir()] == ["head"]


async def download(calls: failing_calls.FailingCalls) -> None:
    blob = base.Blob(IMAGE, base.BlobKind.IMAGE)
    place = glance.BlobLocation(IMAGE, len(DATA), chunk_map.UNKNOWN_OS_HASH)
    limiter = trio.CapacityLimiter(1)
    copy = full_download.FullDownload(blob, place, len(DATA), "Glance", limiter)
    parts = [DATA[at : at + 20_000] for at in range(0, len(DATA), 20_000)]

    async def stream(receive: Callable[[bytes], Awaitable[None]]) -> None:
        for part in parts:
            await receive(part)

    with calls:
        with copy.download_during():
            await copy.download_all(calls.folder, random.Random(1), stream)
        with copy.hold_open():
            await read_copy(copy, blob, calls)
        copy.drop()
        await copy.wait_deleted()


async def read_copy(
    copy: full_download.FullDownload, blob: base.Blob, calls: failing_calls.FailingCalls
) -> None:
    run = driver.BlobRun(blob, [base.BlobPiece(0, len(DATA))], "Glance", lambda _: None)
    done = 0
    try:
        await copy.wait_for(len(DATA), trio.current_time())
        while done < len(DATA):
            done = await copy.read_into(run, done)
        assert bytes(run.buffers[0]) == DATA
    except errors.ChunkUnavailable:
        assert calls.hit


def test_copy_of_an_image_is_right_or_an_error_after_a_failed_call(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=8):
        trio.run(download, calls)
        assert not list(calls.folder.iterdir())


class MemoryGlance:
    """An image with its chunk map, for exports."""

    def __init__(self) -> None:
        image_id = ids.parse_image_id(records.IMAGE_ID)
        os_hash = chunk_map.OsHash(*records.image().os_hash)
        self.blobs = {
            records.IMAGE_ID: records.BYTES,
            records.ARTEFACT_ID: one_host.map_of(records.BYTES, image_id, os_hash=os_hash),
        }

    def artefact_of(self, image: image_record.Image, kind: artefacts.Kind) -> Any:
        return records.artefact(image, kind) if kind is artefacts.Kind.CHUNK_MAP else None

    @contextlib.contextmanager
    def open_image_data(self, image_id: str) -> Iterator[Iterator[bytes]]:
        yield iter([self.blobs[image_id]])


def export(folder: pathlib.Path, glance_images: MemoryGlance) -> None:
    image_export.export(glance_images, records.image(), folder)  # type: ignore[arg-type]


def check_exported(folder: pathlib.Path, glance_images: MemoryGlance) -> None:
    """Each name is a complete file; the next export completes the others."""
    exported = {"raw": records.IMAGE_ID, "acmap": records.ARTEFACT_ID}
    expected = {f"{records.IMAGE_ID}.{end}": name for end, name in exported.items()}
    for name, blob in expected.items():
        path = folder / name
        assert not path.exists() or path.read_bytes() == glance_images.blobs[blob]
    export(folder, glance_images)
    assert {path.name for path in folder.iterdir()} == set(expected)


def test_exported_file_is_complete_or_absent_after_a_failed_call(tmp_path):
    glance_images = MemoryGlance()
    for calls in failing_calls.each_call(tmp_path, least=40):
        with calls:
            try:
                export(calls.folder, glance_images)
            except FAILURES:
                assert calls.hit
        check_exported(calls.folder, glance_images)


def test_exported_file_is_complete_or_absent_after_a_kill_at_a_call(tmp_path):
    glance_images = MemoryGlance()
    for folder, _told, _is_killed in failing_calls.each_kill(
        tmp_path, 12, lambda folder, _: export(folder, glance_images)
    ):
        check_exported(folder, glance_images)


def test_base_file_stays_while_a_volume_uses_it_after_a_failed_call(tmp_path):
    mirror = tmp_path / f"{IMAGE}.raw"
    mirror.write_bytes(DATA)
    name = base_files.base_name(IMAGE, bytes(64))
    for calls in failing_calls.each_call(tmp_path, least=8):
        links = [base_files.add_user(calls.folder, f"v{n}", name, mirror) for n in range(2)]
        with calls:
            try:
                base_files.remove_user(calls.folder, "v0")
            except OSError:
                assert calls.hit
        assert (calls.folder / links[1]).read_bytes() == DATA
        for volume in ("v0", "v1"):
            base_files.remove_user(calls.folder, volume)
        assert not list(calls.folder.iterdir())
