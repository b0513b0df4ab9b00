# SPDX-License-Identifier: Apache-2.0
"""Faults around a real Glance: images get their chunk maps, and no wrong ones."""

import uuid
from collections.abc import Callable

from acstor_common.image import artefacts
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]


def test_copied_or_forged_properties_have_no_effect(glance: uploads.Images, listen: Listen) -> None:
    listener = listen()
    data, other = uploads.some_bytes(seed=4), uploads.some_bytes(seed=5)
    image_id = glance.upload(data)
    copied = {
        name: value
        for name, value in glance.wait_state(image_id).items()
        if name.startswith(artefacts.PREFIX)
    }
    artefact = glance.check_chunk_map(image_id, data)
    snapshot_id = glance.upload(other, **copied)
    lies = {name: value for name, value in artefact.items() if name.startswith(artefacts.PREFIX)}
    forged_id = glance.upload(uploads.some_bytes(chunks=1), **lies)
    victim_id = glance.upload(other, acstor_chunk_map=forged_id, acstor_state="ready")
    for wanted in (snapshot_id, victim_id):
        glance.wait_state(wanted)
        glance.check_chunk_map(wanted, other)
    glance.wait_state(forged_id)  # an image like any other
    glance.check_chunk_map(image_id, data)
    uploads.manage(listener, "reconcile")
    assert glance.exists(forged_id)
    assert {row["fault"] for row in uploads.manage(listener, "verify")} == {""}


def test_racing_listeners_prepare_each_image_once(glance: uploads.Images, listen: Listen) -> None:
    data_of = {}
    for seed in range(10, 16):
        data = uploads.some_bytes(seed=seed)
        data_of[glance.upload(data)] = data
    # Two pools: each gets every notification, and each finds all images at its start.
    pools = [{tuned.NOTIFICATION_POOL: f"race-{uuid.uuid4()}"} for _ in range(2)]
    both = [listen(f"l{n}", constants=pool, workers=2) for n, pool in enumerate(pools, 1)]
    late = uploads.some_bytes(seed=17)
    data_of[glance.upload(late)] = late
    for image_id, data in data_of.items():
        glance.wait_state(image_id)
        glance.check_chunk_map(image_id, data)
    name = 'acstor_glance_processed_images_total{outcome="prepared"}'
    assert sum(uploads.metric(listener, name) for listener in both) == len(data_of)


def test_listener_survives_an_outage_of_the_broker(glance: uploads.Images, listen: Listen) -> None:
    listener = listen(constants={tuned.RECONCILE_INTERVAL_S: 3})
    glance.lab.rabbitmq.stop()
    data = uploads.some_bytes(seed=21)
    with uploads.threaded(lambda: glance.upload(data)) as uploading:  # Glance waits for its broker
        glance.lab.rabbitmq.start()
        glance.lab.rabbitmq.wait_ready()
        image_id = uploading()
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)

    def hears_again() -> bool:
        glance.patch(image_id, touched=str(uuid.uuid4()))
        return (
            uploads.metric(listener, 'acstor_glance_notifications_total{event="image.update"}') > 0
        )

    runs.wait_for(hears_again, uploads.DEADLINE_S, "messages after the restart", listener.log)


def test_preparation_resumes_after_a_kill_of_glance_or_the_listener(
    glance: uploads.Images, listen: Listen
) -> None:
    first = listen("first", constants={tuned.RETRY_FIRST_S: 1})
    data = uploads.some_bytes(chunks=1024)
    image_id = glance.upload(data)

    def is_preparing(count: int) -> bool:
        return first.log().count(f"image {image_id}: preparing") >= count

    runs.wait_for(lambda: is_preparing(1), uploads.DEADLINE_S, "the first attempt", first.log)
    glance.lab.glance.kill()
    glance.lab.glance.start()
    glance.lab.glance.wait_ready()
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)
    nowhere = str(uuid.uuid4())
    attempts = first.log().count(f"image {image_id}: preparing")
    glance.patch(image_id, acstor_chunk_map=nowhere)
    runs.wait_for(
        lambda: is_preparing(attempts + 1), uploads.DEADLINE_S, "another attempt", first.log
    )
    first.kill()
    listen("second")
    glance.wait(image_id, lambda r: r["acstor_chunk_map"] != nowhere, "another chunk map")
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)


def test_deleted_or_altered_artefacts_are_detected_and_repaired(
    glance: uploads.Images, listen: Listen
) -> None:
    listener = listen()
    data = uploads.some_bytes(seed=22)
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    old = glance.check_chunk_map(image_id, data)
    glance.admin.delete_image(old["id"])
    glance.wait(image_id, lambda r: r["acstor_chunk_map"] != old["id"], "another chunk map")
    listener.stop()

    altered = glance.check_chunk_map(image_id, data)
    glance.patch(altered["id"], acstor_os_hash_value="00" * 64)
    [row] = uploads.manage(listener, "verify", image_id, status=3)
    assert "it is for other bytes" in row["fault"]
    uploads.manage(listener, "reconcile")
    damaged = glance.check_chunk_map(image_id, data)

    stored = glance.lab.glance.images / damaged["id"]
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    [row] = uploads.manage(listener, "verify", image_id, status=3)
    assert "checksum does not match" in row["fault"]
    uploads.manage(listener, "verify", "--repair", image_id)
    glance.check_chunk_map(image_id, data)
    assert [row["fault"] for row in uploads.manage(listener, "verify", "--bytes", image_id)] == [""]


def test_failed_image_is_retried_later(glance: uploads.Images, listen: Listen) -> None:
    data = uploads.some_bytes(seed=24)
    image_id = glance.upload(data)
    stored = glance.lab.glance.images / image_id
    stored.write_bytes(bytes(len(data)))  # Glance's hash does not match it
    listener = listen()
    record = glance.wait_state(image_id, "failed")
    assert "the sha512 of its data differs" in record["acstor_message"]
    assert record["acstor_retry"].startswith("1 2")
    assert [row["outcome"] for row in uploads.manage(listener, "prepare", image_id)] == ["waiting"]
    listener.stop()
    [row] = uploads.manage(listener, "prepare", "--force", image_id, status=3)
    assert row["outcome"] == "failed"
    assert glance.record(image_id)["acstor_retry"].startswith("2 2")
    stored.write_bytes(data)
    glance.patch(image_id, acstor_retry="1 2026-01-01T00:00:00+00:00")
    listen("later")
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)
