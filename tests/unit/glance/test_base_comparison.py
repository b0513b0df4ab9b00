# SPDX-License-Identifier: Apache-2.0
"""Comparison of images with their bases, which reveals nothing about unreadable images."""

import functools
import pathlib
import time

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import lineage
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance import metrics
from acstor_glance.client import backing_images
from acstor_glance.controller import image_reconciler
from acstor_glance.dedup import base_comparison
from acstor_glance.dedup import block_dedup
from acstor_glance.prepare import image_preparation
from acstor_glance.prepare import image_preparer
from tests.fakes import glance_options
from tests.fakes import memory_images

CHUNK = geometry.MIN_CHUNK_BYTES
data = functools.partial(memory_images.chunk_data, CHUNK)
A, B = "a" * 32, "b" * 32
NAMES = (artefacts.BASE, artefacts.OWN_BYTES, artefacts.SHARED_BYTES)


class StoredImages(memory_images.MemoryImages):
    """A Glance whose images may also lie in a folder."""

    folder: pathlib.Path | None = None

    def local_path(self, image, folders):
        return self.folder / image.id if self.folder and folders else None


class World:
    """Glance, the preparer of its images, and their comparison."""

    def __init__(self, folder: pathlib.Path) -> None:
        conf = glance_options.conf(state_dir=folder, file_store_dirs=[str(folder)])
        self.conf = conf.acstor_glance
        self.images, self.counters = StoredImages(), metrics.ListenerMetrics()
        self.preparer = image_preparer.ImagePreparer(
            self.images, conf, limits=image_preparation.PreparationLimits(CHUNK)
        )
        self.comparing = base_comparison.BaseComparer(self.images, conf, self.counters)
        self.set_option = lambda name, value: conf.set_override(name, value, "acstor_glance")

    def add(self, raw: bytes, base: str = "", owner: str = A, **record):
        """Put an image into Glance, prepare and compare it; return its id."""
        image_id = self.images.add(raw, owner=owner, **record)["id"]
        if base:
            self.images.records[image_id] |= lineage.direct_base(base, image_id)
        if self.images.folder:
            (self.images.folder / image_id).write_bytes(raw)
        outcome = self.preparer.prepare_image(ids.parse_image_id(image_id))
        assert outcome is image_preparer.PreparationOutcome.PREPARED
        assert self.comparing.compare_image(image_id)
        return image_id

    def reported(self, image_id):
        properties = self.images.get_image(image_id).properties
        return [properties.get(name) for name in NAMES]

    def counted(self, room: str) -> float:
        return self.counters.compared_images.labels(room)._value.get()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def stored(world, tmp_path):
    """A world whose images lie in a file store."""
    world.images.folder = tmp_path / "store"
    world.images.folder.mkdir()
    return world


def test_snapshots_of_a_chain_record_their_own_bytes(world):
    first = world.add(data(1, 2, 3))
    second = world.add(data(1, 9, 3), first, base_image_ref=first)
    third = world.add(data(1, 9, 8), second, base_image_ref=first)
    assert world.reported(first) == [None, None, None]
    assert world.reported(second) == [first, str(CHUNK), None]
    assert world.reported(third) == [second, str(CHUNK), None]
    assert world.counted("elsewhere") == 2


def test_compared_image_without_shared_blocks_is_not_compared_again(world, monkeypatch):
    first = world.add(data(1, 2, 3))
    second = world.add(data(1, 9, 3), first, base_image_ref=first)
    monkeypatch.setattr(backing_images, "chunk_map_of", pytest.fail)  # each call is a download
    assert world.comparing.compare_image(second)
    assert world.counted("elsewhere") == 1


def test_nearest_existing_base_is_used(world):
    first = world.add(data(1, 2, 3))
    second = world.add(data(1, 9, 3), first)
    world.images.delete_artefact(second)
    third = world.add(data(1, 9, 8), second, base_image_ref=first)
    assert world.reported(third) == [first, str(2 * CHUNK), None]


def test_image_that_the_owner_may_not_read_is_no_base(world):
    secret = world.add(data(1, 2), owner=B)
    guess = world.add(data(1, 2), secret, base_image_ref=secret)
    assert world.reported(guess) == [None, None, None]
    shared = world.add(data(1, 2), owner=B, visibility="shared")
    assert world.reported(world.add(data(1, 2), shared)) == [None, None, None]
    world.images.shared_with[shared] = [A]
    assert world.reported(world.add(data(1, 2), shared)) == [shared, "0", None]


