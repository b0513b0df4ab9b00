# SPDX-License-Identifier: Apache-2.0
"""Images in the API: visibility by role, reports of hosts, actions and locality."""

import itertools
import time

import pytest

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision import rpc
from acstor_decision.api import app
from acstor_decision.api import glance_client
from acstor_decision.db import image_queries
from tests.unit.decision.api import conftest

IMAGES = [f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(10, 15)]
SIZE = 1 << 20
WARM = decision_messages.HeldImage(
    size_bytes=SIZE,
    cached_bytes=SIZE,
    missing_bytes=0,
    boot_image="ready",
    boot_revision=3,
    read=decision_messages.ReadBytes(local=70, boot=20, peer=6, source=4),
)
COLD = decision_messages.HeldImage()
OWNED = fill_progress.FillStatus(
    state=fill_progress.FillState.FULLY_CACHED, is_used=True, total_bytes=SIZE, remaining_bytes=0
)
FILLING = fill_progress.FillStatus(
    state=fill_progress.FillState.FILLING,
    is_used=True,
    total_bytes=SIZE,
    remaining_bytes=SIZE // 4,
    rate_bytes_s=1000,
    remaining_s=262.1,
)
LACKING = decision_messages.HeldImage(fill=FILLING)
PINNED = fill_progress.FillStatus(
    state=fill_progress.FillState.QUEUED, is_used=False, is_pinned=True
)
NOT_USED = fill_progress.FillStatus(state=fill_progress.FillState.EVICTABLE, is_used=False)
ABOUT_IMAGES = ("prepare", "pre-seed", "flatten", "record-boots")


def hold(store, *images_of_hosts, **fields):
    """Let host n report its images."""
    now_s = time.time()
    conftest.note(
        store,
        *(
            conftest.sample(n, sent_s=now_s, images=reported, **fields)
            for n, reported in enumerate(images_of_hosts)
        ),
    )


@pytest.fixture
def open_to_tenants(api_configuration, store, glance, bus, tmp_path):
    """Return a tenant's client, where the policy lets tenants see their images."""
    policy = tmp_path / "policy.yaml"
    policy.write_text('"acstor:image:list": ""\n"acstor:image:get": ""\n')
    api_configuration.set_override("policy_file", str(policy), "oslo_policy")
    made = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    made.environ_base["keystone.token_auth"] = object()
    made.environ_base.update(
        {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in conftest.TENANT.items()}
    )
    return made


def test_images_are_listed_with_warm_hosts_and_read_sources(client, store, glance):
    glance.add(IMAGES[0])
    hold(store, {IMAGES[0]: WARM}, {IMAGES[0]: WARM}, {IMAGES[0]: COLD})
    [shown] = client.get("/v1/images").json["images"]
    assert (shown["name"], shown["state"], shown["size_bytes"]) == ("debian", "ready", SIZE)
    assert (shown["hosts"], shown["warm_hosts"], shown["cached_bytes"]) == (3, 2, 2 * SIZE)
    assert shown["read"] == {"local": 140, "boot": 40, "peer": 12, "source": 8}
    assert (shown["boot_image"], shown["boot_revision"]) == (None, 3)
    assert client.get(f"/v1/images/{IMAGES[0]}").json == {**shown, "parents": [], "depth": 0}


def test_boot_state_is_shown_and_ignored_if_copied_from_another_image(client, glance):
    said = {"acstor_boot_state": "unbootable", "acstor_boot_message": "no boot loader"}
    glance.add(IMAGES[0], **said)
    glance.add(IMAGES[1], **said, acstor_state_of=IMAGES[0])  # a copy of the properties
    glance.add(IMAGES[2], acstor_boot_state="perhaps")

    def reported(image_id):
        shown = client.get(f"/v1/images/{image_id}").json
        return shown["boot_state"], shown["boot_message"]

    assert reported(IMAGES[0]) == ("unbootable", "no boot loader")
    assert reported(IMAGES[1]) == reported(IMAGES[2]) == (None, "")


