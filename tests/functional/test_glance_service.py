# SPDX-License-Identifier: Apache-2.0
"""Images that were uploaded to a real Glance get chunk maps that belong to them, however they came.

Keystone, Glance and RabbitMQ are those of the lab; the listener is a process of its own.
"""

import contextlib
import io
import json
import pathlib
import random
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
import requests

from acstor_common import artefacts
from acstor_common import chunk_map
from acstor_common import geometry
from acstor_common import ids
from acstor_common import image_record
from acstor_glance import images as glance_images
from acstor_glance import preparer
from acstor_glance.cmd import manage as manage_command
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import glance as glance_lab

DEADLINE_S = 60.0
PROTECTIONS = runs.CHECKOUT / "etc/glance/property-protections-roles.conf"
BOOT_IMAGE = artefacts.Kind.BOOT_IMAGE
CHUNK = geometry.DEFAULT_CHUNK_BYTES


def some_bytes(chunks: int = 20, seed: int = 1) -> bytes:
    """Return the bytes of an image: random, but for a part of zeros; the last chunk is short."""
    dice = random.Random(seed)
    data = bytearray(dice.randbytes(chunks * CHUNK + 512))
    data[3 * CHUNK : 7 * CHUNK] = bytes(4 * CHUNK)
    return bytes(data)


def qcow2(folder: pathlib.Path) -> bytes:
    """Return the bytes of a real qcow2 image."""
    path = folder / "image.qcow2"
    runs.tool(["qemu-img", "create", "-q", "-f", "qcow2", path, "8M"])
    return path.read_bytes()


