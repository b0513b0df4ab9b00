# SPDX-License-Identifier: Apache-2.0
"""Protection of needed images against deletion: a real Glance and the real decision API.

The tests store samples of hosts as the leading service does; the guard runs in the test, so that
the test can set its clock.

"""

import pathlib
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.db import database
from acstor_glance import conf as glance_conf
from acstor_glance import deletion_protection
from acstor_glance.client import glance_client
from acstor_glance.client import work_leases
from acstor_glance.cmd import manage
from acstor_glance.controller import protection_check
from acstor_glance.controller import protection_reconciler
from tests.fakes import decision_databases
from tests.fakes import manual_clock
from tests.functional import test_glance_roles as roles
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads
from tests.unit.decision.api import conftest as samples

as_documented, preparing_user, project = roles.as_documented, roles.preparing_user, roles.project

FILLING = decision_messages.HeldImage(
    fill=fill_progress.FillStatus(
        state=fill_progress.FillState.FILLING, is_used=True, total_bytes=9, remaining_bytes=4
    )
)
WHOLE = decision_messages.HeldImage(
    fill=fill_progress.FillStatus(
        state=fill_progress.FillState.FULLY_CACHED, is_used=True, total_bytes=9, remaining_bytes=0
    )
)


class Counted(glance_client.GlanceClient):
    """Counts requests to Glance about single images."""

    asked: list[str]

    def get_image(self, image_id: str) -> image_record.Image:
        self.asked.append(f"read {image_id}")
        return super().get_image(image_id)

    def set_protection(
        self, image: image_record.Image, tags: Sequence[str], is_protected: bool | None
    ) -> image_record.Image:
        self.asked.append(f"protect {image.id}")
        return super().set_protection(image, tags, is_protected)


class World:
    """Hosts whose samples are stored, a guard with a clock, and Glance."""

    def __init__(
        self,
        glance: uploads.Images,
        store: database.Database,
        api: acstor_decision.DecisionApi,
        listener: acstor_glance.Listener,
    ) -> None:
        self.glance, self.store, self.api, self.listener = glance, store, api, listener
        self.now_s = 1000.0
        self.images_per_pass = protection_reconciler.IMAGES_PER_PASS
        listener.configure()
        self.conf = manage.load_conf(str(listener.conf_file))
        self.state_dir = glance_conf.state_dir(self.conf)
        self.guard: protection_reconciler.ProtectionReconciler
        self.restart()

    def restart(self) -> None:
        """Replace the guard by one without state."""
        images = glance_client.connect(self.conf)
        self.images = Counted(images._client, images._find_project_id)
        self.images.asked = []
        self.guard = protection_reconciler.ProtectionReconciler(
            self.conf,
            self.images,
            clock=manual_clock.FunctionClock(lambda: self.now_s),
            images_per_pass=self.images_per_pass,
        )

    def report_images(self, *images_of_hosts: dict[str, decision_messages.HeldImage]) -> None:
        """Store a sample of host n's images."""
        now_s = time.time()
        reported = [
            samples.sample(n, sent_s=now_s, images=images)
            for n, images in enumerate(images_of_hosts)
        ]
        samples.note(self.store, *reported)

    def make_pass(self, later_s: float = 0.0) -> None:
        self.now_s += later_s
        self.guard.run_pass()

    def make_passes(self, for_s: float) -> None:
        """Make a pass every half minute; a longer gap would not count as time without need."""
        while for_s > 0:
            self.make_pass(min(for_s, 30.0))
            for_s -= 30.0

    def standing(self, image_id: str) -> str:
        image = self.glance.image(image_id)
        return deletion_protection.protection_of(image, self.images.project_id).value


def not_guaranteed(world: World) -> dict[str, str]:
    """Return what the check finds not guaranteed, with the first words of each message."""
    found = protection_check.check_protection(world.conf, world.images)
    bad = {one.subject: one.message for one in found if not one.is_healthy}
    return {what: message[:19] for what, message in bad.items()}


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[database.Database]:
    with decision_databases.opened(f"sqlite:///{tmp_path}/decision.sqlite") as made:
        yield made