def test_image_is_shown_with_its_parents(client, glance):
    glance.add(IMAGES[0], acstor_base=IMAGES[1], acstor_own_bytes="5", acstor_shared_bytes="0")
    glance.add(IMAGES[1], acstor_base=IMAGES[2], acstor_own_bytes="7")
    glance.add(IMAGES[2], acstor_base=IMAGES[3], acstor_state_of=IMAGES[4])  # a copy

    def reported(image_id):
        shown = client.get(f"/v1/images/{image_id}").json
        return [shown[name] for name in ("parents", "depth", "own_bytes", "shared_bytes")]

    assert reported(IMAGES[0]) == [IMAGES[1:3], 2, 5, 0]
    assert reported(IMAGES[1]) == [[IMAGES[2]], 1, 7, None]
    assert reported(IMAGES[2]) == [[], 0, None, None]
    del glance.shown[IMAGES[1]]  # deleted, or not visible to the user
    assert reported(IMAGES[0])[:2] == [[IMAGES[1]], 1]


def test_parents_are_bounded_when_the_chain_is_long_or_cyclic(client, glance):
    glance.add(IMAGES[0], acstor_base=IMAGES[1])
    glance.add(IMAGES[1], acstor_base=IMAGES[0])
    assert client.get(f"/v1/images/{IMAGES[0]}").json["parents"] == [IMAGES[1]]
    line = [f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(100, 130)]
    for image_id, base in itertools.pairwise(line):
        glance.add(image_id, acstor_base=base)
    assert client.get(f"/v1/images/{line[0]}").json["parents"] == line[1:17]
    for said in ("", "no id", 7, "../x"):
        glance.add(IMAGES[0], acstor_base=said, acstor_own_bytes="x", acstor_shared_bytes="-1")
        shown = client.get(f"/v1/images/{IMAGES[0]}").json
        assert (shown["parents"], shown["own_bytes"], shown["shared_bytes"]) == ([], None, None)


def test_image_list_continues_after_the_marker(client, store):
    hold(store, dict.fromkeys(IMAGES, WARM))
    first = client.get("/v1/images?limit=2").json["images"]
    rest = client.get(f"/v1/images?marker={first[-1]['image_id']}").json["images"]
    assert [image["image_id"] for image in (*first, *rest)] == IMAGES


def test_admin_sees_images_that_are_deleted_in_glance(client, store):
    hold(store, {IMAGES[0]: WARM})
    shown = client.get(f"/v1/images/{IMAGES[0]}").json
    assert (shown["name"], shown["state"], shown["warm_hosts"]) == (None, None, 1)


def test_list_of_a_tenant_asks_glance_once_for_many_images(open_to_tenants, store, glance):
    asked, get_images = [], glance.get_images
    glance.get_images = lambda wanted, auth: asked.append(wanted) or get_images(wanted, auth)
    hold(store, dict.fromkeys(IMAGES, WARM))
    assert open_to_tenants.get("/v1/images?limit=1").json["images"] == []
    assert asked == [IMAGES]


def test_tenants_see_their_visible_images_and_no_hosts(open_to_tenants, store, glance):
    glance.add(IMAGES[3])
    hold(store, dict.fromkeys(IMAGES, WARM))
    listed = open_to_tenants.get("/v1/images?limit=1").json["images"]
    assert [image["image_id"] for image in listed] == [IMAGES[3]]
    assert open_to_tenants.get(f"/v1/images/{IMAGES[0]}").status_code == 404
    assert open_to_tenants.get(f"/v1/images/{IMAGES[3]}").json["hosts"] == 1
    assert open_to_tenants.get(f"/v1/images/{IMAGES[3]}/hosts").status_code == 403


@pytest.mark.expect_log("showing images without their names")
def test_images_are_listed_without_names_while_glance_is_away(client, store, glance):
    glance.failure = glance_client.GlanceUnreachable("ConnectFailure")
    hold(store, {IMAGES[0]: WARM})
    assert client.get("/v1/images").json["images"][0]["name"] is None


def test_tenants_get_an_error_while_glance_is_away(open_to_tenants, store, glance):
    glance.failure = glance_client.GlanceUnreachable("ConnectFailure")
    hold(store, {IMAGES[0]: WARM})
    answer = open_to_tenants.get("/v1/images")
    assert answer.status_code == 503
    assert "Glance" in answer.json["error"]["message"]


def test_hosts_of_an_image_are_listed_with_bytes_and_task_progress(client, store, glance):
    glance.add(IMAGES[0])
    reported = decision_messages.TaskProgress(
        request=7,
        kind=decision_messages.TaskKind.PRE_SEED,
        state=decision_messages.TaskState.RUNNING,
        done=1,
        total=9,
    )
    hold(store, {IMAGES[0]: WARM}, {IMAGES[0]: decision_messages.HeldImage(task=reported)}, {})
    first, second = client.get(f"/v1/images/{IMAGES[0]}/hosts").json["hosts"]
    assert (first["host"], first["cached_bytes"], first["task"]) == ("h0000", SIZE, None)
    assert (second["host"], second["cached_bytes"]) == ("h0001", None)
    assert second["task"]["request"] == 7 and second["task"]["state"] == "running"


