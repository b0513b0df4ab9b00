# SPDX-License-Identifier: Apache-2.0
"""Protection of images from deletion, and its duration under every loss of reports."""

import dataclasses

import msgspec
import pytest
from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.wire import decision_messages
from acstor_glance import deletion_protection
from tests.fakes import glance_records

IMAGE = glance_records.IMAGE_ID
OTHER = glance_records.ARTEFACT_ID
BY = glance_records.SERVICE_PROJECT
DAY_S = 86400.0
WALL_S = 1_800_000_000.0
Standing = deletion_protection.ProtectionStatus


def record(image_id=IMAGE, *, protected=False, mark="", **changed):
    tags = ["mine", mark] if mark else ["mine"]
    return glance_records.image(**{"id": image_id, "protected": protected, "tags": tags, **changed})


def needed(*images, now_s=0.0, last_sample_s=0.0, first_sample_s=-DAY_S, is_complete=True):
    """Return the service's list of needed images at a time; all times count from WALL_S."""
    return decision_messages.NeededImages(
        list(images),
        is_complete,
        None if last_sample_s is None else WALL_S + last_sample_s,
        None if first_sample_s is None else WALL_S + first_sample_s,
        0,
        WALL_S + now_s,
    )


def mark(at_s=0.0, image_id=IMAGE, project_id=BY, change=deletion_protection.Change.SET):
    [tag] = deletion_protection.tags_after(
        change, image_record.Image(id=image_id), project_id, WALL_S + at_s
    )
    return tag


NOTED = mark(change=deletion_protection.Change.RECORD_REMOVAL)
GARBAGE = f"{artefacts.PROTECTED}{IMAGE},{BY},"


@pytest.mark.parametrize(
    ("image", "standing"),
    [
        (None, Standing.GONE),
        (record(status="pending_delete"), Standing.GONE),
        (record(status="deleted", protected=True, mark=mark()), Standing.GONE),
        (record(), Standing.FREE),
        (record(status="deactivated"), Standing.FREE),
        (record(protected=True), Standing.OTHERS),
        (record(protected=True, mark=mark()), Standing.OURS),
        (record(protected=True, mark=f"{GARBAGE}garbage"), Standing.OURS),
        (record(mark=mark()), Standing.DECLINED),
        (record(mark=NOTED), Standing.DECLINED),
        (record(protected=True, mark=NOTED), Standing.OTHERS),
        # copied with its tags; of another acstor
        (record(protected=True, mark=mark(image_id=OTHER)), Standing.OTHERS),
        (record(mark=mark(image_id=OTHER)), Standing.FREE),
        (record(protected=True, mark=mark(project_id="another")), Standing.OTHERS),
        (record(mark=mark(project_id="another")), Standing.FREE),
        (glance_records.artefact(record()), Standing.ARTEFACT),
        (record(protected=True, mark=mark(), acstor_kind="x", owner=BY), Standing.ARTEFACT),
        (record(mark="acstor_protected"), Standing.FREE),
        (record(protected=True, tags=None), Standing.OTHERS),
        (record(tags=[7, None]), Standing.FREE),
        (record(protected="True"), Standing.FREE),
    ],
)
def test_protection_is_read_from_the_record_of_the_image(image, standing):
    assert deletion_protection.protection_of(image, BY) is standing


@pytest.mark.parametrize("when", ["", "garbage", "0001-01-01T00:00:00", "9999-12-31T23:59:59"])
def test_mark_with_an_invalid_time_still_counts(when):
    assert deletion_protection.protection_time_s(record(mark=GARBAGE + when), BY) is not None


def test_mark_is_removed_and_other_tags_stay():
    anothers = mark(project_id="another")
    image = record(tags=[NOTED, "mine", anothers, mark()])
    assert deletion_protection.tags_without_marks(image, BY) == ["mine", anothers]
    assert (
        WALL_S + 7
        <= deletion_protection.protection_time_s(record(mark=mark(7.2)), BY)
        <= WALL_S + 8.2
    )


def known(*images, at_s=0.0, marked_at_s=0.0, **reported):
    """Return a state with acstor's protection of images, and one list of needed images."""
    made = deletion_protection.ProtectionState()
    made.set_protected(dict.fromkeys(images, WALL_S + marked_at_s), at_s)
    made.set_needed(needed(**reported), at_s)
    return made


