# SPDX-License-Identifier: Apache-2.0
"""Boot images in a real Glance: from recorded boots, from builds, and after killed builds."""

import contextlib
import io
import mmap
import os
import pathlib
import random
import shutil
import signal
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from acstor_common.formats import boot_frames
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance import sandbox
from acstor_glance.boot import boot_guest
from acstor_glance.client import glance_client
from acstor_glance.cmd import manage as manage_command
from acstor_glance.prepare import image_preparer
from tests.fakes import boot_sectors
from tests.fakes import cloud_keys
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
BOOT_IMAGE = artefacts.Kind.BOOT_IMAGE
SOON = {tuned.RETRY_FIRST_S: 1, tuned.RECONCILE_INTERVAL_S: 2}


def test_better_boot_image_replaces_an_earlier_one(glance: uploads.Images, listen: Listen) -> None:
    listener = listen()
    image_id = glance.upload(uploads.some_bytes(seed=30))
    glance.wait_state(image_id)
    listener.stop()
    conf = manage_command.load_conf(str(listener.conf_file))
    images = glance_client.connect(conf)

    def publish(revision: int) -> image_record.Image:
        file = io.BytesIO(b"a boot image" * revision)
        images.publish_artefact(BOOT_IMAGE, images.get_image(image_id), file, revision=revision)
        found = images.artefact_of(images.get_image(image_id), BOOT_IMAGE)
        assert found is not None
        return found

    first = publish(1)
    preparing = image_preparer.ImagePreparer(images, conf)
    assert (
        preparing.prepare_image(ids.parse_image_id(image_id))
        is image_preparer.PreparationOutcome.NOTHING
    )
    second = publish(2)
    assert (artefacts.revision_of(first), artefacts.revision_of(second)) == (1, 2)
    assert not glance.exists(first.id)
    assert len(glance.artefacts_of(image_id)) == 2
    with images.open_image_data(second.id) as pieces:
        assert b"".join(pieces) == b"a boot image" * 2