def keep(store, *wholes):
    """Let host n report the fill status of the first image."""
    hold(store, *({IMAGES[0]: decision_messages.HeldImage(fill=whole)} for whole in wholes))


def test_image_is_shown_with_using_hosts_and_fill_status(client, store):
    keep(store, OWNED, FILLING, PINNED, NOT_USED, None)
    for shown in (
        client.get(f"/v1/images/{IMAGES[0]}").json,
        client.get("/v1/images").json["images"][0],
    ):
        # A host that does not report its fill status may use the image.
        assert (shown["hosts"], shown["using_hosts"], shown["fully_cached_hosts"]) == (5, 3, 1)
    rows = client.get(f"/v1/images/{IMAGES[0]}/hosts").json["hosts"]
    shown = [row["fill"] for row in rows]
    assert [
        whole and (whole["state"], whole["is_used"], whole["cached_share"]) for whole in shown
    ] == [
        ("fully_cached", True, 1.0),
        ("filling", True, 0.75),
        ("queued", False, None),
        ("evictable", False, None),
        None,
    ]
    assert (shown[1]["rate_bytes_s"], shown[1]["remaining_s"], shown[1]["mode"]) == (
        1000,
        262.1,
        "normal",
    )


@pytest.mark.parametrize("action", ["hydrate", "pause", "resume", "unpin"])
def test_action_goes_to_hosts_that_keep_the_image_or_to_named_hosts(action, client, store, bus):
    keep(store, OWNED, FILLING, PINNED, NOT_USED, None)
    answer = client.post(f"/v1/images/{IMAGES[0]}/{action}")
    assert (answer.status_code, answer.json["hosts"]) == (202, ["h0000", "h0001", "h0002"])
    client.post(f"/v1/images/{IMAGES[0]}/{action}", json={"hosts": ["h0003"]})
    assert [(task.kind.value, to) for task, to in bus.tasks] == [
        (action, ["h0000", "h0001", "h0002"]),
        (action, ["h0003"]),
    ]
    assert {task.deadline_s for task, _ in bus.tasks} == {0.0}
    assert [given.host for given in store.unacknowledged_tasks(0)] == [f"h{n:04}" for n in range(4)]


@pytest.mark.parametrize("deadline_s", [-1, 1e9, "soon", None])
def test_invalid_deadlines_are_refused(deadline_s, client, store, bus):
    keep(store, FILLING)
    path = f"/v1/images/{IMAGES[0]}/hydrate"
    assert client.post(path, json={"deadline_s": deadline_s}).status_code == 400
    assert client.post(path, json={"deadline_s": 90.5}).status_code == 202
    [(task, _)] = bus.tasks
    assert task.deadline_s == 90.5
    assert (
        30 < task.due_at_s - time.time() <= 90.5
    )  # an absolute time, for hosts that receive the task late


def test_image_that_no_host_keeps_is_not_hydrated(client, store, bus):
    keep(store, NOT_USED, None)
    answer = client.post(f"/v1/images/{IMAGES[0]}/hydrate")
    assert answer.status_code == 409
    assert answer.json["error"]["message"].startswith(f"no host uses image {IMAGES[0]}")
    assert not bus.tasks


@pytest.mark.parametrize("path", ["", "/hosts"])
def test_unknown_images_are_not_found(path, client, store):
    assert client.get(f"/v1/images/{IMAGES[0]}{path}").status_code == 404
    assert client.get(f"/v1/images/no-image{path}").status_code == 400


def test_disks_are_flattened_without_their_image_in_glance(client, store, bus):
    hold(store, {IMAGES[0]: WARM}, {})
    answer = client.post(f"/v1/images/{IMAGES[0]}/flatten", json={"hosts": ["h0001"]})
    assert (answer.status_code, answer.json["hosts"]) == (202, ["h0001"])
    assert client.post(f"/v1/images/{IMAGES[0]}/flatten").json["hosts"] == ["h0000", "h0001"]
    (first, to_one), (_, to_all) = bus.tasks
    assert (first.kind.value, to_one, to_all) == ("flatten", ["h0001"], None)


