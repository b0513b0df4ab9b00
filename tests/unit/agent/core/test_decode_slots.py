# SPDX-License-Identifier: Apache-2.0
"""Decode slots: time is shared among images, then among their guests, within budgets."""

import pytest

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.sources import decode_slots
from acstor_common.model import ids

A, B, C = (ids.ImageId(name) for name in "abc")
SLICE_S = decode_slots.SLICE_S
ENOUGH_BYTES = int(decode_slots.FLOOR_BYTES_S)
"""Decoded bytes of one second that leave the budget untouched."""


def guest(name: str) -> requests.Stream:
    return requests.Stream(requests.Klass.GUEST, name)


class Host:
    """Decode slots with a manual clock."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = decode_slots.DecodeSlots(slots)
        self.now_s = 100.0

    def wait(self, image_id: ids.ImageId, name: str = "g") -> decode_slots.Job:
        return self.slots.queue_job(image_id, guest(name))

    def begin(self) -> decode_slots.Job:
        job = self.slots.begin_job(self.now_s)
        assert job is not None
        return job

    def end(self, job: decode_slots.Job, used_s: float, decoded_bytes: int = ENOUGH_BYTES) -> None:
        self.now_s += used_s
        self.slots.end_job(job, used_s, decoded_bytes, self.now_s)


def test_jobs_never_exceed_the_slots() -> None:
    host = Host(slots=2)
    for _ in range(3):
        host.wait(A)
    first, _ = host.begin(), host.begin()
    assert host.slots.begin_job(host.now_s) is None
    assert (host.slots._waiting, host.slots.delay_s(host.now_s)) == (1, None)
    host.end(first, SLICE_S)
    host.begin()
    assert host.slots._waiting == 0


def test_new_image_goes_before_an_image_that_used_more_time() -> None:
    host = Host()
    for _ in range(50):
        host.wait(A)
    for _ in range(20):
        host.end(host.begin(), SLICE_S)
    late = host.wait(B)
    assert host.begin() is late


def test_images_get_equal_time_not_equal_turns() -> None:
    host, used_s = Host(), {A: 0.0, B: 0.0, C: 0.0}
    for image_id in used_s:
        host.wait(image_id)
    for _ in range(3000):
        job = host.begin()
        took_s = {A: SLICE_S, B: SLICE_S / 2, C: SLICE_S / 10}[job.image_id]
        host.end(job, took_s)
        used_s[job.image_id] += took_s
        host.wait(job.image_id)
    assert used_s[A] == pytest.approx(used_s[B], rel=0.05) == pytest.approx(used_s[C], rel=0.05)


def test_idle_image_saves_no_credit() -> None:
    host = Host()
    host.wait(B)
    host.end(host.begin(), SLICE_S)
    for _ in range(100):
        host.wait(A)
        host.end(host.begin(), SLICE_S)
    for _ in range(20):
        host.wait(A)
        host.wait(B)
    order = []
    for _ in range(20):
        job = host.begin()
        host.end(job, SLICE_S)
        order.append(job.image_id)
    assert 9 <= order.count(A) <= 11
    assert A in order[:3] and B in order[:3]


def test_guests_of_an_image_take_turns() -> None:
    host = Host()
    for name in ["one"] * 3 + ["two"] * 3:
        host.wait(A, name)
    order = []
    for _ in range(6):
        job = host.begin()
        host.end(job, SLICE_S)
        order.append(job.guest.name)
    assert order == ["one", "two"] * 3


def test_slow_decoding_image_gets_a_burst_and_then_a_share() -> None:
    host, began_s, used_s = Host(), 100.0, 0.0
    host.wait(A)
    while host.now_s < began_s + 100.0:
        job = host.slots.begin_job(host.now_s)
        if job is None:
            delay_s = host.slots.delay_s(host.now_s)
            assert delay_s
            host.now_s += delay_s
            continue
        assert job.allowed_s >= SLICE_S / 2
        host.end(job, min(job.allowed_s, 0.05), decoded_bytes=0)
        used_s += min(job.allowed_s, 0.05)
        host.wait(A)
    assert used_s == pytest.approx(decode_slots.BURST_S + decode_slots.REFILL * 100.0, rel=0.05)
    late = host.wait(B)
    assert host.begin() is late  # the budget is the image's own


def test_slot_is_held_longer_the_fewer_jobs_wait() -> None:
    host, guest_s = Host(), decode_slots.GUEST_SLICE_S
    host.wait(A)
    job = host.begin()

    def is_over(used_s: float, decoded_bytes: int = 0) -> bool:
        return host.slots.is_over(job, used_s, decoded_bytes)

    assert not is_over(guest_s) and is_over(decode_slots.BURST_S)
    assert not is_over(decode_slots.BURST_S, decoded_bytes=ENOUGH_BYTES)
    host.wait(A)
    assert not is_over(SLICE_S) and is_over(guest_s, decoded_bytes=ENOUGH_BYTES)
    host.wait(B)
    assert not is_over(SLICE_S / 2) and is_over(SLICE_S, decoded_bytes=ENOUGH_BYTES)


def test_slow_decoding_image_leaves_a_slot_to_others() -> None:
    host = Host(slots=3)
    for _ in range(5):
        host.wait(A)
    jobs = [host.begin() for _ in range(3)]
    for job in jobs:
        host.end(job, 0.01, decoded_bytes=0)
        host.wait(A)
    host.begin(), host.begin()
    assert host.slots.begin_job(host.now_s) is None
    host.wait(B)
    assert host.begin().image_id == B


def test_fast_decoding_image_is_never_delayed() -> None:
    host = Host()
    for _ in range(10_000):
        host.wait(A)
        host.end(host.begin(), 0.01, decoded_bytes=int(0.02 * decode_slots.FLOOR_BYTES_S))


def test_cancelled_job_is_not_started() -> None:
    host = Host()
    gone = host.wait(A)
    host.slots.leave_queue(gone)
    host.slots.leave_queue(gone)
    assert host.slots.begin_job(host.now_s) is None
    assert host.slots._waiting == 0


def test_idle_images_are_forgotten_unless_over_budget() -> None:
    host = Host()
    host.wait(A)
    host.end(host.begin(), 2.0, decoded_bytes=0)
    for number in range(2 * decode_slots.IMAGES):
        host.wait(ids.ImageId(str(number)))
        host.end(host.begin(), 0.0001)
    assert len(host.slots._images) <= decode_slots.IMAGES + 1
    host.wait(A)
    assert host.slots.begin_job(host.now_s) is None
