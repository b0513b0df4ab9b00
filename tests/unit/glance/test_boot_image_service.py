# SPDX-License-Identifier: Apache-2.0
"""Builds of one project's boot images do not delay those of another."""

import threading
import uuid

import pytest

from acstor_common.model import ids
from acstor_glance import metrics
from acstor_glance.boot import boot_image_service
from acstor_glance.boot import build_modes


class Made:
    """Makes boot images: those of the project ``slow`` take until the test lets them end."""

    def __init__(self, owners: dict[ids.ImageId, str]) -> None:
        self.owners, self.order = owners, []
        self.may_end, self.is_done = threading.Event(), threading.Semaphore(0)

    def list_recorded(self):
        return []

    def make_boot_image(self, image_id, begin):
        if not begin(self.owners[image_id]):
            return False
        if self.owners[image_id] == "slow":
            self.may_end.wait(60)
        self.order.append(image_id)
        self.is_done.release()
        return True


class Ahead:
    def announce(self, image_id):
        pass

    def announce_pending(self):
        pass


def images(count: int, first: int) -> list[ids.ImageId]:
    return [ids.parse_image_id(str(uuid.UUID(int=first + number))) for number in range(count)]


@pytest.mark.parametrize("is_told", [False, True])
def test_slow_builds_of_a_project_leave_a_worker_to_the_others(is_told: bool) -> None:
    slow, quick = images(5, 0), images(2, 100)
    owners = {**dict.fromkeys(slow, "slow"), **dict.fromkeys(quick, "quick")}
    made = Made(owners)
    ways = build_modes.BuildModes(builds=True, records=True)
    service = boot_image_service.BootImageService(made, ways, metrics.ListenerMetrics(), Ahead())
    if is_told:  # messages do not name the owner that counts
        for image_id in (*slow, *quick):
            service.queue_image(image_id, "")
    else:
        service.requeue(owners)
    service.start()
    try:
        for _ in quick:
            assert made.is_done.acquire(timeout=60)
        assert made.order == quick
        made.may_end.set()
        for _ in slow:
            assert made.is_done.acquire(timeout=60)
        assert made.order == [*quick, *slow]
    finally:
        made.may_end.set()
        service.stop()