@pytest.mark.parametrize("action", [*ABOUT_IMAGES, "hydrate", "pause", "resume", "unpin"])
def test_actions_on_unknown_images_are_refused(action, client, store, bus):
    hold(store, {IMAGES[0]: WARM})
    assert client.post(f"/v1/images/{IMAGES[1]}/{action}").status_code == 404
    assert not bus.tasks and not bus.wanted


def test_image_is_prepared_again_after_a_failure_or_by_force(client, glance, bus):
    glance.add(IMAGES[0])
    glance.add(IMAGES[1], acstor_state="failed", acstor_state_of=IMAGES[1])
    assert client.post(f"/v1/images/{IMAGES[0]}/prepare").status_code == 202
    client.post(f"/v1/images/{IMAGES[0]}/prepare", json={"force": True})
    client.post(f"/v1/images/{IMAGES[1]}/prepare")
    assert [wanted.is_forced for wanted in bus.wanted] == [False, True, True]


def test_unsupported_image_is_not_prepared(client, glance, bus):
    glance.add(IMAGES[0], disk_format="ploop")
    answer = client.post(f"/v1/images/{IMAGES[0]}/prepare")
    assert answer.status_code == 409 and "ploop" in answer.json["error"]["message"]
    assert not bus.wanted


def test_image_of_a_convertible_format_is_prepared_unless_disabled(client, glance, bus):
    glance.add(IMAGES[0], disk_format="vmdk")
    assert client.post(f"/v1/images/{IMAGES[0]}/prepare").status_code == 202
    why = image_record.why_not_served(image_record.Image(status="active", disk_format="vmdk"))
    glance.add(IMAGES[1], disk_format="vmdk", acstor_message=artefacts.fit_message(why))
    answer = client.post(f"/v1/images/{IMAGES[1]}/prepare")
    assert answer.status_code == 409 and "convert_formats" in answer.json["error"]["message"]
    assert [wanted.image_id for wanted in bus.wanted] == [IMAGES[0]]


def test_task_goes_to_all_hosts_or_to_named_hosts(client, store, glance, bus):
    glance.add(IMAGES[0])
    hold(store, {}, {}, {})
    everywhere = client.post(f"/v1/images/{IMAGES[0]}/pre-seed").json
    client.post(f"/v1/images/{IMAGES[0]}/pre-seed", json={"hosts": ["h0002"]})
    client.post(f"/v1/images/{IMAGES[0]}/record-boots", json={"hosts": ["h0001"], "boots": 4})
    (first, to_all), (_, to_one), (record, _) = bus.tasks
    assert (to_all, to_one) == (None, ["h0002"])
    assert everywhere["hosts"] == ["h0000", "h0001", "h0002"]
    assert everywhere["request"] == first.request < 1 << 53
    assert (record.kind.value, record.boots) == ("record_boots", 4)


def test_tasks_are_recorded_for_each_target_host(client, store, glance, bus):
    glance.add(IMAGES[0])
    hold(store, {}, {})
    client.post(f"/v1/images/{IMAGES[0]}/pre-seed")
    client.post(f"/v1/images/{IMAGES[0]}/record-boots", json={"hosts": ["h0001"]})
    noted = [(given.host, given.task) for given in store.unacknowledged_tasks(0)]
    assert noted == [("h0000", bus.tasks[0][0]), ("h0001", bus.tasks[1][0])]


@pytest.mark.parametrize(
    ("action", "is_grantable"),
    [("pre-seed", True), ("hydrate", True), ("unpin", False), ("record-boots", False)],
)
def test_host_that_an_operator_tells_to_cache_an_image_may_request_a_grant_at_once(
    client, store, glance, bus, action, is_grantable
):
    glance.add(IMAGES[0])
    hold(store, {})
    grantable = []
    bus.on_task = lambda: grantable.append(store.is_grantable(IMAGES[0], time.time()))
    body = {"hosts": ["h0000"]}
    assert client.post(f"/v1/images/{IMAGES[0]}/{action}", json=body).status_code == 202
    assert grantable == [is_grantable]