def test_properties_that_nova_copied_onto_a_snapshot_are_removed(world):
    first = world.add(data(1, 2))
    copied = dict(zip(NAMES, (first, "5", "7"), strict=True))
    assert world.reported(world.add(data(3, 4), **copied)) == [None, None, None]


def test_base_without_a_chunk_map_gives_no_comparison(world):
    base = world.images.add(data(1), owner=A)["id"]
    assert world.reported(world.add(data(1), base)) == [None, None, None]


def test_files_are_deduplicated_at_the_configured_rate(stored, monkeypatch):
    asked = []

    def share(image, base, ranges, bytes_s, wait):
        asked.extend(ranges)
        return 4096

    monkeypatch.setattr(block_dedup, "share_blocks", share)
    base = stored.add(data(1, 2, 3))
    image = stored.add(data(1, 9, 3), base)
    assert stored.reported(image) == [base, str(CHUNK), "4096"]
    assert [one.length for one in asked] == [CHUNK, CHUNK]
    assert (stored.counted("shared"), stored.counters.shared_bytes._value.get()) == (1, 4096)
    stored.set_option("block_dedup_rate_mib_s", 0)
    assert stored.reported(stored.add(data(1, 8, 3), base))[2] is None
    assert stored.counted("elsewhere") == 1


@pytest.mark.allow_log(r"deduplication|there is no|not a file of|No such file")
def test_unsupported_deduplication_is_logged_once_and_is_no_error(stored, monkeypatch, caplog):
    def share(*_args):
        raise errors.Unusable("deduplication of an image with its backing image", "it cannot")

    monkeypatch.setattr(block_dedup, "share_blocks", share)
    base = stored.add(data(1, 2, 3))
    for _ in range(3):
        assert stored.reported(stored.add(data(1, 9, 3), base)) == [base, str(CHUNK), None]
    assert caplog.text.count("it cannot") == 1
    (stored.images.folder / base).unlink()
    stored.add(data(1, 7, 3), base)
    assert stored.counted("refused") == 4


def test_stopped_comparison_is_repeated(stored, monkeypatch):
    def share(*_args):
        raise block_dedup.Stopped

    base = stored.add(data(1, 2))
    monkeypatch.setattr(block_dedup, "share_blocks", share)
    image = stored.images.add(data(1, 3), owner=A, base_image_ref=base)["id"]
    (stored.images.folder / image).write_bytes(data(1, 3))
    stored.preparer.prepare_image(image)
    assert not stored.comparing.compare_image(image)
    assert image in to_compare(stored)


def to_compare(world):
    return (
        image_reconciler.ImageReconciler(
            world.images, world.preparer.desired, builds_boot_images=False
        )
        .run()
        .to_compare
    )


def test_reconcile_finds_images_to_deduplicate_once_for_each_process(world):
    base = world.add(data(1, 2))
    image = world.add(data(1, 3), base)
    assert to_compare(world) == [image]
    tried = []
    world.comparing.compare_image = lambda image_id: tried.append(image_id) or True
    world.comparing.start()
    try:
        for _ in range(3):
            world.comparing.requeue([image])
            wait_for(lambda: world.comparing._queue.queue_sizes() == (0, 0))
        assert tried == [image]
        world.comparing.queue_image(image)
        wait_for(lambda: tried == [image, image])
    finally:
        world.comparing.stop()
    world.images.set_properties(image, {artefacts.SHARED_BYTES: "0"})
    assert to_compare(world) == []


@pytest.mark.allow_log(r"not compared|unexpected")
def test_failed_comparison_does_not_end_the_thread(world):
    failures = [errors.ImageServiceUnreachable("Glance", "away"), ValueError("surprise")]
    tried = []

    def compare(image_id):
        tried.append(image_id)
        if failures:
            raise failures.pop(0)
        return True

    world.comparing.compare_image = compare
    world.comparing.start()
    try:
        for number in range(3):
            world.comparing.queue_image(f"image {number}")
        wait_for(lambda: len(tried) == 3)
    finally:
        world.comparing.stop()


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError
