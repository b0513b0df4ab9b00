# SPDX-License-Identifier: Apache-2.0
"""A preparation that fails is recorded in its image, unless the image is gone."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_glance.prepare import image_preparer
from tests.fakes import glance_options
from tests.fakes import memory_images

Outcome = image_preparer.PreparationOutcome


class Unreadable(memory_images.MemoryImages):
    """A Glance whose store fails; the image that is read may be deleted meanwhile."""

    is_deleted = False

    @contextlib.contextmanager
    def open_image_data(self, image_id: str) -> Iterator[Iterator[bytes]]:
        if self.is_deleted:
            del self.records[image_id]
        raise errors.ImageServiceRefused(f"bytes of image {image_id}", "the store fails")
        yield iter(())


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    return glance_options.conf(state_dir=tmp_path / "state", dedup_scope="cloud")


@pytest.fixture
def images() -> Unreadable:
    return Unreadable()


def prepare(images: Unreadable, conf: cfg.ConfigOpts, image_id: str, *, is_forced: bool) -> Outcome:
    preparer = image_preparer.ImagePreparer(images, conf)
    return preparer.prepare_image(ids.parse_image_id(image_id), is_forced=is_forced)


def add_with(images: Unreadable, kind: artefacts.Kind) -> dict[str, Any]:
    """Add an image that has an artefact."""
    image = images.add(b"some bytes")
    made = artefacts.new_artefact(images.get_image(image["id"]), kind, images.project_id, 1)
    images.add(b"artefact", **made)
    return image


@pytest.mark.expect_log("could not be prepared")
def test_each_failure_of_an_image_is_counted(images: Unreadable, conf: cfg.ConfigOpts) -> None:
    image = images.add(b"some bytes")
    assert prepare(images, conf, image["id"], is_forced=False) is Outcome.FAILED
    assert image[artefacts.RETRY].startswith("1 2")
    assert prepare(images, conf, image["id"], is_forced=False) is Outcome.WAITING
    assert prepare(images, conf, image["id"], is_forced=True) is Outcome.FAILED
    assert image[artefacts.RETRY].startswith("2 2")


@pytest.mark.expect_log("could not be prepared")
def test_image_deleted_during_its_preparation_leaves_no_artefact(
    images: Unreadable, conf: cfg.ConfigOpts
) -> None:
    image = add_with(images, artefacts.Kind.BOOT_IMAGE)
    images.is_deleted = True
    assert prepare(images, conf, image["id"], is_forced=False) is Outcome.GONE
    assert images.records == {}


def test_image_deleted_while_it_is_leased_is_queued_until_its_artefacts_are_deleted(
    images: Unreadable, conf: cfg.ConfigOpts
) -> None:
    image = add_with(images, artefacts.Kind.CHUNK_MAP)
    del images.records[image["id"]]
    preparer, image_id = image_preparer.ImagePreparer(images, conf), ids.parse_image_id(image["id"])
    with preparer.leases.lease_image(image_id):
        assert preparer.needs_queuing(image_id)
        assert len(images.records) == 1
    assert not preparer.needs_queuing(image_id)
    assert images.records == {}