def test_needed_image_is_read_once_and_protected():
    made = deletion_protection.ProtectionState()
    made.set_needed(needed(IMAGE), 0.0)
    assert (made.images_to_check(0.0), made.list_statuses()) == ([IMAGE], {IMAGE: None})
    made.update_image(IMAGE, record(), BY)
    assert (made.images_to_check(0.0), made.plan_change(IMAGE, 0.0)) == (
        [IMAGE],
        deletion_protection.Change.SET,
    )
    made.update_image(IMAGE, record(protected=True, mark=mark()), BY)
    assert (made.images_to_check(0.0), made.plan_change(IMAGE, 0.0)) == ([], None)
    assert (made.list_statuses(), made.list_protected()) == ({IMAGE: Standing.OURS}, [IMAGE])
    made.set_needed(needed(IMAGE, now_s=5.0, last_sample_s=5.0), 5.0)
    assert made.images_to_check(5.0) == []


@pytest.mark.parametrize(
    "image",
    [
        record(protected=True),
        record(mark=NOTED),
        None,
        record(status="deleted"),
        glance_records.artefact(record()),
    ],
)
def test_image_that_acstor_may_not_protect_is_left_unchanged(image):
    made = deletion_protection.ProtectionState()
    made.set_needed(needed(IMAGE), 0.0)
    made.update_image(IMAGE, image, BY)
    assert (made.plan_change(IMAGE, 0.0), made.images_to_check(0.0)) == (None, [])
    made.set_needed(needed(now_s=9.0, last_sample_s=9.0), 9.0)
    assert made.images_to_check(9.0 + deletion_protection.UNNEEDED_S) == []


def tell_until(made, from_s, until_s, **reported):
    """Let no image be needed from a time on; return the images due at the end."""
    for at_s in (*range(int(from_s), int(until_s), 30), until_s):
        made.set_needed(needed(**{"now_s": at_s, "last_sample_s": at_s, **reported}), at_s)
    return made.images_to_check(until_s)


def test_time_without_complete_lists_does_not_count_as_unneeded():
    made = known(IMAGE)
    assert tell_until(made, 1000.0, 1000.0 + deletion_protection.UNNEEDED_S - 1) == []
    assert tell_until(made, 1130.0, 1130.0, is_complete=False) == []
    assert tell_until(made, 1131.0, 1131.0 + deletion_protection.UNNEEDED_S - 1) == []
    assert tell_until(made, 1251.0, 1251.0) == [IMAGE]
    assert tell_until(made, 1252.0, 1500.0, is_complete=False) == []


def test_protection_is_removed_after_the_image_was_unneeded_for_a_while():
    made = known(IMAGE)
    late_s = deletion_protection.UNNEEDED_S
    assert tell_until(made, 0.0, late_s - 1) == []
    made.set_needed(needed(IMAGE, now_s=late_s, last_sample_s=late_s), late_s)  # and again
    assert tell_until(made, late_s + 1, 2 * late_s) == []
    at_s = 2 * late_s + 1
    made.set_needed(needed(now_s=at_s, last_sample_s=at_s), at_s)
    assert (made.images_to_check(at_s), made.plan_change(IMAGE, at_s)) == (
        [IMAGE],
        deletion_protection.Change.REMOVE,
    )
    made.update_image(IMAGE, record(), BY)
    assert (made.list_protected(), made.images_to_check(at_s)) == ([], [])


@pytest.mark.parametrize(
    ("reported", "marked_at_s", "is_due"),
    [
        ({}, 0.0, True),
        ({"last_sample_s": None}, 0.0, False),
        ({"last_sample_s": 200.0 - deletion_protection.SAMPLE_AGE_S - 1}, 0.0, False),
        ({"first_sample_s": None}, 0.0, False),
        # the database was lost after the mark was set: a silent host may need it for a day more
        ({"first_sample_s": 10.0}, 0.0, False),
        ({"first_sample_s": 10.0}, 10.0, True),
        ({"first_sample_s": 200.0 - DAY_S - 1}, -2 * DAY_S, True),
        ({"first_sample_s": 200.0 - DAY_S + 1}, -2 * DAY_S, False),
    ],
)
def test_missing_samples_do_not_remove_protection(reported, marked_at_s, is_due):
    made = known(IMAGE, marked_at_s=marked_at_s)
    tell_until(made, 0.0, 199.0)
    made.set_needed(needed(**{"now_s": 200.0, "last_sample_s": 200.0, **reported}), 200.0)
    assert made.images_to_check(200.0) == ([IMAGE] if is_due else [])


