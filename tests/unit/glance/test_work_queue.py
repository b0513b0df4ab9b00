# SPDX-License-Identifier: Apache-2.0
"""Each image waits once, and no two workers have the same one."""

import threading
import time
import uuid

from acstor_common import ids
from acstor_glance import work_queue

Rank = work_queue.Rank
A = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
C = ids.parse_image_id("3f1b2c4d-2222-4333-8444-555566667777")
B = ids.parse_image_id("0c9e3f7a-1111-4222-8333-444455556666")


def test_image_waits_once_in_the_order_of_arrival() -> None:
    queue = work_queue.WorkQueue()
    for image_id in (B, A, B):
        queue.put(image_id)
    assert queue.sizes() == (2, 0)
    assert [queue.take(), queue.take()] == [B, A]
    assert queue.sizes() == (0, 2)


def test_image_that_is_put_while_worked_on_waits_until_that_is_done() -> None:
    queue = work_queue.WorkQueue()
    queue.put(A)
    assert queue.take() == A
    queue.put(A)
    queue.put(B)
    assert queue.take() == B
    taken: list[object] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take()))
    worker.start()
    queue.done(A)
    worker.join(60)
    assert taken == [A]


def test_closed_queue_lets_workers_end() -> None:
    queue = work_queue.WorkQueue()
    taken: list[object] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take()))
    worker.start()
    queue.close()
    worker.join(60)
    assert taken == [None]
    queue.put(A)
    assert queue.take() is None


def test_no_more_images_wait_than_there_is_room_for(monkeypatch) -> None:
    monkeypatch.setattr(work_queue, "MOST_WAITING", 1)
    queue = work_queue.WorkQueue()
    queue.put(A)
    queue.put(B)
    assert queue.sizes() == (1, 0) and queue.take() == A


def test_what_hosts_boot_goes_before_what_is_new_and_that_before_what_is_old() -> None:
    queue = work_queue.WorkQueue()
    queue.put(A, Rank.OLD)
    queue.put(B, Rank.NEW)
    queue.put(C, Rank.BOOTED)
    assert [queue.take(), queue.take(), queue.take()] == [C, B, A]


def test_image_that_waits_moves_up_and_never_down() -> None:
    queue = work_queue.WorkQueue()
    for image_id in (A, B, C):
        queue.put(image_id, Rank.OLD)
    queue.put(C, Rank.BOOTED)
    queue.put(C, Rank.OLD)
    queue.put(B, Rank.NEW)
    assert queue.sizes() == (3, 0)
    assert [queue.take(), queue.take(), queue.take()] == [C, B, A]


def test_full_queue_leaves_out_what_is_least_urgent(monkeypatch) -> None:
    monkeypatch.setattr(work_queue, "MOST_WAITING", 2)
    queue = work_queue.WorkQueue()
    queue.put(A, Rank.OLD)
    queue.put(B, Rank.OLD)
    queue.put(C, Rank.OLD)  # no room, and no more urgent than the others
    queue.put(C, Rank.NEW)
    assert [queue.take(), queue.take()] == [C, A]
    for image_id in (A, B):
        queue.put(image_id, Rank.BOOTED)
    queue.put(C, Rank.BOOTED)
    assert queue.sizes() == (2, 2)
    queue.done(A)
    assert queue.take() == A


def test_ten_thousand_images_that_wait_delay_no_urgent_one_and_are_each_done_once() -> None:
    catalogue = [ids.parse_image_id(str(uuid.UUID(int=number))) for number in range(10_000)]
    queue = work_queue.WorkQueue()
    for _ in range(2):  # two passes find them
        for image_id in catalogue:
            queue.put(image_id, Rank.OLD)
    queue.put(B, Rank.NEW)
    queue.put(catalogue[-1], Rank.BOOTED)
    assert queue.sizes() == (10_001, 0)
    taken: list[ids.ImageId] = []

    def work() -> None:
        while (image_id := queue.take()) is not None:
            taken.append(image_id)
            queue.done(image_id)

    assert queue.take() == catalogue[-1] and queue.take() == B
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    end_s = time.monotonic() + 60
    while len(taken) < 9_999 and time.monotonic() < end_s:
        time.sleep(0.01)
    queue.close()
    for worker in workers:
        worker.join(60)
    assert sorted(taken) == catalogue[:-1]
