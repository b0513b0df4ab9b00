# SPDX-License-Identifier: Apache-2.0
"""The preparer makes, keeps, repairs and drops conversions by image and options.

qemu-img and its sandbox are the real ones.

"""

import pathlib
import random
import shutil
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.controller import artefact_verifier
from acstor_glance.prepare import conversion
from acstor_glance.prepare import image_preparation
from acstor_glance.prepare import image_preparer
from tests.fakes import glance_options
from tests.fakes import memory_images
from tests.lab import runs

CHUNK_MAP, CONVERTED = artefacts.Kind.CHUNK_MAP, artefacts.Kind.CONVERTED
Outcome = image_preparer.PreparationOutcome

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-img") is None or shutil.which("bwrap") is None,
    reason="qemu-utils or bubblewrap is not installed: run tools/install.sh",
)


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    return glance_options.conf(state_dir=tmp_path / "state", convert_formats=["vdi"])


@pytest.fixture
def data(tmp_path: pathlib.Path) -> bytes:
    return vdi_of(tmp_path, 200_000)


def vdi_of(folder: pathlib.Path, data_bytes: int) -> bytes:
    """Return a VDI file of a disk of 2 MiB that starts with random data."""
    raw, path = folder / "raw", folder / "image"
    raw.write_bytes(random.Random(3).randbytes(data_bytes).ljust(2 * geometry.MIB, b"\0"))
    runs.tool(["qemu-img", "convert", "-f", "raw", "-O", "vdi", raw, path])
    return path.read_bytes()


def handle(
    images: memory_images.MemoryImages,
    conf: cfg.ConfigOpts,
    image: dict[str, Any],
    is_forced: bool = False,
    **limits: Any,
) -> Outcome:
    outcome = image_preparer.ImagePreparer(images, conf, **limits).prepare_image(
        ids.parse_image_id(image["id"]), is_forced=is_forced
    )
    assert list(pathlib.Path(conf.acstor_glance.state_dir, "maps").iterdir()) == []
    return outcome


def made_of(images: memory_images.MemoryImages, image: dict[str, Any]) -> set[str]:
    return {one.id for one in images.list_artefacts(image["id"])}


def fault_of(images: memory_images.MemoryImages, image: dict[str, Any]) -> str:
    found = images.get_image(image["id"])
    return artefact_verifier.verify_image(images, found, is_thorough=True).fault


def test_conversion_and_its_map_are_published_together(images, conf, data):
    image = images.add(data, disk_format="vdi")
    assert handle(images, conf, image) is Outcome.PREPARED
    pointers = {image[kind.pointer] for kind in (CHUNK_MAP, CONVERTED)}
    assert made_of(images, image) == pointers
    assert fault_of(images, image) == ""
    assert handle(images, conf, image) is Outcome.NOTHING


def test_forced_preparation_keeps_a_valid_conversion(images, conf, data):
    image = images.add(data, disk_format="vdi")
    handle(images, conf, image)
    before = image[CHUNK_MAP.pointer], image[CONVERTED.pointer]
    assert handle(images, conf, image, is_forced=True) is Outcome.PREPARED
    assert image[CHUNK_MAP.pointer] != before[0] and image[CONVERTED.pointer] == before[1]
    assert fault_of(images, image) == ""


@pytest.mark.expect_log("its converted image is incomplete")
def test_damaged_conversion_is_detected_and_replaced(images, conf, data):
    image = images.add(data, disk_format="vdi")
    handle(images, conf, image)
    old = image[CONVERTED.pointer]
    images.data[old] = images.data[old][:-1] + b"?"
    assert "the sha512 of its data differs" in fault_of(images, image)
    assert handle(images, conf, image, is_forced=True) is Outcome.PREPARED
    assert image[CONVERTED.pointer] != old and old not in images.records
    assert fault_of(images, image) == ""


def test_conversion_of_other_bytes_or_of_another_owner_is_replaced(images, conf, data):
    for changed in ({"owner": "somebody"}, {"acstor_os_hash_value": "00" * 64}):
        image = images.add(data, disk_format="vdi")
        handle(images, conf, image)
        old = image[CONVERTED.pointer]
        images.records[old] |= changed
        assert handle(images, conf, image) is Outcome.PREPARED
        assert image[CONVERTED.pointer] != old


def test_format_removed_from_the_option_is_refused_without_pointers(images, conf, data):
    image = images.add(data, disk_format="vdi")
    handle(images, conf, image)
    conf.set_override("convert_formats", [], "acstor_glance")
    assert handle(images, conf, image) is Outcome.REFUSED
    assert not {kind.pointer for kind in artefacts.Kind} & image.keys()
    assert handle(images, conf, image) is Outcome.NOTHING
    conf.set_override("convert_formats", ["vdi"], "acstor_glance")
    assert handle(images, conf, image) is Outcome.PREPARED


@pytest.mark.expect_log("could not be prepared")
def test_bytes_with_another_hash_are_never_converted(images, conf, data, monkeypatch):
    image = images.add(data, disk_format="vdi")
    images.data[image["id"]] = data[:-1] + b"?"
    monkeypatch.setattr(conversion, "convert_image", None)
    assert handle(images, conf, image) is Outcome.FAILED
    assert "the sha512 of its data differs" in image["acstor_message"]
    assert made_of(images, image) == set()


@pytest.mark.expect_log("could not be prepared")
def test_outage_of_glance_between_both_artefacts_publishes_neither(images, conf, data, monkeypatch):
    image = images.add(data, disk_format="vdi")

    def away(*_: Any, **__: Any) -> None:
        raise errors.ImageServiceUnreachable("properties", "it is away")

    with monkeypatch.context() as patch:
        patch.setattr(images, "set_properties", away)
        with pytest.raises(errors.ImageServiceUnreachable):
            handle(images, conf, image)
    assert made_of(images, image) == set()
    assert handle(images, conf, image) is Outcome.PREPARED


@pytest.mark.expect_log("could not be prepared")
def test_conversion_over_its_budget_fails_for_good(images, conf, data):
    limits = conversion.ConversionLimits(growth=0, spare_bytes=0)
    image = images.add(data, disk_format="vdi")
    assert (
        handle(
            images,
            conf,
            image,
            limits=image_preparation.PreparationLimits(conversion_limits=limits),
        )
        is Outcome.FAILED
    )
    assert "qemu-img was ended" in image["acstor_message"]
    assert image["acstor_retry"] == "1 never"
    assert made_of(images, image) == set()


@pytest.mark.expect_log("could not be prepared")
def test_conversion_over_the_quota_of_its_project_is_not_stored(images, conf, tmp_path):
    conf.set_override("artefact_quota_per_project", geometry.MIB, "acstor_glance")
    image = images.add(vdi_of(tmp_path, 3 * geometry.MIB // 2), disk_format="vdi")
    assert handle(images, conf, image) is Outcome.FAILED
    assert "over their quota" in image["acstor_message"]
    assert image["acstor_retry"].startswith("1 2")
    assert made_of(images, image) == set()