@pytest.fixture
def guarded(
    glance: uploads.Images, store: database.Database, tmp_path: pathlib.Path
) -> Iterator[Callable[..., World]]:
    """Return a factory of worlds; the decision service's API runs in it."""
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    api = acstor_decision.DecisionApi(glance.lab, tmp_path / "api", connection)

    def make(**options: Any) -> World:
        listener = acstor_glance.Listener(
            "guard", glance.lab, tmp_path, decision_endpoint=api.url, **options
        )
        store.record_listener("controller1", time.time())  # the test makes passes in its place
        return World(glance, store, api, listener)

    try:
        api.start()
        api.wait_ready()
        yield make
    finally:
        api.stop()
        glance.lab.start_image_services()
        for hidden in ("false", "true"):
            every = f"/images?protected=true&visibility=all&os_hidden={hidden}"
            for record in glance.admin.get(every).json()["images"]:
                glance.patch(record["id"], protected=False)


@pytest.mark.expect_log("a user removed acstor's protection, which is not set again")
def test_images_not_fully_cached_on_a_host_cannot_be_deleted(
    glance: uploads.Images, as_documented: None, guarded: Callable[..., World],
    preparing_user: str, project: str,
) -> None:  # fmt: skip
    """Images of every visibility and state, and of all projects, by the documented role."""
    world = guarded(username=preparing_user, project_name=project)
    data = uploads.some_bytes(chunks=8, seed=71)
    made = {visibility: glance.upload(data) for visibility in ("public", "community")}
    made["private"] = glance.upload(data, tags=["mine"])
    made["shared"] = glance.upload(data, visibility="shared")
    for visibility in ("public", "community"):
        glance.patch(made[visibility], visibility=visibility)
    made["hidden"], made["renamed"], made["declined"] = (glance.upload(data) for _ in range(3))
    glance.patch(made["hidden"], os_hidden=True)
    made["deactivated"] = glance.upload(data)
    glance.admin.post(f"/images/{made['deactivated']}/actions/deactivate").raise_for_status()
    stranger = glance.lab.connect("stranger").image
    made["stranger's"] = stranger.create_image(
        name="x", data=data, disk_format="raw", container_format="bare"
    ).id
    world.report_images(dict.fromkeys(made.values(), FILLING), dict.fromkeys(made.values(), WHOLE))
    world.make_pass()
    assert {name: world.standing(one) for name, one in made.items()} == dict.fromkeys(
        made, "acstor"
    )
    image_id = made["private"]
    refused = glance.tenant.delete(f"/images/{image_id}")
    assert refused.status_code == 403
    assert "is protected and cannot be deleted" in refused.text
    assert glance.admin.delete(f"/images/{image_id}").status_code == 403
    [mark, mine] = sorted(glance.tenant.get(f"/images/{image_id}").json()["tags"])
    assert (mark[: len(artefacts.PROTECTED)], mine) == (artefacts.PROTECTED, "mine")
    # When a tenant changes an image, Glance deletes all properties hidden from the tenant.
    glance.patch(made["renamed"], "tenant", name="new")
    declined = made.pop("declined")
    glance.patch(declined, "tenant", protected=False)

    world.restart()  # the only state is in Glance
    world.make_pass()
    changes = [asked for asked in world.images.asked if asked.startswith("protect")]
    assert changes == [f"protect {declined}"]  # a new tag
    world.report_images(dict.fromkeys(made.values(), WHOLE), dict.fromkeys(made.values(), WHOLE))
    world.make_pass()
    world.make_passes(deletion_protection.UNNEEDED_S - 1)
    assert world.standing(image_id) == "acstor"
    world.make_pass(1)
    assert {world.standing(one) for one in made.values()} == {"free"}
    assert glance.record(image_id)["tags"] == ["mine"]
    glance.delete(image_id)
    stranger.delete_image(made["stranger's"])


