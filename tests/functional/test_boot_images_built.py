# SPDX-License-Identifier: Apache-2.0
"""The listener builds boot images with a real QEMU and records the state on the image."""

import pathlib
import shutil
import threading
import time

import pytest
from oslo_config import cfg

from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_glance import metrics
from acstor_glance.boot import boot_guest
from acstor_glance.boot import boot_image_announcer
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import boot_image_service
from acstor_glance.boot import build_modes
from acstor_glance.cmd import listener as listener_command
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import listener_service
from acstor_glance.controller import protection_reconciler
from acstor_glance.prepare import image_preparer
from tests.fakes import boot_sectors
from tests.fakes import glance_options
from tests.fakes import memory_images
from tests.lab import local

pytestmark = pytest.mark.skipif(
    shutil.which(boot_guest.QEMU) is None, reason="QEMU is not installed"
)
MIB = 1 << 20
BOTH = build_modes.BuildModes(builds=True, records=True)
ENDS_SOON = boot_sectors.image(boot_sectors.RESET, 4 * MIB)
DATA_ONLY = local.random_bytes(4 * MIB)


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    return glance_options.conf(state_dir=tmp_path)


@pytest.fixture
def images() -> memory_images.MemoryImages:
    return memory_images.MemoryImages()


@pytest.fixture
def made(
    images: memory_images.MemoryImages, conf: cfg.ConfigOpts
) -> boot_image_maker.BootImageMaker:
    return boot_image_maker.BootImageMaker(images, conf, BOTH)


def prepared(images: memory_images.MemoryImages, conf: cfg.ConfigOpts, data: bytes, **record: str):
    """Upload an image and make its chunk map; return its id and its record, which changes."""
    image = images.add(data, **record)
    image_id = ids.parse_image_id(image["id"])
    outcome = image_preparer.ImagePreparer(images, conf).prepare_image(image_id)
    assert outcome is image_preparer.PreparationOutcome.PREPARED
    assert image["acstor_boot_state"] == "waiting"  # the chunk map's maker requests the boot image
    return image_id, image


def test_image_that_boots_gets_a_boot_image_and_is_marked_ready(images, conf, made):
    image_id, image = prepared(images, conf, ENDS_SOON)
    assert made.make_boot_image(image_id)
    assert image["acstor_boot_state"] == "ready"
    assert "acstor_boot_retry" not in image and "acstor_boot_message" not in image
    found = images.artefact_of(images.get_image(image_id), artefacts.Kind.BOOT_IMAGE)
    assert (found.text("acstor_origin"), found.text("acstor_revision")) == ("built", "1")
    assert not made.make_boot_image(image_id)  # no work is left


@pytest.mark.parametrize(
    ("data", "record", "said"),
    [
        (DATA_ONLY, {}, "no boot loader that the firmware (bios) finds"),
        (ENDS_SOON, {"hw_architecture": "aarch64"}, "hw_architecture is aarch64"),
    ],
    ids=["no-boot-loader", "another-processor"],
)
def test_unbootable_image_is_marked_and_never_built_again(images, conf, made, data, record, said):
    image_id, image = prepared(images, conf, data, **record)
    assert not made.make_boot_image(image_id)
    assert (image["acstor_boot_state"], image["acstor_boot_retry"]) == ("unbootable", "1 never")
    assert said in image["acstor_boot_message"] and "/proc" not in image["acstor_boot_message"]
    assert image["acstor_state"] == "ready"
    before = dict(image)
    assert not made.make_boot_image(image_id)
    found = image_reconciler.ImageReconciler(
        images, image_preparer.ImagePreparer(images, conf).desired, builds_boot_images=True
    ).run()
    assert (found.to_build, found.to_prepare, found.boot_states) == ({}, {}, {"unbootable": 1})
    assert image == before
    made.add_trace(
        trace_message.BootTrace(
            host="h1", image_id=image_id, size_bytes=len(data), chunk_bytes=65536, trace=(3, 5)
        )
    )
    assert made.make_boot_image(image_id)  # recorded boots of a host replace the build
    assert image["acstor_boot_state"] == "ready"