def test_failed_image_is_retried_later_and_after_the_others():
    made = deletion_protection.ProtectionState()
    made.set_needed(needed(IMAGE, OTHER), 0.0)
    made.mark_failed(OTHER, 0.0)
    assert made.images_to_check(0.0) == [IMAGE]
    assert made.images_to_check(deletion_protection.RETRY_S) == [IMAGE, OTHER]
    made.set_protected({}, 1.0)
    assert made.list_statuses() == {IMAGE: None, OTHER: Standing.FAILED}
    made.update_image(OTHER, record(OTHER, protected=True), BY)
    assert made.images_to_check(deletion_protection.RETRY_S) == [IMAGE]


def test_failed_removal_of_protection_is_retried():
    made, late_s = known(IMAGE), deletion_protection.UNNEEDED_S
    assert tell_until(made, 0.0, late_s) == [IMAGE]
    made.mark_failed(IMAGE, late_s)
    assert (made.images_to_check(late_s), made.list_protected(), made.list_protected(late_s)) == (
        [],
        [IMAGE],
        [],
    )
    again_s = late_s + deletion_protection.RETRY_S
    assert tell_until(made, late_s + 1, again_s) == [IMAGE]
    assert made.plan_change(IMAGE, again_s) is deletion_protection.Change.REMOVE


def test_rechecked_images_do_not_delay_new_ones():
    """Three hosts lie about 1,024 images each; another image becomes needed after a while."""
    lies = [f"00000000-0000-0000-0000-{n:012}" for n in range(3 * 1024)]
    made, looked_at_s, asked = deletion_protection.ProtectionState(), None, dict.fromkeys(lies, 0)
    for now_s in range(0, 1000, 5):
        made.set_needed(needed(*lies, *([IMAGE] if now_s >= 600 else [])), float(now_s))
        for one in made.images_to_check(float(now_s))[:50]:
            made.update_image(one, None if one != IMAGE else record(protected=True), BY)
            asked[one] = asked.get(one, 0) + 1
            looked_at_s = now_s if one == IMAGE and looked_at_s is None else looked_at_s
        if now_s % 300 == 0:
            made.set_protected({}, float(now_s))
    assert looked_at_s == 600
    assert min(asked[one] for one in lies) >= 2  # nor do these delay each other


def test_removal_by_a_user_is_recorded_and_own_protection_stays():
    made = known(IMAGE)
    made.set_needed(needed(IMAGE), 0.0)
    image = record(mark=mark())
    made.update_image(IMAGE, image, BY)
    assert (made.images_to_check(0.0), made.plan_change(IMAGE, 0.0)) == (
        [IMAGE],
        deletion_protection.Change.RECORD_REMOVAL,
    )
    tags = deletion_protection.tags_after(
        deletion_protection.Change.RECORD_REMOVAL, image, BY, WALL_S
    )
    assert tags == ["mine", NOTED]
    made.update_image(IMAGE, record(tags=tags), BY)
    assert (made.images_to_check(0.0), made.list_statuses()) == ([], {IMAGE: Standing.DECLINED})
    made.update_image(IMAGE, record(tags=tags, protected=True), BY)
    assert made.list_statuses() == {IMAGE: Standing.OTHERS}
    assert tell_until(made, 1.0, 500.0) == []


def test_removal_by_a_user_is_recorded_when_only_the_list_shows_it():
    made = known(IMAGE)  # it is no longer needed, and the notification was lost
    made.set_protected({}, 300.0)
    assert made.images_to_check(300.0) == [IMAGE]
    image = record(mark=mark())
    made.update_image(IMAGE, image, BY)
    assert made.plan_change(IMAGE, 300.0) is deletion_protection.Change.RECORD_REMOVAL
    made.mark_failed(IMAGE, 300.0)  # Glance is down at that moment
    made.set_needed(needed(now_s=310.0, last_sample_s=310.0), 310.0)
    assert made.images_to_check(331.0) == [IMAGE]
    made.update_image(IMAGE, image, BY)
    assert made.plan_change(IMAGE, 331.0) is deletion_protection.Change.RECORD_REMOVAL
    made.update_image(IMAGE, record(mark=NOTED), BY)
    made.set_needed(needed(now_s=340.0, last_sample_s=340.0), 340.0)
    assert (made.images_to_check(340.0), made.list_protected()) == ([], [])


def test_host_that_names_new_images_each_time_delays_no_other():
    made = deletion_protection.ProtectionState()
    made.set_needed(needed(*(f"00000000-0000-0000-0000-{n:012}" for n in range(9)), IMAGE), 0.0)
    later = [f"00000000-0000-0000-0001-{n:012}" for n in range(9)]
    made.set_needed(needed(*later, IMAGE), 5.0)
    assert made.images_to_check(5.0) == [IMAGE, *later]


