# SPDX-License-Identifier: Apache-2.0
"""Each image is queued once, and no two workers process the same one."""

import threading
import time
import uuid

from acstor_common.model import ids
from acstor_glance import work_queue

Rank = work_queue.Rank
A = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
C = ids.parse_image_id("3f1b2c4d-2222-4333-8444-555566667777")
B = ids.parse_image_id("0c9e3f7a-1111-4222-8333-444455556666")


def take(queue: work_queue.WorkQueue) -> ids.ImageId | None:
    turn = queue.take_image()
    return turn.image_id if turn else None


def images(count: int, first: int = 0) -> list[ids.ImageId]:
    return [ids.parse_image_id(str(uuid.UUID(int=first + number))) for number in range(count)]


def test_images_are_queued_once_in_the_order_of_arrival() -> None:
    queue = work_queue.WorkQueue(9)
    for image_id in (B, A, B):
        queue.add_image(image_id)
    assert queue.queue_sizes() == (2, 0)
    assert [take(queue), take(queue)] == [B, A]
    assert queue.queue_sizes() == (0, 2)


def test_image_queued_during_its_processing_waits_for_its_end() -> None:
    queue = work_queue.WorkQueue(9)
    queue.add_image(A)
    assert take(queue) == A
    queue.add_image(A)
    queue.add_image(B)
    assert take(queue) == B
    taken: list[object] = []
    worker = threading.Thread(target=lambda: taken.append(take(queue)))
    worker.start()
    queue.finish_image(A)
    worker.join(60)
    assert taken == [A]


def test_closed_queue_lets_workers_end() -> None:
    queue = work_queue.WorkQueue(9)
    taken: list[object] = []
    worker = threading.Thread(target=lambda: taken.append(take(queue)))
    worker.start()
    queue.close()
    worker.join(60)
    assert taken == [None]
    queue.add_image(A)
    assert take(queue) is None


def test_queue_is_limited() -> None:
    queue = work_queue.WorkQueue(9, limit=1)
    queue.add_image(A)
    queue.add_image(B)
    assert queue.queue_sizes() == (1, 0) and take(queue) == A


def test_booted_images_precede_new_ones_and_new_precede_old() -> None:
    queue = work_queue.WorkQueue(9)
    queue.add_image(A, Rank.OLD)
    queue.add_image(B, Rank.NEW)
    queue.add_image(C, Rank.BOOTED)
    assert [take(queue), take(queue), take(queue)] == [C, B, A]


def test_queued_image_is_only_promoted() -> None:
    queue = work_queue.WorkQueue(9)
    for image_id in (A, B, C):
        queue.add_image(image_id, Rank.OLD)
    queue.add_image(C, Rank.BOOTED)
    queue.add_image(C, Rank.OLD)
    queue.add_image(B, Rank.NEW)
    assert queue.queue_sizes() == (3, 0)
    assert [take(queue), take(queue), take(queue)] == [C, B, A]


def test_full_queue_drops_the_least_urgent_image() -> None:
    queue = work_queue.WorkQueue(9, limit=2)
    queue.add_image(A, Rank.OLD)
    queue.add_image(B, Rank.OLD)
    queue.add_image(C, Rank.OLD)  # no space, and no more urgent than the others
    queue.add_image(C, Rank.NEW)
    assert queue.queue_sizes() == (2, 0)  # notifications are unsigned: the image takes no space
    queue.add_image(C, Rank.BOOTED)
    assert [take(queue), take(queue)] == [C, A]
    for image_id in (A, B):
        queue.add_image(image_id, Rank.BOOTED)
    queue.add_image(C, Rank.BOOTED)
    assert queue.queue_sizes() == (2, 2)
    queue.finish_image(A)
    assert take(queue) == A


def test_notified_and_reconciled_images_take_turns() -> None:
    queue = work_queue.WorkQueue(9)
    named = [ids.parse_image_id(str(uuid.UUID(int=number))) for number in range(100)]
    for image_id in named:
        queue.add_image(image_id, Rank.NEW)
    for image_id in (A, B):
        queue.add_image(image_id, Rank.OLD, "a project")
    assert [take(queue) for _ in range(4)] == [named[0], A, named[1], B]


def test_ten_thousand_queued_images_delay_no_urgent_one() -> None:
    catalogue = images(10_000)
    queue = work_queue.WorkQueue(9)
    for _ in range(2):  # two passes find them
        for image_id in catalogue:
            queue.add_image(image_id, Rank.OLD)
    queue.add_image(B, Rank.NEW)
    queue.add_image(catalogue[-1], Rank.BOOTED)
    assert queue.queue_sizes() == (10_001, 0)
    taken: list[ids.ImageId] = []

    def work() -> None:
        while (image_id := take(queue)) is not None:
            taken.append(image_id)
            queue.finish_image(image_id)

    assert take(queue) == catalogue[-1] and take(queue) == B
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


def test_projects_take_turns() -> None:
    queue = work_queue.WorkQueue()
    many, few = images(100), images(2, first=1000)
    for image_id in many:
        queue.add_image(image_id, Rank.NEW, "many")
    for image_id in few:
        queue.add_image(image_id, Rank.OLD, "few")
    taken = []
    for _ in range(5):
        taken.append(take(queue))
        queue.finish_image(taken[-1])
    assert taken == [many[0], few[0], many[1], few[1], many[2]]


def test_project_leaves_one_worker_to_others() -> None:
    queue = work_queue.WorkQueue(3)
    for image_id in images(5):
        queue.add_image(image_id, Rank.BOOTED, "long")
    assert [queue.take_image().project for _ in range(2)] == ["long", "long"]
    taken: list[object] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take_image()))
    worker.start()
    worker.join(0.1)
    assert taken == []
    queue.add_image(A, Rank.OLD, "other")
    worker.join(60)
    assert taken == [(A, Rank.OLD, "other")]


def test_image_named_by_a_message_waits_for_the_turn_of_its_project() -> None:
    queue = work_queue.WorkQueue()
    queue.add_image(A, Rank.NEW)
    turn = queue.take_image()
    assert turn == (A, Rank.NEW, work_queue.UNKNOWN_PROJECT)
    assert not queue.may_begin(turn, "its own")
    queue.finish_image(A)
    turn = queue.take_image()
    assert turn == (A, Rank.NEW, "its own") and queue.may_begin(turn, "its own")
    queue.add_image(B, Rank.NEW, "its own")
    queue.add_image(B, Rank.BOOTED)  # a message does not take it from its project
    queue.finish_image(A)
    assert queue.take_image() == (B, Rank.BOOTED, "its own")


def test_flood_of_messages_drops_no_reconciled_image() -> None:
    queue = work_queue.WorkQueue(limit=50)
    for image_id in images(200):
        queue.add_image(image_id, Rank.NEW)
    for image_id in (A, B):
        queue.add_image(image_id, Rank.OLD, "other")
    for image_id in images(200, first=1000):
        queue.add_image(image_id, Rank.NEW)
    assert queue.queue_sizes() == (50, 0)
    taken = []
    for _ in range(4):
        taken.append(take(queue))
        queue.finish_image(taken[-1])
    assert {A, B} < set(taken)