@contextlib.contextmanager
def threaded(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Do ``work`` beside the block; what is yielded waits for its result."""
    with futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield lambda: done.result(DEADLINE_S)


def expected_cids(data: bytes) -> list[ids.Cid]:
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return [ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks]


class Images:
    """A tenant who uploads, and an administrator who looks at what came of it."""

    def __init__(self, lab: cloud.Cloud) -> None:
        self.lab = lab
        self.tenant, self.admin = lab.connect("tenant").image, lab.connect("admin").image
        self.project_id = lab.session("acstor").get_project_id()
        self._made: list[str] = []

    def create(self, **options: Any) -> Any:
        wanted = {"disk_format": "raw", "container_format": "bare", "visibility": "private"}
        image = self.tenant.create_image(name=f"test-{uuid.uuid4()}", **{**wanted, **options})
        self._made.append(image.id)
        return image

    def upload(self, data: bytes, **options: Any) -> str:
        """Upload as a whole, which no import plugin sees."""
        image_id: str = self.create(data=data, **options).id
        return image_id

    def import_staged(self, data: bytes, **options: Any) -> str:
        """Upload by the import flow; returns when the import is over."""
        image = self.create(**options)
        self.tenant.stage_image(image, data=data)
        self.tenant.import_image(image)
        self.wait(image.id, glance_lab.is_imported, "the import")
        image_id: str = image.id
        return image_id

    def record(self, image_id: str) -> dict[str, Any]:
        answer = self.admin.get(f"/images/{image_id}")
        answer.raise_for_status()
        record: dict[str, Any] = answer.json()
        return record

    def exists(self, image_id: str) -> bool:
        return bool(self.admin.get(f"/images/{image_id}").status_code == 200)

    def wait(self, image_id: str, check: Callable[[dict[str, Any]], bool], what: str) -> dict:
        runs.wait_for(
            lambda: check(self.record(image_id)),
            DEADLINE_S,
            what,
            lambda: f"{self.record(image_id)}\n{self.glance_log()}",
        )
        return self.record(image_id)

    def glance_log(self) -> str:
        """Return the end of Glance's log without the requests in it."""
        lines = self.lab.glance.log().splitlines()
        return "\n".join([line for line in lines if "generated" not in line][-15:])

    def wait_state(self, image_id: str, state: str = "ready") -> dict[str, Any]:
        return self.wait(
            image_id,
            lambda record: (artefacts.state_of(record) or "none") == state,
            f"acstor_state {state}",
        )

    def patch(self, image_id: str, user: str = "admin", **properties: str) -> None:
        changes = [{"op": "add", "path": f"/{k}", "value": v} for k, v in properties.items()]
        answer = self.lab.connect(user).image.patch(
            f"/images/{image_id}",
            data=json.dumps(changes),
            headers={"Content-Type": "application/openstack-images-v2.1-json-patch"},
        )
        answer.raise_for_status()

    def artefacts(self) -> list[dict[str, Any]]:
        answer = self.admin.get(f"/images?os_hidden=true&owner={self.project_id}")
        return [record for record in answer.json()["images"] if "acstor_kind" in record]

    def artefacts_of(self, image_id: str) -> list[dict[str, Any]]:
        return [record for record in self.artefacts() if record["acstor_image_id"] == image_id]

    def check_chunk_map(self, image_id: str, data: bytes) -> dict[str, Any]:
        """Check everything about an image's chunk map; return its artefact."""
        image = self.record(image_id)
        artefact = self.record(image[artefacts.Kind.CHUNK_MAP.pointer])
        artefacts.check_belongs(
            image, artefact, artefacts.Kind.CHUNK_MAP, self.project_id, chunk_map.VERSION
        )
        assert (artefact["os_hidden"], artefact["visibility"]) == (True, "private")
        stored = self.admin.get(f"/images/{artefact['id']}/file").content
        found = artefacts.parse_chunk_map(image, stored)
        assert [found.cid(number) for number in range(len(found))] == expected_cids(data)
        assert [record["id"] for record in self.artefacts_of(image_id)] == [artefact["id"]]
        return artefact

    def delete(self, image_id: str) -> None:
        self.tenant.delete_image(image_id)

    def clean_up(self) -> None:
        for image_id in self._made:
            self.admin.delete_image(image_id, ignore_missing=True)
        for artefact in self.artefacts():
            self.admin.delete_image(artefact["id"], ignore_missing=True)


@pytest.fixture
def glance(keystone_glance: cloud.Cloud) -> Iterator[Images]:
    tester = Images(keystone_glance)
    try:
        yield tester
    finally:
        keystone_glance.start_image_services()
        tester.clean_up()


Listen = Callable[..., acstor_glance.Listener]


@pytest.fixture
def listen(glance: Images, tmp_path: pathlib.Path) -> Iterator[Listen]:
    """Return what starts a listener; it ends with the test."""
    listeners: list[acstor_glance.Listener] = []

    def start(name: str = "listener", **options: Any) -> acstor_glance.Listener:
        options.setdefault("notification_pool", f"test-{tmp_path.name}")
        listener = acstor_glance.Listener(name, glance.lab, tmp_path, **options)
        listeners.append(listener)
        listener.start()
        listener.wait_ready()
        return listener

    try:
        yield start
    finally:
        for listener in listeners:
            listener.stop()


def manage(listener: acstor_glance.Listener, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """Run ``acstor-glance-manage`` with the listener's configuration; return what it printed."""
    listener.configure()
    command = [sys.executable, "-m", "acstor_glance.cmd.manage", "--config-file"]
    done = subprocess.run(
        [*command, listener.conf_file, "--json", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def metric(listener: acstor_glance.Listener, line: str) -> float:
    """Return one value of the listener's Prometheus endpoint."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=20) as page:
        text = page.read().decode()
    values = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line + " ")]
    return float(values[0]) if values else 0.0


def test_plain_upload_gets_a_chunk_map_and_loses_it_with_the_image(
    glance: Images, listen: Listen
) -> None:
    listener = listen()
    data = some_bytes()
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    artefact = glance.check_chunk_map(image_id, data)
    hidden_from_tenants = [image.id for image in glance.tenant.images(os_hidden=True)]
    assert artefact["id"] not in hidden_from_tenants
    assert metric(listener, 'acstor_glance_images_total{outcome="prepared"}') == 1
    assert metric(listener, "acstor_glance_hashed_bytes_total") == len(data)
    glance.delete(image_id)
    runs.wait_for(
        lambda: not glance.exists(artefact["id"]), DEADLINE_S, "the artefact's end", listener.log
    )


def test_import_publishes_the_chunk_map_without_a_listener(
    glance: Images, tmp_path: pathlib.Path
) -> None:
    data = some_bytes(seed=2)
    with glance.lab.glance.changed(acstor_glance.plugin_sections(glance.lab, tmp_path)):
        image_id = glance.import_staged(data)
        glance.wait_state(image_id)
        glance.check_chunk_map(image_id, data)
        assert list((tmp_path / "maps").iterdir()) == []


def test_plugin_refuses_what_is_not_raw_and_the_import_goes_on(
    glance: Images, tmp_path: pathlib.Path
) -> None:
    with glance.lab.glance.changed(acstor_glance.plugin_sections(glance.lab, tmp_path)):
        image_id = glance.import_staged(qcow2(tmp_path), disk_format="qcow2")
        record = glance.wait_state(image_id, "refused")
        assert "its disk format is qcow2" in record["acstor_message"]
        misnamed_id = glance.import_staged(qcow2(tmp_path))
        record = glance.wait_state(misnamed_id, "refused")
        assert "its format is qcow2" in record["acstor_message"]
    assert glance.artefacts() == []


def test_listener_publishes_what_the_plugin_left_under_protected_properties(
    glance: Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    shared = tmp_path / "state"
    sections = dict(acstor_glance.plugin_sections(glance.lab, shared, publish_deadline_s=0))
    sections["DEFAULT"] = {
        "property_protection_file": PROTECTIONS,
        "property_protection_rule_format": "roles",
    }
    data = some_bytes(seed=3)
    with glance.lab.glance.changed(sections):
        image_id = glance.import_staged(data)
        assert (shared / "maps" / f"{image_id}.acmap").exists()
        listener = listen()  # its first reconcile finds the image
        glance.wait_state(image_id)
        glance.check_chunk_map(image_id, data)
        assert metric(listener, "acstor_glance_hashed_bytes_total") == 0
        seen = glance.tenant.get(f"/images/{image_id}").json()
        assert [name for name in seen if name.startswith(artefacts.PREFIX)] == []
        with pytest.raises(requests.HTTPError, match="403"):
            glance.patch(image_id, "tenant", acstor_chunk_map=str(uuid.uuid4()))


def test_images_that_are_not_served_say_why(
    glance: Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listen()
    foreign = glance.upload(qcow2(tmp_path), disk_format="qcow2")
    misnamed = glance.upload(qcow2(tmp_path))
    assert "image_conversion" in glance.wait_state(foreign, "refused")["acstor_message"]
    record = glance.wait_state(misnamed, "refused")
    assert "its format is qcow2" in record["acstor_message"]
    assert record["acstor_retry"] == "1 never"
    assert glance.artefacts() == []


def test_copied_and_forged_properties_have_no_effect(glance: Images, listen: Listen) -> None:
    listener = listen()
    data, other = some_bytes(seed=4), some_bytes(seed=5)
    image_id = glance.upload(data)
    copied = {
        name: value
        for name, value in glance.wait_state(image_id).items()
        if name.startswith(artefacts.PREFIX)
    }
    artefact = glance.check_chunk_map(image_id, data)
    snapshot_id = glance.upload(other, **copied)
    lies = {name: value for name, value in artefact.items() if name.startswith(artefacts.PREFIX)}
    forged_id = glance.upload(some_bytes(chunks=1), **lies)
    victim_id = glance.upload(other, acstor_chunk_map=forged_id, acstor_state="ready")
    for wanted in (snapshot_id, victim_id):
        glance.wait_state(wanted)
        glance.check_chunk_map(wanted, other)
    glance.wait_state(forged_id)  # an image like any other
    glance.check_chunk_map(image_id, data)
    manage(listener, "reconcile")
    assert glance.exists(forged_id)
    assert {row["fault"] for row in manage(listener, "verify")} == {""}


def test_racing_listeners_prepare_each_image_once(glance: Images, listen: Listen) -> None:
    uploads = {glance.upload(data): data for data in (some_bytes(seed=n) for n in range(10, 16))}
    # Two pools: each of them hears of every image, and each finds all of them when it starts.
    both = [listen(f"l{n}", notification_pool=f"race-{uuid.uuid4()}", workers=2) for n in (1, 2)]
    late = some_bytes(seed=17)
    uploads[glance.upload(late)] = late
    for image_id, data in uploads.items():
        glance.wait_state(image_id)
        glance.check_chunk_map(image_id, data)
    name = 'acstor_glance_images_total{outcome="prepared"}'
    assert sum(metric(listener, name) for listener in both) == len(uploads)


def test_image_in_the_file_store_is_read_there(glance: Images, listen: Listen) -> None:
    listen(file_store_dirs=glance.lab.glance.images)
    data = some_bytes(seed=20)
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    asked = [
        line
        for line in glance.lab.glance.log().splitlines()
        if f"GET /v2/images/{image_id}/file" in line
    ]
    assert asked == []
    glance.check_chunk_map(image_id, data)


def test_listener_outlives_the_broker(glance: Images, listen: Listen) -> None:
    listener = listen(reconcile_interval_s=3)
    glance.lab.rabbitmq.stop()
    data = some_bytes(seed=21)
    with threaded(lambda: glance.upload(data)) as uploading:  # Glance waits for its broker
        glance.lab.rabbitmq.start()
        glance.lab.rabbitmq.wait_ready()
        image_id = uploading()
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)

    def hears_again() -> bool:
        glance.patch(image_id, touched=str(uuid.uuid4()))
        return metric(listener, 'acstor_glance_messages_total{event="image.update"}') > 0

    runs.wait_for(hears_again, DEADLINE_S, "messages after the restart", listener.log)


def test_work_goes_on_when_glance_or_the_listener_was_killed_in_the_middle(
    glance: Images, listen: Listen
) -> None:
    first = listen("first", retry_first_s=1)
    data = some_bytes(chunks=1024)
    image_id = glance.upload(data)

    def is_preparing(count: int) -> bool:
        return first.log().count(f"image {image_id}: preparing") >= count

    runs.wait_for(lambda: is_preparing(1), DEADLINE_S, "the first attempt", first.log)
    glance.lab.glance.kill()
    glance.lab.glance.start()
    glance.lab.glance.wait_ready()
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)
    nowhere = str(uuid.uuid4())
    attempts = first.log().count(f"image {image_id}: preparing")
    glance.patch(image_id, acstor_chunk_map=nowhere)
    runs.wait_for(lambda: is_preparing(attempts + 1), DEADLINE_S, "another attempt", first.log)
    first.kill()
    listen("second")
    glance.wait(image_id, lambda r: r["acstor_chunk_map"] != nowhere, "another chunk map")
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)


def test_artefacts_that_were_deleted_or_altered_are_found_and_mended(
    glance: Images, listen: Listen
) -> None:
    listener = listen()
    data = some_bytes(seed=22)
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    old = glance.check_chunk_map(image_id, data)
    glance.admin.delete_image(old["id"])
    glance.wait(image_id, lambda r: r["acstor_chunk_map"] != old["id"], "another chunk map")
    listener.stop()

    altered = glance.check_chunk_map(image_id, data)
    glance.patch(altered["id"], acstor_os_hash_value="00" * 64)
    [row] = manage(listener, "verify", image_id, status=3)
    assert "it is of other bytes" in row["fault"]
    manage(listener, "reconcile")
    damaged = glance.check_chunk_map(image_id, data)

    stored = glance.lab.glance.images / damaged["id"]
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    [row] = manage(listener, "verify", image_id, status=3)
    assert "checksum does not match" in row["fault"]
    manage(listener, "verify", "--repair", image_id)
    glance.check_chunk_map(image_id, data)
    assert [row["fault"] for row in manage(listener, "verify", "--bytes", image_id)] == [""]


def test_broken_image_is_tried_again_later(glance: Images, listen: Listen) -> None:
    data = some_bytes(seed=24)
    image_id = glance.upload(data)
    stored = glance.lab.glance.images / image_id
    stored.write_bytes(bytes(len(data)))  # not what Glance has a hash of
    listener = listen(retry_first_s=3600)
    record = glance.wait_state(image_id, "failed")
    assert "do not have the sha512" in record["acstor_message"]
    assert record["acstor_retry"].startswith("1 2")
    assert [row["outcome"] for row in manage(listener, "prepare", image_id)] == ["waiting"]
    listener.stop()
    [row] = manage(listener, "prepare", "--force", image_id, status=3)
    assert row["outcome"] == "failed"
    assert glance.record(image_id)["acstor_retry"].startswith("2 2")
    stored.write_bytes(data)
    glance.patch(image_id, acstor_retry="1 2026-01-01T00:00:00+00:00")
    listen("later")
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)


def test_purge_removes_everything(glance: Images, listen: Listen, tmp_path: pathlib.Path) -> None:
    listener = listen()
    refused_id = glance.upload(qcow2(tmp_path), disk_format="qcow2")
    image_id = glance.upload(some_bytes(seed=23))
    glance.wait_state(refused_id, "refused")
    glance.wait_state(image_id)
    listener.stop()
    by_id = {row["image"]: row for row in manage(listener, "list")}
    assert (by_id[refused_id]["state"], by_id[image_id]["state"]) == ("refused", "ready")
    assert {row["outcome"] for row in manage(listener, "purge")} == {"would be removed"}
    assert glance.artefacts() != []
    manage(listener, "purge", "--yes")
    assert glance.artefacts() == []
    for purged in (refused_id, image_id):
        record = glance.record(purged)
        assert [name for name in record if name.startswith(artefacts.PREFIX)] == []


def test_step_after_the_chunk_map_publishes_an_artefact_of_its_own(
    glance: Images, listen: Listen
) -> None:
    listener = listen()
    image_id = glance.upload(some_bytes(seed=30))
    glance.wait_state(image_id)
    listener.stop()
    conf = manage_command.load_conf(str(listener.conf_file))
    images = glance_images.connect(conf)
    given: list[str] = []

    def build(image: image_record.Record) -> None:
        given.append(image["id"])
        file = io.BytesIO(b"a boot image" * len(given))
        images.publish(BOOT_IMAGE, image, file, revision=len(given))

    step = preparer.NextStep(BOOT_IMAGE, build)
    preparing = preparer.Preparer(images, conf, after_chunk_map=[step])
    assert preparing.handle(ids.parse_image_id(image_id)) is preparer.Outcome.PREPARED
    assert preparing.handle(ids.parse_image_id(image_id)) is preparer.Outcome.NOTHING
    first = images.artefact_of(images.read(image_id), BOOT_IMAGE)
    assert first is not None
    build(images.read(image_id))  # a better one takes its place
    second = images.artefact_of(images.read(image_id), BOOT_IMAGE)
    assert second is not None
    assert (artefacts.revision_of(first), artefacts.revision_of(second)) == (1, 2)
    assert not glance.exists(first["id"])
    assert len(glance.artefacts_of(image_id)) == 2
    with images.opened(second["id"]) as pieces:
        assert b"".join(pieces) == b"a boot image" * 2


@hosts.needs_fuse
def test_boot_that_one_host_records_is_served_from_memory_on_the_next(
    glance: Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data = random.Random(3).randbytes(64 * CHUNK)
    image_id = glance.upload(data)
    listen(boot_traces_needed=1)
    glance.wait_state(image_id)
    booted = data[: 32 * CHUNK]

    @contextlib.contextmanager
    def agent(name: str) -> Iterator[agents.Agent]:
        sections = {
            "DEFAULT": {"transport_url": glance.lab.rabbitmq.url},
            "source_glance": api.credentials(glance.lab.keystone.auth_url, "acstor"),
        }
        nothing = local.ImageFolder(tmp_path / f"{name}-images")
        given = {"sources": "glance", "sections": sections, "boot_record_idle_s": 1.0}
        with local.agent(tmp_path / name, nothing, name=name, **given) as running:
            running.wait_ready()
            yield running

    def read(host: agents.Agent) -> bytes:
        with host.image_path(ids.parse_image_id(image_id)).open("rb", buffering=0) as file:
            return file.read(len(booted))

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
                DEADLINE_S,
            )
            assert read(second) == booted
        origins = second.status()["images"][image_id]["read"]
        assert origins["boot"]["bytes"] >= len(booted)  # and what the kernel read ahead
        assert not sum(count["bytes"] for name, count in origins.items() if name != "boot")
