# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common.wire import control_wire
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress

PLAIN = {
    "host": "h1",
    "address": "10.0.0.1:7201",
    "session": 7,
    "started_s": 1000.0,
    "number": 1,
    "sent_s": 1005.0,
    "interval_s": 5.0,
    "link_bytes_s": 125_000_000,
    "total": {"received": 10, "sent": 20},
}


WAITED = {"received": 3, "sent": 4, "timed": {"received": 2, "took_s": 0.5}}


def test_sample_round_trips():
    sample = decision_messages.decode(
        PLAIN | {"sketch": [1, 2**63 - 1], "peers": {"h2": WAITED}, "source": WAITED["timed"]},
        decision_messages.Sample,
    )
    carried = json.loads(json.dumps(decision_messages.encode(sample)))
    assert decision_messages.decode(carried, decision_messages.Sample) == sample
    timed = decision_messages.TimedTraffic(2, 0.5)
    assert (
        sample.peers["h2"] == decision_messages.PeerTraffic(3, 4, timed) and sample.source == timed
    )


def test_fields_of_a_later_version_are_ignored():
    sample = decision_messages.decode(PLAIN | {"mood": "good"}, decision_messages.Sample)
    assert sample.host == "h1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"host": "no/slash"},
        {"host": 5},
        {"address": "compute1:7201"},
        {"session": -1},
        {"number": 0},
        {"number": True},
        {"interval_s": 0},
        {"source": {"received": -1}},
        {"source": {"took_s": -0.1}},
        {"source": {"took_s": float("inf")}},
        {"peers": {"h2": {"timed": {"took_s": float("nan")}}}},
        {"interval_s": float("nan")},
        {"interval_s": 1e9},
        {"sent_s": float("nan")},
        {"session": 2**63},
        {"link_bytes_s": 0},
        {"total": {"received": -1}},
        {"total": {"received": 2**63}},
        {"total": None},
        {"sketch": [0] * 257},
        {"sketch": [-1]},
        {"peers": {"no/slash": {}}},
    ],
    ids=lambda wrong: re.sub(r"\W+", "-", str(wrong))[:40],
)
def test_invalid_sample_is_refused_with_its_sender(wrong):
    with pytest.raises(errors.RemoteProtocolError) as caught:
        decision_messages.decode(PLAIN | wrong, decision_messages.Sample)
    named = (PLAIN | wrong)["host"]
    assert caught.value.what == (named if isinstance(named, str) else "a sender without a name")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON | st.dictionaries(st.sampled_from(sorted(PLAIN)), JSON))
def test_arbitrary_payload_is_decoded_or_refused(payload):
    try:
        sample = decision_messages.decode(payload, decision_messages.Sample)
    except errors.RemoteProtocolError as e:
        assert str(e)
    else:
        assert sample.number >= 1


IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


@pytest.mark.parametrize(
    "images",
    [
        {"no image": {}},
        {IMAGE: {"size_bytes": 5, "cached_bytes": 6}},
        {IMAGE: {"cached_bytes": 1}},
        {IMAGE: {"size_bytes": 5, "cached_bytes": 3, "missing_bytes": 3}},
        {IMAGE: {"size_bytes": -1}},
        {IMAGE: {"read": {"local": 2**63}}},
        {IMAGE: {"boot_set_bytes": -1}},
        {IMAGE: {"boot_set_bytes": 1, "boot_set_cached_bytes": 2}},
        {IMAGE: {"boot_set_cached_bytes": 1}},
        {IMAGE: {"boot_set_bytes": 0.5}},
        {IMAGE: {"boot_image": "<script>"}},
        {IMAGE: {"boot_image": "x" * 17}},
        {IMAGE: {"task": {"request": 1, "kind": "erase", "state": "done"}}},
        {IMAGE: {"fill": {"is_used": True}}},
        {IMAGE: {"fill": {"state": "lost", "is_used": True}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": 1}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "remaining_bytes": 1}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "total_bytes": 2**63}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "rate_bytes_s": -1}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "remaining_s": float("nan")}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "remaining_s": float("inf")}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "why": "x" * 256}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "mode": "gentle"}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "due_in_s": 1e9}}},
        {IMAGE: {"fill": {"state": "queued", "is_used": True, "due_in_s": float("-inf")}}},
        {IMAGE: {"fill": {"state": "fully_cached", "is_used": True}}},
        {
            IMAGE: {
                "fill": {
                    "state": "fully_cached",
                    "is_used": True,
                    "total_bytes": 1,
                    "remaining_bytes": 1,
                }
            }
        },
        {IMAGE: {"task": {"request": 1, "kind": "pre_seed", "state": "done", "why": "x" * 256}}},
        {f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}": {} for n in range(decision_messages.MAX_IMAGES + 1)},
        [],
        "all",
    ],
)
def test_invalid_or_oversized_images_are_refused_with_their_sample(images):
    with pytest.raises(errors.RemoteProtocolError, match="h1"):
        decision_messages.decode(PLAIN | {"images": images}, decision_messages.Sample)


def test_images_round_trip():
    held = decision_messages.HeldImage(
        size_bytes=9,
        cached_bytes=7,
        missing_bytes=2,
        boot_image="ready",
        boot_revision=2,
        boot_set_bytes=5,
        boot_set_cached_bytes=3,
        read=decision_messages.ReadBytes(1, 2, 3, 4),
        fetched=decision_messages.FetchedBytes(5, 6),
        fill=fill_progress.FillStatus(
            state=fill_progress.FillState.FILLING,
            is_used=True,
            total_bytes=9,
            remaining_bytes=2,
            rate_bytes_s=7,
            remaining_s=0.5,
            is_pinned=True,
            mode=control_wire.FillMode.URGENT,
        ),
        task=decision_messages.TaskProgress(
            request=7,
            kind=decision_messages.TaskKind.PRE_SEED,
            state=decision_messages.TaskState.DONE,
        ),
    )
    sample = decision_messages.decode(
        PLAIN | {"images": {IMAGE: json.loads(json.dumps(decision_messages.encode(held)))}},
        decision_messages.Sample,
    )
    assert sample.images == {IMAGE: held}
    assert decision_messages.decode(PLAIN, decision_messages.Sample).images is None


@pytest.mark.parametrize("after", [["../x"], [""], [7], IMAGE, 17 * [IMAGE], None])
def test_task_with_invalid_previous_images_is_refused(after):
    task = {"request": 1, "kind": "prefetch_boot_image", "image_id": IMAGE, "is_public": False}
    found = decision_messages.decode(
        {**task, "previous_images": [IMAGE]}, decision_messages.ImageTask
    )
    assert found.previous_images == (IMAGE,)
    with pytest.raises(errors.RemoteProtocolError):
        decision_messages.decode({**task, "previous_images": after}, decision_messages.ImageTask)