def test_invalid_image_id_is_refused():
    with pytest.raises(msgspec.ValidationError, match="image"):
        msgspec.convert(
            {
                "images": ["../x"],
                "is_complete": True,
                "last_sample_s": 1,
                "first_sample_s": 1,
                "silent_hosts": 0,
                "now_s": 1,
            },
            decision_messages.NeededImages,
        )


def test_changed_image_is_checked_only_if_it_is_needed():
    made = known(IMAGE, at_s=0.0)
    made.set_needed(needed(IMAGE), 0.0)
    for image_id in (IMAGE, OTHER):
        made.mark_changed(image_id)
    assert made.images_to_check(0.0) == [IMAGE]
    made.update_image(IMAGE, record(mark=NOTED), BY)
    assert (made.list_statuses(), made.images_to_check(0.0)) == ({IMAGE: Standing.DECLINED}, [])


class OwnersAndHosts(stateful.RuleBasedStateMachine):
    """Hosts, owners, crashes and a guard, in any order, with Glance as a table.

    After a pass every needed image is protected, and changes by owners are respected.

    """

    images = (IMAGE, OTHER)
    one = st.sampled_from(images)

    def __init__(self):
        super().__init__()
        self.glance = {image_id: record(image_id) for image_id in self.images}
        self.needed: set[str] = set()
        self.now_s = 0.0
        self.unneeded_s = dict.fromkeys(self.images, 0.0)
        self.begin_anew()

    @stateful.rule()
    def begin_anew(self):
        self.guard = deletion_protection.ProtectionState()
        self.list_all()

    @stateful.rule()
    def list_all(self):
        ours = {
            one: deletion_protection.protection_time_s(image, BY)
            for one, image in self.glance.items()
            if deletion_protection.protection_of(image, BY) is Standing.OURS
        }
        self.guard.set_protected(ours, self.now_s)

    @stateful.rule(image_id=one)
    def need(self, image_id):
        self.needed.add(image_id)

    @stateful.rule(image_id=one)
    def become_whole(self, image_id):
        if image_id in self.needed:
            self.needed.remove(image_id)
            self.unneeded_s[image_id] = self.now_s

    @stateful.rule(image_id=one, protected=st.booleans())
    def owner_changes(self, image_id, protected):
        self.set_image(image_id, is_protected=protected)
        self.guard.mark_changed(image_id)

    def set_image(self, image_id, **changed):
        self.glance[image_id] = dataclasses.replace(self.glance[image_id], **changed)

    @stateful.rule(later_s=st.sampled_from([1.0, 130.0]))
    def make_pass(self, later_s):
        while later_s > 30.0:  # passes without work
            self.now_s += 30.0
            later_s -= 30.0
            reported = needed(*sorted(self.needed), now_s=self.now_s, last_sample_s=self.now_s)
            self.guard.set_needed(reported, self.now_s)
        self.now_s += later_s
        reported = needed(*sorted(self.needed), now_s=self.now_s, last_sample_s=self.now_s)
        self.guard.set_needed(reported, self.now_s)
        for image_id in self.guard.images_to_check(self.now_s):
            image = self.glance[image_id]
            before = deletion_protection.protection_of(image, BY)
            self.guard.update_image(image_id, image, BY)
            change = self.guard.plan_change(image_id, self.now_s)
            if change is deletion_protection.Change.SET:
                assert before is Standing.FREE and image_id in self.needed
                self.set_image(image_id, is_protected=True)
            elif change is deletion_protection.Change.REMOVE:
                assert before is Standing.OURS and image_id not in self.needed
                assert self.now_s - self.unneeded_s[image_id] >= deletion_protection.UNNEEDED_S
                self.set_image(image_id, is_protected=False)
            elif change is deletion_protection.Change.RECORD_REMOVAL:
                assert before is Standing.DECLINED
            if change is not None:
                now_s = WALL_S + self.now_s
                tags = deletion_protection.tags_after(change, image, BY, now_s)
                self.set_image(image_id, tags=tuple(tags))
            self.guard.update_image(image_id, self.glance[image_id], BY)
        for image_id in self.needed:
            assert deletion_protection.protection_of(self.glance[image_id], BY) is not Standing.FREE


TestOwnersAndHosts = OwnersAndHosts.TestCase
TestOwnersAndHosts.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