def test_pre_seed_count_selects_the_least_busy_cold_hosts(client, store, glance, bus):
    glance.add(IMAGES[0])
    read_by_nobody = decision_messages.HeldImage(size_bytes=SIZE)
    reported = {}, {}, {IMAGES[0]: WARM}, {IMAGES[0]: COLD}, {IMAGES[0]: read_by_nobody}, {}, {}
    hold(store, *reported)
    busy = decision_messages.TrafficBytes(10**9, 0)
    conftest.note(store, conftest.sample(0, sent_s=time.time(), total=busy))
    conftest.note(store, conftest.sample(6, sent_s=1.0, total=decision_messages.TrafficBytes()))
    asked = client.post(f"/v1/images/{IMAGES[0]}/pre-seed", json={"count": 3}).json
    assert asked["hosts"] == ["h0001", "h0003", "h0004"]
    all_cold = client.post(f"/v1/images/{IMAGES[0]}/pre-seed", json={"count": 99}).json
    assert all_cold["hosts"] == ["h0001", "h0003", "h0004", "h0005", "h0000"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"hosts": ["h0009"]}, 409, "hosts send no samples: h0009"),
        ({"hosts": ["h0000"], "count": 1}, 400, "either"),
        ({"hosts": ["h0000"] * 1001}, 400, "hosts"),
        ({"count": -1}, 400, "count"),
    ],
)
def test_invalid_target_hosts_are_refused_with_a_reason(
    body, status, words, client, store, glance, bus
):
    glance.add(IMAGES[0])
    hold(store, {})
    answer = client.post(f"/v1/images/{IMAGES[0]}/pre-seed", json=body)
    assert answer.status_code == status
    assert words in answer.json["error"]["message"]
    assert not bus.tasks


def test_image_without_a_chunk_map_must_be_prepared_first(client, store, glance, bus):
    glance.add(IMAGES[0], acstor_chunk_map="")
    hold(store, {})
    answer = client.post(f"/v1/images/{IMAGES[0]}/pre-seed")
    assert answer.status_code == 409
    assert f"openstack acstor image prepare {IMAGES[0]}" in answer.json["error"]["message"]


def test_unreachable_bus_is_reported_and_no_task_is_recorded(client, store, glance, bus):
    glance.add(IMAGES[0])
    hold(store, {})
    bus.failure = rpc.BusUnreachable("refused")
    for action in ("prepare", "pre-seed", "record-boots"):
        answer = client.post(f"/v1/images/{IMAGES[0]}/{action}")
        assert answer.status_code == 503
        assert "message bus" in answer.json["error"]["message"]
    assert store.unacknowledged_tasks(0) == []


@pytest.mark.parametrize(
    ("roles", "status"),
    [
        ("admin", 200),
        ("acstor-prepare", 200),
        ("acstor-reader", 403),
        ("service", 200),
        ("member,reader", 403),
    ],
)
def test_needed_images_are_listed_for_services(roles, status, client, store):
    hold(store, {IMAGES[1]: decision_messages.HeldImage(fill=OWNED), IMAGES[0]: LACKING})
    answer = client.get("/v1/needed-images", headers={"X-Roles": roles})
    assert answer.status_code == status
    if status == 200:
        assert answer.json["images"] == [IMAGES[0]]
        assert (answer.json["is_complete"], answer.json["silent_hosts"]) == (True, 0)
        assert answer.json["first_sample_s"] <= answer.json["last_sample_s"] <= answer.json["now_s"]


def test_silent_host_needs_its_images_for_a_day(client, store):
    for silent_s, needs in (
        (image_queries.KEPT_S - 60, [IMAGES[0]]),
        (image_queries.KEPT_S + 60, []),
    ):
        reported = conftest.sample(0, sent_s=time.time() - silent_s, images={IMAGES[0]: LACKING})
        conftest.note(store, reported)
        assert client.get("/v1/needed-images").json["images"] == needs


def test_boot_image_prefetch_goes_to_all_hosts_without_resends(client, store, bus):
    hold(store, {}, {})
    body = {"previous_images": [IMAGES[1], IMAGES[2]], "is_public": True}
    answer = client.post(f"/v1/images/{IMAGES[0]}/prefetch-boot-image", json=body)
    assert answer.status_code == 202
    [(task, hosts)] = bus.tasks
    assert (task.kind, task.image_id, hosts) == ("prefetch_boot_image", IMAGES[0], None)
    assert (task.previous_images, task.is_public) == ((IMAGES[1], IMAGES[2]), True)
    assert answer.json == {"image_id": IMAGES[0], "request": task.request}
    assert store.unacknowledged_tasks(0) == []


