# SPDX-License-Identifier: Apache-2.0
"""The cloud's status from the database, Glance and the samples of hosts."""

import datetime
import time

import pytest

from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.api import glance_client
from acstor_decision.db import models
from tests.fakes import checkpoint_hosts
from tests.unit.decision.api import conftest as api

LONG_AGO_S = 1_000_000_000.0
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-0000000000{:02}"


@pytest.fixture
def status(client):
    def ask(**headers):
        answer = client.get("/v1/status", headers=headers)
        assert answer.status_code == 200, answer.json
        return answer.json

    return ask


def sample(number, **fields):
    return api.sample(number, sent_s=time.time(), **fields)


def codes(found):
    return [one["code"] for one in found["findings"]]


def held(state, **fields):
    total = {
        "total_bytes": 100,
        "remaining_bytes": 0 if state is fill_progress.FillState.FULLY_CACHED else 40,
    }
    whole = fill_progress.FillStatus(state=state, is_used=True, **total, **fields)
    return decision_messages.HeldImage(size_bytes=100, fill=whole)


def enrol(store, host, ago_s):
    row = {"host": host, "state": "enrolled", "issued_s": time.time() - ago_s}
    store.change_enrolment(host, lambda _: models.Enrolment(**row, not_after_s=time.time() + 86400))


def test_cloud_without_hosts_has_a_warning(status):
    found = status()
    assert (found["health"], codes(found), found["ring"]) == ("warning", ["no-hosts"], None)
    assert found["hosts"]["up"] == 0 and found["checkpoints"]["oldest_age_s"] is None


def test_status_covers_hosts_images_guests_and_checkpoints(status, store, glance):
    reported = decision_messages.HostHealth(version="1.2", fallbacks={"not-mapped": 3})
    images = {
        IMAGE.format(1): held(fill_progress.FillState.FULLY_CACHED),
        IMAGE.format(2): held(fill_progress.FillState.NO_SPACE, why="it lacks 40 bytes"),
        IMAGE.format(3): held(fill_progress.FillState.QUEUED),
    }
    api.note(store, sample(0, health=reported, images=images), sample(1, health=reported))
    store.record_samples({"h0009": (api.sample(9, sent_s=LONG_AGO_S), 0)})
    api.publish(store, 1, 2)
    glance.add(IMAGE.format(1))
    glance.add(IMAGE.format(2), acstor_state="failed", acstor_message="the store fails")
    too_large = {"acstor_message": "it expands beyond the limit", "acstor_retry": "1 never"}
    glance.add(IMAGE.format(6), acstor_state="failed", **too_large)
    glance.add(IMAGE.format(3), disk_format="iso", acstor_state="", acstor_state_of="")
    now = datetime.datetime.now(datetime.UTC).isoformat()
    glance.add(IMAGE.format(4), acstor_state="", updated_at=now)
    glance.add(IMAGE.format(5), acstor_state="", updated_at="2020-01-01T00:00:00Z")
    store.record_checkpoint(checkpoint_hosts.taken(1), time.time(), 10)

    found = status()
    assert found["health"] == "warning"
    assert set(codes(found)) >= {
        *("host-silent", "nova-fallback", "image-failed", "image-not-prepared", "image-not-cached")
    }
    assert found["hosts"] == {
        "up": 2,
        "overloaded": 0,
        "silent": 1,
        "waiting": 0,
        "drained": 0,
        "versions": {"1.2": 2},
    }
    assert found["ring"]["epoch"] == 1 and found["ring"]["up_to_date_hosts"] == 2
    unsupported = sorted(found["images"].pop("unsupported"))
    assert unsupported[0] == "it expands beyond the limit"
    assert unsupported[1].startswith("its disk format is iso")
    assert found["images"] == {
        "ready": 1,
        "preparing": 2,
        "failed": 1,
        "unsupported_total": 2,
        "is_complete": True,
    }
    assert found["images_in_use"] == {"used": 3, "fully_cached": 1}
    assert found["guests"]["fallbacks"] == {"not-mapped": 6}
    assert found["checkpoints"]["servers"] == 1
    (unfinished,) = (one for one in found["findings"] if one["code"] == "image-not-cached")
    assert unfinished["subjects"] == [f"h0000: {IMAGE.format(2)}: it lacks 40 bytes"]


def test_status_covers_the_rest_while_glance_is_away(status, store, glance):
    api.note(store, sample(0))
    glance.failure = glance_client.GlanceUnreachable("ConnectFailure")
    found = status()
    assert found["images"] is None and "glance-unreachable" in codes(found)
    assert found["hosts"]["up"] == 1


def test_revoked_hosts_are_not_reported_as_silent(status, store):
    store.record_samples({"h0009": (api.sample(9, sent_s=LONG_AGO_S), 0)})
    assert codes(status()) == ["no-samples", "no-table"]

    store.change_enrolment("h0009", lambda _: models.Enrolment(host="h0009", state="revoked"))
    assert codes(status()) == ["no-hosts"]


def test_enrolled_hosts_without_samples_are_named(status, store):
    api.publish(store, 1, 1)
    api.note(store, sample(0))
    for host, ago_s in (("h0000", 3600), ("h0001", 600), ("h0002", 1)):
        enrol(store, host, ago_s)
    found = status()
    assert codes(found) == ["host-no-samples"] and found["health"] == "warning"
    assert found["findings"][0]["subjects"] == ["h0001: its certificate is 10 min old"]
    assert (found["hosts"]["up"], found["hosts"]["silent"]) == (1, 2)
    assert store.silent_hosts(time.time() - 120) == (1, ["h0001"])
    assert store.silent_hosts(time.time() - 1000) == (0, ())


def test_cloud_without_any_sample_has_a_warning(status, store):
    enrol(store, "h0001", 600)
    assert codes(status()) == ["host-no-samples", "no-table"]


def test_failing_vaults_are_named_for_half_an_hour(status, store):
    api.publish(store, 1, 1)
    api.note(store, sample(0))
    full = [messages.Failing("", "full")]
    for host, ago_s in (("h0000", 1700), ("h0001", 1900)):
        store.record_checkpoint_failures(host, full, time.time() - ago_s)
    (found,) = status()["findings"]
    assert (found["code"], found["subjects"]) == ("checkpoint-failed", ["vault on h0000: full"])
    assert "vault_limit_bytes" in found["remedy"]


def test_tenants_may_not_see_the_status(client):
    for header, value in api.TENANT.items():
        client.environ_base[f"HTTP_{header.upper().replace('-', '_')}"] = value
    assert client.get("/v1/status").status_code == 403