@hosts.needs_fuse
def test_boot_recorded_on_one_host_is_served_from_memory_on_the_next(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data = random.Random(3).randbytes(64 * uploads.CHUNK)
    image_id = glance.upload(data)
    keys = cloud_keys.CloudKeys()
    (tmp_path / "ca.pem").write_bytes(keys.authority.certificate_pem)
    listener = listen(constants={tuned.TRACES_NEEDED: 1}, trusted_dir=tmp_path)
    glance.wait_state(image_id)
    booted = data[: 32 * uploads.CHUNK]

    @contextlib.contextmanager
    def agent(name: str) -> Iterator[agents.Agent]:
        sections = {
            "DEFAULT": {"transport_url": glance.lab.rabbitmq.url},
            "source_glance": api.credentials(glance.lab.keystone.auth_url, "acstor"),
        }
        nothing = local.ImageFolder(tmp_path / f"{name}-images")
        given = {"sources": "glance", "sections": sections}
        given["constants"] = {tuned.RECORD_IDLE_S: 1.0}
        if name != "stranger":
            keys.give(tmp_path / name / "agent" / "state", name)
        else:
            cloud_keys.CloudKeys().give(tmp_path / name / "agent" / "state", name)
        with local.agent(tmp_path / name, nothing, name=name, **given) as running:
            running.wait_ready()
            yield running

    def read(host: agents.Agent) -> bytes:
        # O_DIRECT: kernel read-ahead would run before the boot image can serve it.
        fd = os.open(host.image_path(ids.parse_image_id(image_id)), os.O_RDONLY | os.O_DIRECT)
        try:
            buffer = mmap.mmap(-1, len(booted))
            return buffer[: os.preadv(fd, [buffer], 0)]
        finally:
            os.close(fd)

    with agent("stranger") as other:
        assert read(other) == booted
        hosts.wait_until(
            lambda: "none of the trusted authorities issued it" in listener.log(),
            "the stranger's trace refused",
            30.0,
        )
    with agent("h1") as first:
        assert read(first) == booted
        pointer = BOOT_IMAGE.pointer
        glance.wait(image_id, lambda record: pointer in record, "the boot image")
    [found] = [one for one in glance.artefacts_of(image_id) if one[artefacts.KIND] == BOOT_IMAGE]
    assert found["id"] == glance.record(image_id)[pointer]
    with agent("h2") as second:
        with second.image_path(ids.parse_image_id(image_id)).open("rb", buffering=0):
            hosts.wait_until(
                lambda: second.status()["images"][image_id]["boot_image"]["chunks_in_memory"] >= 32,
                "the boot image in memory",
                uploads.DEADLINE_S,
            )
            assert read(second) == booted
        origins = second.status()["images"][image_id]["read"]
        assert origins["boot"]["bytes"] == len(booted)
        assert not sum(count["bytes"] for name, count in origins.items() if name != "boot")


def qemu_of(listener: acstor_glance.Listener) -> int | None:
    """Return the QEMU process of a listener's builder, or None."""
    assert listener.pid is not None
    for child in sandbox.process_tree(listener.pid):
        with contextlib.suppress(OSError):
            process = pathlib.Path(f"/proc/{child}")
            is_qemu = "qemu-system" in (process / "comm").read_text()
            if is_qemu and (process / "cmdline").read_text():  # empty during its exec
                return child
    return None


def building(listener: acstor_glance.Listener) -> int:
    """Wait until a listener's builder has started QEMU, and return its process."""
    runs.wait_for(lambda: bool(qemu_of(listener)), 60.0, "QEMU", listener.log)
    return qemu_of(listener) or 0


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_killed_build_leaves_no_files_and_is_retried(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    options = {"boot_images": "built"}
    first = listen("first", **options, constants=SOON | {tuned.BUILD_LONGEST_S: 600})
    image_id = glance.upload(boot_sectors.image(boot_sectors.FLOOD_CONSOLE, 4 * geometry.MIB))
    glance.wait_state(image_id)
    qemu = building(first)
    assert glance.record(image_id)["acstor_boot_retry"].startswith("1 ")
    os.kill(first.pid or 0, signal.SIGKILL)  # but not its children
    runs.wait_for(lambda: runs.start_ticks(qemu) is None, 30.0, "QEMU's end", first.log)
    assert list((tmp_path / "state/boot").iterdir()) == []

    second = listen("second", **options, constants=SOON | {tuned.BUILD_LONGEST_S: 10})
    os.kill(building(second), signal.SIGKILL)
    glance.wait(
        image_id,
        lambda record: "it was killed" in record.get("acstor_boot_message", ""),
        "the reason on the image",
    )
    assert glance.record(image_id)["acstor_boot_retry"].startswith("2 ")
    done = glance.wait(image_id, lambda record: BOOT_IMAGE.pointer in record, "the boot image")
    done = glance.wait(image_id, lambda record: "acstor_boot_retry" not in record, "no more tries")
    stored, map_bytes = (
        glance.admin.get(f"/images/{done[kind.pointer]}/file").content
        for kind in (BOOT_IMAGE, artefacts.Kind.CHUNK_MAP)
    )
    keys = chunk_map.ChunkMap.parse(map_bytes, "the chunk map").scope_keys
    assert 0 in boot_frames.check_boot_image([stored], "the boot image", keys).trace
    assert list((tmp_path / "state/boot").iterdir()) == []


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_damaged_or_deleted_boot_image_is_built_again(
    glance: uploads.Images, listen: Listen
) -> None:
    soon = {tuned.BUILD_LONGEST_S: 10, tuned.RECONCILE_INTERVAL_S: 2}
    listener = listen(boot_images="built", constants=soon)
    image_id = glance.upload(boot_sectors.image(boot_sectors.HANG, 4 * geometry.MIB))

    def another(known: set[str]) -> str:
        pointer = BOOT_IMAGE.pointer
        found = glance.wait(
            image_id,
            lambda record: record.get(pointer, "") not in {"", *known},
            "a boot image",
        )
        return str(found[pointer])

    def fault(status: int) -> str:
        [row] = uploads.manage(listener, "verify", image_id, status=status)
        return str(row["fault"])

    first = another(set())
    assert fault(status=0) == ""
    stored = glance.lab.glance.images / first
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    assert f"boot image {first}" in fault(status=3)
    rows = uploads.manage(listener, "verify", "--repair", image_id)
    assert {"artefact": first, "outcome": "deleted"} in rows
    second = another({first})
    glance.admin.delete_image(second)
    another({first, second})
    assert fault(status=0) == ""


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_unbootable_image_is_marked_and_not_retried(glance: uploads.Images, listen: Listen) -> None:
    soon = SOON | {tuned.BUILD_LONGEST_S: 5}
    listen(boot_images="built", constants=soon)
    image_id = glance.upload(bytes(4 * geometry.MIB))
    record = glance.wait(
        image_id, lambda record: "1 never" == record.get("acstor_boot_retry"), "the builder's word"
    )
    assert "it does not boot" in record["acstor_boot_message"]
    assert record["acstor_state"] == "ready"


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
@pytest.mark.skipif(not boot_guest.UEFI_FIRMWARE.is_file(), reason="ovmf is not installed")
def test_boot_image_is_built_with_the_firmware_that_nova_would_use(
    glance: uploads.Images, listen: Listen
) -> None:
    data = boot_sectors.image(boot_sectors.HANG, 4 * geometry.MIB)
    listener = listen(boot_images="built")
    for properties, expected in (({"hw_firmware_type": "uefi"}, True), ({}, False)):
        image_id = glance.upload(data, **properties)
        qemu = building(listener)
        command = pathlib.Path(f"/proc/{qemu}/cmdline").read_text().split("\0")
        assert (str(boot_guest.UEFI_FIRMWARE) in command) is expected
        os.kill(qemu, signal.SIGKILL)
        glance.wait(
            image_id,
            lambda record: "it was killed" in record.get("acstor_boot_message", ""),
            "the end of the build",
        )
