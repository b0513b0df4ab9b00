# SPDX-License-Identifier: Apache-2.0
"""A damaged JSON column reads as unknown; lists still serve the other rows."""

import time

import pytest
import sqlalchemy as sa

from acstor_common.identity import certificates
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.util import log_limit
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.db import json_columns
from acstor_decision.db import models
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts
from tests.unit.decision.api import conftest as api

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
H0001 = "/v1/hosts/h0001"
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
DAMAGES = {
    "cut": '{"version": ',
    "of another type": '[{"version": 7}]',
    "deep": "[" * 100_000,
}
LISTS = {
    (models.Host, "health"): ("/v1/status", "/v1/hosts", "/v1/hosts/h0001"),
    (models.Host, "peers"): ("/v1/traffic/peers", "/v1/hosts/h0001"),
    (models.HeldImage, "fill"): (f"/v1/images/{IMAGE}/hosts", "/v1/images", "/v1/status"),
    (models.HeldImage, "task"): (f"/v1/images/{IMAGE}/hosts",),
    (models.Boot, "timeline"): ("/v1/boots", f"/v1/servers/{SERVER}/boots"),
    (models.Checkpoint, "holders"): ("/v1/checkpoints", "/v1/status"),
    (models.CheckpointFailures, "failing"): ("/v1/status",),
    (models.PublishedRing, "table"): ("/v1/hosts", "/v1/rings", "/v1/status"),
    (models.Enrolment, "public_key"): ("/v1/hosts", "/v1/hosts/h0001"),
}
TIMES = {
    (models.Host, "seen_s"): ("/v1/hosts", H0001, "/v1/status"),
    (models.Enrolment, "issued_s"): ("/v1/hosts", H0001, "/v1/status"),
    (models.Boot, "reported_s"): ("/v1/boots", f"/v1/servers/{SERVER}/boots"),
    (models.PublishedRing, "published_s"): ("/v1/rings", "/v1/ring", "/v1/status"),
}
NO_JSON = {
    (models.AuthorityKey, "secret_key"),
    (models.AuthorityKey, "certificate"),
    (models.Enrolment, "former_key"),
    (models.PublishedRing, "overloaded"),
}
NO_LIST = {(models.PendingTask, "task")}
DAMAGE = r"^database: \w+\.\w+ of .* is damaged and counts as unknown: "
UNKNOWN_STATE = r"^database: enrolments.state of h0001 is damaged and counts as revoked: .*'absent'"


@pytest.fixture(autouse=True)
def nothing_logged_before(monkeypatch):
    monkeypatch.setattr(json_columns, "_limit", log_limit.LogLimit(json_columns.LOG_EVERY_S))


@pytest.fixture
def cloud(store, api_configuration):
    """Return a store with two hosts and every kind of report."""
    status = fill_progress.FillStatus(
        state=fill_progress.FillState.QUEUED, is_used=True, total_bytes=9, remaining_bytes=4
    )
    held = decision_messages.HeldImage(size_bytes=9, fill=status)
    boot = boot_timeline.Timeline(
        image_id=IMAGE, instance_id=SERVER, began_at_s=1.0, opened_s=1.0, slice_s=0.25
    )
    enrolled = enrolled_hosts.EnrolledHosts(api_configuration, store, lambda: time.time() - 60)
    for number in (1, 2):
        enrolled.enrol(f"h000{number}")
        api.note(
            store,
            api.sample(
                number,
                sent_s=time.time(),
                images={IMAGE: held},
                boots=(boot,),
                health=decision_messages.HostHealth(version="1.2"),
                peers={"h0009": decision_messages.PeerTraffic(1, 2)},
            ),
        )
        taken = checkpoint_hosts.taken(number)
        store.record_checkpoint(taken, time.time(), 10)
        failing = checkpoint_messages.Failing(SERVER, "timeout")
        store.record_checkpoint_failures(f"h000{number}", [failing], time.time())
    api.publish(store, 1, 2)
    return store


def damage(store, column, text):
    """Damage one row of a table."""
    model, name = column
    key = model.__table__.primary_key.columns[0]
    with store.engine().begin() as link:
        (first,) = link.execute(sa.select(sa.func.min(key))).one()
        done = link.execute(sa.update(model).where(key == first).values({name: text}))
    assert done.rowcount == 1


def test_every_text_column_is_covered():
    texts = {
        (mapper.class_, attribute.key)
        for mapper in models.Base.registry.mappers
        for attribute in mapper.column_attrs
        if isinstance(attribute.columns[0].type, sa.Text)
    }
    assert texts == LISTS.keys() | NO_JSON | NO_LIST


@pytest.mark.parametrize("text", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(
    "column", LISTS, ids=lambda column: f"{column[0].__tablename__}.{column[1]}"
)
@pytest.mark.allow_log(DAMAGE)
def test_lists_with_a_damaged_row_are_served_and_log_it_once(
    client, cloud, watched_log, column, text
):
    before = {path: client.get(path).json for path in LISTS[column]}
    damage(cloud, column, text)
    for path in LISTS[column] * 2:
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.json)
        assert answer.json.keys() == before[path].keys()
    assert len(watched_log.messages) == 1