def test_build_that_cannot_start_records_the_reason_and_its_retry_time(
    images, conf, made, monkeypatch
):
    image_id, image = prepared(images, conf, ENDS_SOON)
    monkeypatch.setattr(boot_guest, "QEMU", "qemu-that-is-missing")
    assert not made.make_boot_image(image_id)
    assert image["acstor_boot_state"] == "failed"
    assert image["acstor_boot_retry"].startswith("1 2")
    assert "qemu-that-is-missing: it is not installed" in image["acstor_boot_message"]
    assert not made.make_boot_image(image_id)  # not before the retry time
    assert image["acstor_boot_retry"].startswith("1 2")


def test_image_that_hosts_boot_is_built_before_a_backlog(images, conf, made):
    catalogue = [prepared(images, conf, ENDS_SOON)[0] for _ in range(3)]
    booted, new = (prepared(images, conf, ENDS_SOON)[0] for _ in range(2))
    order: list[ids.ImageId] = []
    make = made.make_boot_image
    made.make_boot_image = lambda image_id, begin: (order.append(image_id), make(image_id, begin))
    owners = {image_id: images.records[image_id]["owner"] for image_id in [*catalogue, booted, new]}
    counters = metrics.ListenerMetrics()
    ahead = boot_image_announcer.BootImageAnnouncer(images, conf)
    service = boot_image_service.BootImageService(made, BOTH, counters, ahead)
    service.queue_image(new, owners.pop(new))
    service.requeue(owners, {booted})
    assert counters.registry.get_sample_value("acstor_glance_queued_boot_images") == 5
    service.start()
    try:
        end_s = time.monotonic() + 120
        states = [images.records[image_id] for image_id in [*catalogue, booted, new]]
        while any(one["acstor_boot_state"] != "ready" for one in states):
            assert time.monotonic() < end_s, [one["acstor_boot_state"] for one in states]
            time.sleep(0.1)
    finally:
        service.stop()
    assert order == [booted, new, *catalogue]


def test_killed_listener_loses_no_queued_image(images, conf, made):
    waiting = [prepared(images, conf, ENDS_SOON)[0] for _ in range(2)]
    image_id, image = prepared(images, conf, ENDS_SOON)
    image.update(acstor_boot_state="building", acstor_boot_retry="1 2026-01-01T00:00:00+00:00")
    wanted = image_preparer.ImagePreparer(images, conf).desired
    findings = image_reconciler.ImageReconciler(
        images, wanted, builds_boot_images=True
    ).run()  # as the next listener does
    assert set(findings.to_build) == {*waiting, image_id}
    assert findings.boot_states == {"waiting": 2, "building": 1}
    assert made.make_boot_image(image_id)
    assert image["acstor_boot_state"] == "ready"


def test_image_prepared_by_an_import_is_built_without_a_reconcile(images, conf, made):
    image_id, image = prepared(images, conf, ENDS_SOON)  # as the import plugin does it
    counters = metrics.ListenerMetrics()
    guard = protection_reconciler.ProtectionReconciler(conf, images, counters)
    ahead = boot_image_announcer.BootImageAnnouncer(images, conf)
    boots = boot_image_service.BootImageService(made, BOTH, counters, ahead)
    preparing = image_preparer.ImagePreparer(images, conf, counters)
    looking = image_reconciler.ImageReconciler(images, preparing.desired, builds_boot_images=True)
    service = listener_service.ListenerService(conf, preparing, looking, counters, guard, boots)
    threads = [threading.Thread(target=run) for run in (service._work, service._check_hints)]
    for thread in threads:
        thread.start()
    boots.start()
    try:
        service._on_notification("image.update", image_id)  # of the plugin's update
        end_s = time.monotonic() + 60
        while image["acstor_boot_state"] != "ready":
            assert time.monotonic() < end_s, image["acstor_boot_state"]
            time.sleep(0.1)
    finally:
        boots.stop()
        service._queue.close()
        service._hints.close()
        for thread in threads:
            thread.join(60)


def test_listener_without_qemu_only_records_boots(conf, monkeypatch):
    conf.set_override("auth_type", "none", "acstor_glance")
    conf.set_override("endpoint_override", "http://127.0.0.1:1", "acstor_glance")
    monkeypatch.setattr(boot_guest, "QEMU", "qemu-that-is-missing")
    _, counters = listener_command.build(conf)
    shown = [
        counters.registry.get_sample_value(
            "acstor_glance_boot_image_method_enabled", {"method": way}
        )
        for way in ("built", "recorded")
    ]
    assert shown == [0, 1]