@pytest.mark.parametrize(
    ("roles", "status"),
    [
        ("admin", 202),
        ("acstor-prepare", 202),
        ("service", 202),
        ("acstor-reader", 403),
        ("reader", 403),
    ],
)
def test_boot_image_prefetch_is_authorized_by_role(roles, status, client, bus):
    headers = {"X-Roles": roles, "OpenStack-System-Scope": "all"}
    answer = client.post(f"/v1/images/{IMAGES[0]}/prefetch-boot-image", headers=headers)
    assert answer.status_code == status
    assert len(bus.tasks) == (status == 202)


@pytest.mark.parametrize("after", [["../x"], [IMAGES[0]] * 17, [7], IMAGES[0]])
def test_invalid_previous_images_are_refused(after, client, bus):
    answer = client.post(
        f"/v1/images/{IMAGES[0]}/prefetch-boot-image", json={"previous_images": after}
    )
    assert answer.status_code == 400
    assert not bus.tasks


def test_boot_image_prefetch_fails_while_the_bus_is_unreachable(client, bus):
    bus.failure = rpc.BusUnreachable("refused")
    assert client.post(f"/v1/images/{IMAGES[0]}/prefetch-boot-image").status_code == 503


# Locality


def boot_set(cached, **more):
    return decision_messages.HeldImage(boot_set_bytes=100, boot_set_cached_bytes=cached, **more)


def locality(client, **headers):
    answer = client.get(f"/v1/images/{IMAGES[0]}/locality", headers=headers)
    assert answer.status_code == 200
    shown = answer.json
    assert shown["image_id"] == IMAGES[0]
    return {
        one["host"]: (one["boot_set_share"], one["image_share"], one["link_load"])
        for one in shown["hosts"]
    }


def test_locality_is_the_share_of_boot_set_and_image(client, store):
    half = {"size_bytes": SIZE, "cached_bytes": SIZE // 4, "missing_bytes": SIZE // 4}
    reported = [
        WARM,
        COLD,
        decision_messages.HeldImage(**half),
        boot_set(95, **half),
        boot_set(100),  # it prefetched only the boot image
        boot_set(0),
    ]
    hold(store, *({IMAGES[0]: one} for one in reported), {})
    load = 2000 / 125_000_000  # bytes per second over the link's rate
    assert locality(client) == {
        "h0000": (1.0, 1.0, round(load, 3)),
        "h0002": (None, 0.5, round(load, 3)),
        "h0003": (0.95, 0.5, round(load, 3)),
        "h0004": (1.0, 0.0, round(load, 3)),
    }


def test_locality_has_the_load_of_the_busier_direction(client, store):
    loads = [(0, 0), (300, 500), (500, 100), (10**15, 1)]
    for n, (received, sent) in enumerate(loads):
        total = decision_messages.TrafficBytes(5 * received, 5 * sent)
        given = {"total": total, "link_bytes_s": 1000, "sent_s": time.time()}
        conftest.note(store, conftest.sample(n, images={IMAGES[0]: WARM}, **given))
    assert [load for _, _, load in locality(client).values()] == [0.0, 0.5, 0.5, 1.0]


def test_locality_leaves_out_silent_hosts(client, store):
    hold(store, {IMAGES[0]: WARM})
    silent = conftest.sample(1, sent_s=time.time() - 3600, images={IMAGES[0]: WARM})
    conftest.note(store, silent)
    assert list(locality(client)) == ["h0000"]


def test_locality_of_an_unknown_image_is_empty(client, store):
    hold(store, {IMAGES[1]: WARM})
    assert locality(client) == {}
    assert client.get("/v1/images/no/locality").status_code == 400


def test_locality_is_limited_to_the_hosts_with_the_most_bytes(store):
    shares = [0, 50, 100, 70]
    hold(store, *({IMAGES[0]: boot_set(share)} for share in shares))
    found = store.image_locality(IMAGES[0], 0.0, 2)
    assert [row.host for row in found] == ["h0002", "h0003"]


@pytest.mark.parametrize(
    ("roles", "status"),
    [
        ("admin", 200),
        ("service", 200),
        ("acstor-prepare", 403),
        ("acstor-reader", 403),
        ("acstor-recovery", 403),
        ("member,reader", 403),
    ],
)
def test_locality_is_authorized_by_role(roles, status, client, store):
    """Locality shows where other projects' images are."""
    hold(store, {IMAGES[0]: WARM})
    answer = client.get(f"/v1/images/{IMAGES[0]}/locality", headers={"X-Roles": roles})
    assert answer.status_code == status
    assert ("h0000" in answer.text) == (status == 200)