@pytest.mark.parametrize(
    "column", TIMES, ids=lambda column: f"{column[0].__tablename__}.{column[1]}"
)
def test_lists_with_a_time_out_of_range_are_served(client, cloud, column):
    damage(cloud, column, 1e300)
    for path in TIMES[column]:
        assert client.get(path).status_code == 200, path


@pytest.mark.expect_log(DAMAGE)
def test_needed_images_with_a_damaged_id_are_incomplete(client, cloud):
    assert client.get("/v1/needed-images").json["is_complete"]
    damage(cloud, (models.HeldImage, "image_id"), "\ufffd")
    answer = client.get("/v1/needed-images").json
    assert (answer["images"], answer["is_complete"]) == ([IMAGE], False)


def test_locality_omits_a_damaged_host_and_negative_numbers(client, cloud):
    with cloud.engine().begin() as link:
        link.execute(sa.update(models.HeldImage).values(cached_bytes=9, missing_bytes=0))
        rates = {"received_bytes_s": -7.0, "sent_bytes_s": -7.0}
        link.execute(sa.update(models.Host).values(rates))
    for model in (models.Host, models.HeldImage):
        damage(cloud, (model, "host"), "h 1")
    answer = client.get(f"/v1/images/{IMAGE}/locality")
    known = [(host["host"], host["link_load"]) for host in answer.json["hosts"]]
    assert known == [("h0002", 0.0)]


def publish_damaged(cloud, text):
    """Publish epoch 2, and damage its row."""
    api.publish(cloud, 2, 2)
    with cloud.engine().begin() as link:
        newest = sa.update(models.PublishedRing).where(models.PublishedRing.epoch == 2)
        link.execute(newest.values(table=text))


@pytest.mark.expect_log(DAMAGE)
def test_status_names_a_damaged_table_until_two_others_follow(client, cloud):
    publish_damaged(cloud, "{")
    for epoch, subjects in ((3, [["epoch 2"]]), (4, [["epoch 2"]]), (5, [])):
        findings = client.get("/v1/status").json["findings"]
        named = [one["subjects"] for one in findings if one["code"] == "table-damaged"]
        assert named == subjects
        api.publish(cloud, epoch, 2)


@pytest.mark.parametrize("text", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.expect_log(DAMAGE)
def test_damaged_table_is_refused_and_older_ones_are_shown(client, cloud, text):
    publish_damaged(cloud, text)
    for path, status in (("/v1/ring", 409), ("/v1/rings/2", 409), ("/v1/rings/1", 200)):
        answer = client.get(path)
        assert answer.status_code == status, (path, answer.json)
        assert status == 200 or "epoch 2 cannot be shown: its row is damaged" in answer.text


@pytest.mark.expect_log(UNKNOWN_STATE)
def test_host_in_an_unknown_enrolment_state_counts_as_revoked(client, cloud):
    damage(cloud, (models.Enrolment, "state"), "absent")
    known = {host["host"]: host for host in client.get("/v1/hosts").json["hosts"]}
    states = {name: host["enrolment"]["state"] for name, host in known.items()}
    assert states == {"h0001": "revoked", "h0002": "enrolled"}
    assert client.get("/v1/hosts/h0001").json["enrolment"]["state"] == "revoked"
    assert client.get("/v1/status").status_code == 200


@pytest.mark.expect_log(UNKNOWN_STATE)
@pytest.mark.expect_log("host h0001: no certificate for user user at .*: it is revoked")
def test_host_in_an_unknown_enrolment_state_gets_no_certificate_until_it_is_allowed(client, cloud):
    damage(cloud, (models.Enrolment, "state"), "absent")
    csr = certificates.request(ids.HostId("h0001"), certificates.new_key()).decode()
    agent = {"X-Roles": "acstor-reader", "X-User-Id": "user", "X-Project-Id": "service"}

    def status():
        body = {"csr": csr, "proof": ""}
        return client.post(f"{H0001}/certificate", json=body, headers=agent).status_code

    assert status() == 403
    assert client.post(f"{H0001}/allow", json={}).status_code == 202
    assert status() == 200


@pytest.mark.expect_log(DAMAGE)
def test_host_with_damaged_health_has_no_version(client, cloud):
    damage(cloud, (models.Host, "health"), "{")
    assert client.get("/v1/status").json["hosts"]["versions"] == {"1.2": 1, "": 1}


@pytest.mark.expect_log(DAMAGE)
def test_recovery_from_a_checkpoint_without_holders_is_refused(client, cloud):
    damage(cloud, (models.Checkpoint, "holders"), "{")
    for number, status in ((1, 409), (2, 200)):
        checkpoint_id = checkpoint_hosts.checkpoint_id(number)
        answer = client.get(f"/v1/checkpoints/{checkpoint_id}/recovery")
        assert answer.status_code == status, answer.json
        is_kept = cloud.get_checkpoint(checkpoint_id).recovered_s is not None
        assert is_kept == (status == 200)


@pytest.mark.expect_log(DAMAGE)
def test_damaged_task_is_dropped_and_others_are_sent(cloud):
    for number in (1, 2):
        task = decision_messages.ImageTask(
            request=number, kind=decision_messages.TaskKind.UNPIN, image_id=IMAGE
        )
        cloud.record_task([f"h000{number}"], task, 5.0)
    damage(cloud, (models.PendingTask, "task"), "{")
    for _ in range(2):
        assert [sent.host for sent in cloud.unacknowledged_tasks(1.0)] == ["h0002"]
