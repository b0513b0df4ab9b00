# SPDX-License-Identifier: Apache-2.0
"""Announcements of new boot images to hosts: their content, retries and limits."""

import json

import pytest

from acstor_common.model import ids
from acstor_glance.boot import boot_image_announcer
from tests.fakes import glance_options
from tests.fakes import loopback_service

OLD, NEW = {"created_at": "2026-01-01T00:00:00Z"}, {"created_at": "2026-02-01T00:00:00Z"}
DATA = bytes(range(256)) * 16


class Decision(loopback_service.LoopbackService):
    """The part of a decision service's API about boot images, on the loopback."""

    def __init__(self):
        self.reported, self.status = [], 202

    def respond(self, request, body):
        if self.status == 202:
            self.reported.append((request.path, json.loads(body)))
        answer = {"image_id": request.path.split("/")[3], "request": 1}
        return self.status, json.dumps(answer).encode()


@pytest.fixture
def decision():
    with Decision() as made:
        yield made


@pytest.fixture
def listener_conf(decision, tmp_path):
    file = tmp_path / "listener.conf"
    file.write_text(
        f"[acstor_glance]\nauth_type = none\nstate_dir = {tmp_path}\n"
        f"endpoint = {decision.url}\ndecision_endpoint = {decision.url}\n"
    )
    return glance_options.conf(file)


@pytest.fixture
def ahead(images, listener_conf):
    return boot_image_announcer.BootImageAnnouncer(images, listener_conf)


def image_id(record):
    return ids.parse_image_id(record["id"])


def test_announcement_names_previous_images_and_visibility(images, decision, ahead):
    first = images.add(DATA, name="web", owner="ours", **OLD)
    second = images.add(DATA, name="web", owner="ours", **NEW)
    images.add(DATA, name="web", owner="others", visibility="public", **OLD)
    ahead.announce(image_id(second))
    path = f"/v1/images/{second['id']}/prefetch-boot-image"
    assert decision.reported == [(path, {"previous_images": [first["id"]], "is_public": False})]


def test_public_image_without_predecessors_is_announced(images, decision, ahead):
    made = images.add(DATA, name="web", owner="ours", visibility="public", **NEW)
    ahead.announce(image_id(made))
    [(_, body)] = decision.reported
    assert body == {"previous_images": [], "is_public": True}


@pytest.mark.parametrize("visibility", ["shared", "community"])
def test_image_that_no_host_may_prefetch_is_not_announced(images, decision, ahead, visibility):
    """A tenant may make an image a community image, and would have all hosts prefetch it."""
    made = images.add(DATA, name="web", owner="ours", visibility=visibility, **NEW)
    ahead.announce(image_id(made))
    ahead.announce(ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0aff"))  # deleted meanwhile
    assert decision.reported == []


@pytest.mark.expect_log("new boot images cannot be announced")
@pytest.mark.parametrize("status", [403, 500, 503])
def test_failed_announcement_is_sent_later_and_only_once(images, decision, ahead, status):
    made = [images.add(DATA, name=name, visibility="public", **NEW) for name in ("a", "b")]
    decision.status = status
    for one in made:
        ahead.announce(image_id(one))
    assert decision.reported == []
    decision.status = 202
    ahead.announce_pending()
    ahead.announce_pending()
    assert [path.split("/")[3] for path, _ in decision.reported] == [one["id"] for one in made]


@pytest.mark.expect_log("new boot images cannot be announced")
def test_pending_announcements_are_limited(images, decision, listener_conf):
    ahead = boot_image_announcer.BootImageAnnouncer(images, listener_conf, limit=2)
    made = [images.add(DATA, name=name, visibility="public", **NEW) for name in ("a", "b", "c")]
    decision.status = 503
    for one in made:
        ahead.announce(image_id(one))
    decision.status = 202
    ahead.announce_pending()
    assert [path.split("/")[3] for path, _ in decision.reported] == [one["id"] for one in made[1:]]
