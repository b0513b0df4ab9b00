# SPDX-License-Identifier: Apache-2.0
"""Each image waits once, and no two workers have the same one."""

import threading

from acstor_common import ids
from acstor_glance import work_queue

A = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
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