@pytest.mark.expect_log("a user removed acstor's protection, which is not set again")
@pytest.mark.expect_log("it is no longer in Glance, and hosts that use it lack")
def test_owner_protection_stays_and_an_owner_removal_is_respected(
    glance: uploads.Images, guarded: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = guarded()
    own, declined = (glance.upload(uploads.some_bytes(chunks=8, seed=n)) for n in (72, 73))
    glance.patch(own, "tenant", protected=True)
    world.report_images({own: FILLING, declined: FILLING})
    world.make_pass()
    assert (world.standing(own), world.standing(declined)) == ("others", "acstor")
    glance.patch(declined, "tenant", protected=False)
    world.guard.mark_changed(ids.parse_image_id(declined))
    for _ in range(3):
        world.make_pass(deletion_protection.RELIST_S)
        assert world.standing(declined) == "declined"
    [noted] = glance.record(declined)["tags"]
    assert noted.startswith(f"{artefacts.UNPROTECTED}{declined},{world.images.project_id},")
    world.restart()
    world.make_pass()
    assert world.standing(declined) == "declined"
    said = [record.getMessage() for record in caplog.records if declined in record.getMessage()]
    assert len([line for line in said if "removed acstor's protection" in line]) == 2

    assert not_guaranteed(world) == {f"image {declined}": "a user removed acst"}
    glance.patch(declined, "tenant", protected=True)  # the owner's own protection
    world.guard.mark_changed(ids.parse_image_id(declined))
    world.make_pass()
    assert (world.standing(declined), not_guaranteed(world)) == ("others", {})
    glance.patch(declined, "tenant", protected=False)
    glance.delete(declined)
    assert not_guaranteed(world) == {f"image {declined}": "it is no longer in "}
    world.guard.mark_changed(ids.parse_image_id(declined))
    world.make_pass()
    assert f"image {declined}: it is no longer in Glance" in caplog.text
    world.report_images({})
    world.make_passes(deletion_protection.RELIST_S + deletion_protection.UNNEEDED_S)
    assert world.standing(own) == "others"


def test_protection_is_removed_when_the_option_is_off_and_by_purge(
    glance: uploads.Images, guarded: Callable[..., World]
) -> None:
    world = guarded()
    image_id, own = (glance.upload(uploads.some_bytes(chunks=8, seed=n)) for n in (74, 75))
    glance.patch(own, "tenant", protected=True)
    world.report_images({image_id: FILLING, own: FILLING})
    with work_leases.WorkLeases(None, world.state_dir, "protection").lease_image(
        protection_reconciler.ALL_IMAGES
    ):
        world.make_pass()  # another listener makes a pass
    assert world.images.asked == []
    world.make_pass()
    assert world.standing(image_id) == "acstor"
    assert uploads.checked(world.listener) == [
        {"check": what, "outcome": "ok", "message": ""}
        for what in (
            "protect_used_images",
            "hosts",
            "listeners",
            *sorted([f"image {image_id}", f"image {own}"]),
        )
    ]
    off = guarded(protect_used_images=False)
    off.make_pass()
    assert (world.standing(image_id), world.standing(own)) == ("free", "others")
    found = {row["check"]: row for row in uploads.checked(off.listener, status=3)}
    bad = {what for what, row in found.items() if row["outcome"] == "not guaranteed"}
    assert bad == {"protect_used_images", f"image {image_id}"}
    world.restart()
    world.make_pass()
    assert world.standing(image_id) == "acstor"
    uploads.manage(world.listener, "purge", "--yes", image_id)
    assert (world.standing(image_id), world.standing(own)) == ("free", "others")
    glance.patch(image_id, visibility="community")  # now only requests for all images list it
    world.restart()
    world.make_pass()
    glance.patch(own, tags=[declined_tag(world, own), "mine"])
    assert world.standing(image_id) == "acstor"
    uploads.manage(world.listener, "purge", "--yes")
    assert (world.standing(image_id), world.standing(own)) == ("free", "others")
    assert glance.record(own)["tags"] == ["mine"]


def declined_tag(world: World, image_id: str) -> str:
    """Return the tag that records the removal of acstor's protection from an image."""
    return f"{artefacts.UNPROTECTED}{image_id},{world.images.project_id},x"


@pytest.mark.expect_log("it is an artefact: a host reports wrong data")
@pytest.mark.expect_log("it could not be protected; retrying soon")
def test_refused_images_and_artefacts_do_not_delay_protection_of_others(
    glance: uploads.Images, guarded: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guarded()
    project_id = world.images.project_id
    artefact = glance.create().id
    glance.patch(artefact, acstor_kind="chunk_map", os_hidden=True)
    full = sorted(glance.create().id for _ in range(protection_reconciler.MAX_FAILURES))
    for image_id in full:
        glance.patch(image_id, tags=[f"tag {n}" for n in range(128)])
    copied, own = (glance.create().id for _ in range(2))
    other = deletion_protection.tags_after(
        deletion_protection.Change.SET, glance.image(own), project_id, 0.0
    )
    glance.patch(copied, protected=True, tags=other)
    wanted = {image_id: FILLING for image_id in (artefact, *full, copied)}
    world.report_images(wanted)  # a host known for longer
    world.make_pass()
    world.report_images(wanted, {own: FILLING})

    def fail(**_: str) -> Iterator[image_record.Image]:
        raise errors.ImageServiceUnreachable("list of images", "it takes too long")

    world.now_s += deletion_protection.RELIST_S
    with monkeypatch.context() as patched:
        patched.setattr(world.images, "list_images", fail)
        with pytest.raises(errors.ImageServiceUnreachable, match="takes too long"):
            world.make_pass()
    assert {world.standing(image_id) for image_id in full} == {"free"}
    assert (world.standing(artefact), world.standing(copied)) == ("artefact", "others")
    assert world.standing(own) == "acstor"
    found = not_guaranteed(world)
    assert found.pop(f"image {artefact}") == "hosts report that s"
    assert found == dict.fromkeys((f"image {one}" for one in full), "it is not protected")
    world.make_passes(deletion_protection.UNNEEDED_S)
    assert world.standing(copied) == "others"


@pytest.mark.expect_log("more than 0 images are needed")
def test_incomplete_list_of_needed_images_removes_no_protection(
    glance: uploads.Images, guarded: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guarded()
    image_id = glance.create().id
    world.report_images({image_id: FILLING})
    world.make_pass()
    reported = world.store.needed_images(0.0, 0.0, 0)
    assert (reported.image_ids, reported.is_complete) == ([], False)
    cut = decision_messages.NeededImages([], False, time.time(), 1.0, 3, time.time())
    monkeypatch.setattr(protection_reconciler, "fetch_needed", lambda _: cut)
    world.make_passes(4 * deletion_protection.UNNEEDED_S)
    assert world.standing(image_id) == "acstor"
    assert not_guaranteed(world) == {
        "hosts": "3 reported within a",
        "needed images": "more than 0: the ot",
    }


@pytest.mark.expect_log("it could not be protected; retrying soon")
def test_outage_of_glance_delays_protection_and_a_pass_is_bounded(
    glance: uploads.Images, guarded: Callable[..., World]
) -> None:
    world = guarded(coordination_url="mysql://root@127.0.0.1:1/away")  # not needed
    world.images_per_pass = 4
    world.restart()
    made = [glance.create().id for _ in range(6)]
    world.report_images(dict.fromkeys(made, FILLING))
    glance.lab.glance.stop()
    with pytest.raises(errors.ImageServiceUnreachable):
        world.make_pass()
    glance.lab.glance.start()
    glance.lab.glance.wait_ready()
    assert len(world.images.asked) == protection_reconciler.MAX_FAILURES
    world.images.asked.clear()
    world.make_pass(deletion_protection.RETRY_S)
    assert len(world.images.asked) == 8  # four images read and protected
    world.make_pass()
    world.make_pass()
    assert sorted(map(world.standing, made)) == ["acstor"] * 6
    asked = list(world.images.asked)
    assert len(asked) == 12
    world.make_passes(deletion_protection.UNNEEDED_S)
    assert world.images.asked == asked  # unchanged: no request
    glance.lab.glance.kill()
    world.report_images({})
    world.make_pass()  # no request to Glance yet
    world.make_passes(deletion_protection.UNNEEDED_S - 1)
    with pytest.raises(errors.ImageServiceUnreachable):
        world.make_pass(1)
    glance.lab.glance.start()
    glance.lab.glance.wait_ready()
    world.make_passes(deletion_protection.RELIST_S + deletion_protection.UNNEEDED_S)
    assert {world.standing(image_id) for image_id in made} == {"free"}
    world.report_images({made[0]: FILLING})
    world.make_pass()
    world.api.stop()
    with pytest.raises(errors.ImageServiceUnreachable):
        world.make_pass(2 * deletion_protection.SILENT_HOST_S)
    assert world.standing(made[0]) == "acstor"
    [away] = uploads.checked(world.listener, status=3)[1:]
    assert (away["check"], away["outcome"]) == ("decision service", "not guaranteed")
