# SPDX-License-Identifier: Apache-2.0
"""Stuck requests are reported and aborted; functional tests abort those of real processes."""

import dataclasses
import threading
import types

import pytest
import trio
import trio.testing

from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_agent.images.read import read_admission
from acstor_agent.mount import stuck_requests
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import manual_clock

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = disk_header.DiskId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
QUICK = stuck_requests.StuckLimits(check_interval_s=0.01, suspect_after_s=0.05, late_after_s=0.1)
"""For tests with threads, which do not work with an autojump clock."""


class Mount:
    """Waiting guests, the watchdog, and scripted findings about their processes."""

    def __init__(self, nursery, monkeypatch, limits):
        self.known = inodes.Inodes(inodes.keyed(bytes(32)))
        self.inode = self.known.register_image(IMAGE)
        self.known.register_disk(DISK)
        self.waiting = read_admission.ReadAdmission()
        clock = types.SimpleNamespace(monotonic=trio.current_time)
        monkeypatch.setattr(read_admission, "time", clock)
        self.rescue = stuck_requests.StuckRequests(
            self.waiting.table, self.known, manual_clock.FunctionClock(trio.current_time), limits
        )
        self.killed, self.asked, self.ended = set(), [], []
        self.has_ended = trio.Event()
        monkeypatch.setattr(self.rescue._dying, "find_killed", self._among)
        self._nursery = nursery
        nursery.start_soon(self.rescue.run)

    def guest(self, tag):
        return self.known.guest_of(self.known.open(self.inode, 3, tag))

    def read(self, guest, why=""):
        self._nursery.start_soon(self._read, guest, why)

    async def _read(self, guest, why):
        try:
            await self.waiting.run_admitted(guest, self._wait, why)
        except errors.ReaderKilled:
            self.ended.append(guest)
            self.has_ended.set()

    async def _wait(self, why):
        read_admission.note_wait(why)
        await trio.sleep_forever()

    def _among(self, waiters, now_s):
        self.asked.append([waiter.guest for waiter in waiters])
        return [waiter.guest for waiter in waiters if waiter.guest in self.killed]


@pytest.fixture
def limits():
    return stuck_requests.StuckLimits()


@pytest.fixture
def mount(nursery, monkeypatch, limits):
    return Mount(nursery, monkeypatch, limits)


@pytest.mark.expect_log("have waited for up to")
@pytest.mark.parametrize("limits", [QUICK])
async def test_requests_of_a_killed_guest_are_aborted_and_others_wait_on(mount):
    killed, living = mount.guest(7), mount.guest(8)
    mount.read(killed)
    mount.read(living, "refused")
    await trio.sleep(0.5)
    assert mount.ended == []
    mount.killed.add(killed)
    with trio.fail_after(20):
        await mount.has_ended.wait()
    await trio.sleep(0.2)
    assert (mount.ended, mount.rescue.aborted) == ([killed], 1)
    assert mount.rescue.list_late_requests()[IMAGE].why == "refused"


@pytest.mark.parametrize("limits", [dataclasses.replace(QUICK, late_after_s=1e9)])
async def test_request_newer_than_the_process_scan_is_not_aborted(mount, monkeypatch):
    killed = mount.guest(7)
    looks, goes_on = threading.Event(), threading.Event()

    def among(waiters, now_s):
        looks.set()
        goes_on.wait(60)
        return [killed]

    monkeypatch.setattr(mount.rescue._dying, "find_killed", among)
    mount.read(killed)
    with trio.fail_after(20):
        assert await trio.to_thread.run_sync(looks.wait, 15)
        mount.read(killed)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(mount.rescue._dying, "find_killed", lambda waiters, now_s: [])
        goes_on.set()
        await mount.has_ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert (len(mount.ended), mount.rescue.aborted, len(mount.waiting.table)) == (1, 1, 1)


async def test_processes_are_not_scanned_for_short_waits(mount, autojump_clock):
    for _ in range(20):
        with trio.move_on_after(1.5):
            await mount.waiting.run_admitted(mount.guest(7), trio.sleep_forever)
    assert mount.asked == [] and mount.rescue.list_late_requests() == {}


@pytest.mark.expect_log("no answer yet")
async def test_late_requests_of_an_image_are_logged_once_per_interval(
    mount, autojump_clock, caplog
):
    for tag in range(1, 30):
        mount.read(mount.guest(tag))
    await trio.sleep(50)
    assert len([one for one in caplog.records if "have waited for up to" in one.message]) == 1
    await trio.sleep(60)
    assert len([one for one in caplog.records if "have waited for up to" in one.message]) == 2
    assert mount.rescue.list_late_requests()[IMAGE].count == 29


@pytest.mark.expect_log("have waited for up to")
@pytest.mark.parametrize("limits", [QUICK])
async def test_guest_with_an_invisible_process_is_never_aborted(mount):
    unseen, disk = mount.guest(0), inodes.guest_of_disk(DISK)
    mount.killed |= {unseen, disk}
    mount.read(unseen)
    mount.read(disk)
    with trio.fail_after(20):
        await mount.has_ended.wait()
    await trio.sleep(0.2)
    assert mount.ended == [disk]
    assert all(unseen not in asked for asked in mount.asked)


async def test_power_off_cancelled_during_its_process_scan_stays_cancelled(mount, monkeypatch):
    """Nova does not wait long for the answer."""
    looks, goes_on = trio.Event(), threading.Event()

    def processes_of(instance_id):
        trio.from_thread.run_sync(looks.set)
        goes_on.wait(60)
        return [(7, 1)]

    monkeypatch.setattr(stuck_requests.killed_guests, "processes_of", processes_of)
    async with trio.open_nursery() as asking:
        asking.start_soon(mount.rescue.power_off, IMAGE)
        await looks.wait()
        asking.start_soon(mount.rescue.power_off, IMAGE, True)
        await trio.testing.wait_all_tasks_blocked()
        goes_on.set()
    assert mount.rescue._dying._power_offs == {}
