# SPDX-License-Identifier: Apache-2.0
"""Detection of guests that are being killed, among real processes.

A killed process that does not end needs a real mount; functional tests have some.  Here, live
processes are marked as dying.
"""

import contextlib
import os
import platform
import signal
import subprocess
import sys

import pytest

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import process_state
from acstor_agent.mount import killed_guests
from acstor_common import errors

GUEST = requests.Stream(requests.Klass.GUEST, "an image/8")
OTHER = requests.Stream(requests.Klass.GUEST, "an image/9")
HOLD = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
GUEST_OF = """
import os, sys, time
os.open(sys.argv[1], os.O_RDONLY)
os.open(sys.argv[2], os.O_RDWR)
print(flush=True)
time.sleep(60)
"""

CHILD = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
if child := os.fork():
    print(child, flush=True)
    os.waitpid(child, 0)
    print(flush=True)
time.sleep(60)
"""


def tag(pid: int, started: int) -> int:
    return pid


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.raw"
    path.write_bytes(b"x")
    return path


@pytest.fixture
def hold(image):
    """Return a function that starts a process with the image open, and returns its pid."""
    with contextlib.ExitStack() as stack:

        def begin() -> int:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOLD, str(image)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return int(process.stdout.readline())

        yield begin


def first_of(pid):
    return killed_guests._threads_of(pid, [pid])


def waiter(image, guest, of):
    return killed_guests.WaitingGuest(guest, image.stat().st_ino, image.name, of)


def lie(monkeypatch, *pids: int) -> None:
    """Make some processes seem to be dying."""
    real = killed_guests._threads_of

    def threads_of(pid, threads):
        for thread in real(pid, threads):
            yield thread._replace(pending=256) if pid in pids else thread

    monkeypatch.setattr(killed_guests, "_threads_of", threads_of)


def test_holders_of_a_file_are_found_with_their_descriptors(image, hold):
    pid, other = hold(), hold()
    inode = image.stat().st_ino
    found = killed_guests.KilledGuests(tag)._holders({(image.name, inode)}, 0.0)[inode]
    assert {one.pid for one in found} == {pid, other}
    assert all(one.tag == one.thread == one.pid and not one.is_dying for one in found)
    assert all(os.readlink(f"/proc/{one.pid}/fd/{one.fds[0]}") == str(image) for one in found)


def test_examined_descriptors_of_a_file_are_limited(image):
    with image.open() as file:
        fds = [os.dup(file.fileno()) for _ in range(3 * killed_guests.FDS_LIMIT)]
        inode = image.stat().st_ino
        (found,) = killed_guests.KilledGuests(tag)._holders({(image.name, inode)}, 0.0)[inode]
    assert len(found.fds) == killed_guests.FDS_LIMIT + 1  # these count as shared
    for fd in fds:
        os.close(fd)


def test_file_of_the_same_name_in_another_folder_is_not_matched(image, hold, tmp_path):
    (tmp_path / "disks").mkdir()
    namesake = tmp_path / "disks" / image.name
    namesake.write_bytes(b"y")
    hold()
    inode = namesake.stat().st_ino
    assert killed_guests.KilledGuests(tag)._holders({(image.name, inode)}, 0.0) == {inode: []}


def test_only_the_guest_of_a_dying_process_is_found(image, hold, monkeypatch):
    killed, living = hold(), hold()
    lie(monkeypatch, killed)
    waiters = [waiter(image, GUEST, killed), waiter(image, OTHER, living)]
    assert killed_guests.KilledGuests(tag).find_killed(waiters, 0.0) == [GUEST]


def test_only_the_powered_off_guest_is_found_until_the_note_expires(image, hold, tmp_path):
    instance = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
    disk = tmp_path / instance / "disk"
    disk.parent.mkdir()
    disk.write_bytes(b"")
    with (
        disk.open("rb"),
        subprocess.Popen([sys.executable, "-c", GUEST_OF, image, disk], stdout=-1) as guest,
    ):
        try:
            assert guest.stdout.readline()
            found = killed_guests.processes_of(instance)
            assert [pid for pid, _ in found] == [guest.pid], "who only reads it is none"
            living = hold()
            asked = [waiter(image, GUEST, guest.pid), waiter(image, OTHER, living)]
            judge = killed_guests.KilledGuests(tag)
            assert judge.find_killed(asked, 0.0) == []
            judge.note_power_off(instance, [(pid, started - 1) for pid, started in found], 0.0)
            assert judge.find_killed(asked, 2.0) == [], "an older process of that id"
            judge.note_power_off(instance, found, 3.0)
            assert judge.find_killed(asked, 4.0) == [GUEST], "though it is not marked in /proc"
            assert judge.find_killed(asked, 3.0 + killed_guests.POWER_OFF_S) == []
        finally:
            guest.kill()
    assert killed_guests.processes_of(instance) == []


def test_instance_is_identified_by_the_root_disk_it_writes(image, tmp_path):
    instance = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
    for name in (f"{instance}/disk", f"{instance}/disk.eph0", "no-id/disk"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for first, second, found in (
        (image, tmp_path / instance / "disk", instance),
        (tmp_path / instance / "disk", image, ""),  # it only reads the disk
        (image, tmp_path / instance / "disk.eph0", ""),
        (image, tmp_path / "no-id" / "disk", ""),
    ):
        argv = [sys.executable, "-c", GUEST_OF, first, second]
        with subprocess.Popen(argv, stdout=-1) as guest:
            try:
                assert guest.stdout.readline()
                assert killed_guests.instance_of(guest.pid) == found
            finally:
                guest.kill()
    assert killed_guests.instance_of(guest.pid) == "", "it has ended"


def test_noted_power_offs_are_limited_and_expire():
    judge = killed_guests.KilledGuests(tag)
    judge.note_power_off("a", [(pid, 1) for pid in range(killed_guests.POWER_OFF_LIMIT)], 0.0)
    with pytest.raises(errors.Unusable, match="are being shut down"):
        judge.note_power_off("b", [(0, 2)], 1.0)
    judge.note_power_off("b", [(0, 2)], killed_guests.POWER_OFF_S)


def test_cancelled_power_off_affects_only_its_instance(image, hold):
    staying, ending = hold(), hold()
    asked = [waiter(image, GUEST, staying), waiter(image, OTHER, ending)]
    judge = killed_guests.KilledGuests(tag)
    for instance, pid in (("staying", staying), ("ending", ending)):
        judge.note_power_off(instance, [(pid, first.started) for first in first_of(pid)], 0.0)
    assert judge.find_killed(asked, 1.0) == [GUEST, OTHER]
    assert judge.cancel_power_off("staying") == 1
    assert judge.find_killed(asked, 3.0) == [OTHER]
    assert judge.cancel_power_off("staying") == 0


def test_guest_is_not_killed_while_a_live_process_shares_its_file(image, hold, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(image)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            child = int(process.stdout.readline())
            lie(monkeypatch, process.pid)
            asked = [waiter(image, GUEST, process.pid)]
            assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == []
            os.kill(child, signal.SIGKILL)
            process.stdout.readline()  # the child is reaped
            assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == [GUEST]
        finally:
            process.kill()


def test_holders_of_an_unlinked_file_are_found(image, hold, monkeypatch):
    killed, living = hold(), hold()
    asked = [waiter(image, GUEST, living), waiter(image, OTHER, 1)]
    image.unlink()
    lie(monkeypatch, killed)
    assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == []
    lie(monkeypatch, killed, living)
    assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == [GUEST, OTHER]


def test_guest_of_an_exited_opener_is_killed_once_all_holders_are_dying(image, hold, monkeypatch):
    killed, living = hold(), hold()
    asked = [waiter(image, GUEST, 1)]
    lie(monkeypatch, killed)
    assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == []
    lie(monkeypatch, killed, living)
    assert killed_guests.KilledGuests(tag).find_killed(asked, 0.0) == [GUEST]


def test_file_without_holders_yields_no_killed_guest(image):
    assert killed_guests.KilledGuests(tag).find_killed([waiter(image, GUEST, 1)], 0.0) == []


def test_process_scan_is_not_repeated_for_unchanged_waiters(image, hold, monkeypatch):
    pid = hold()
    found, scans = killed_guests.KilledGuests(tag), []
    real = found._holders
    monkeypatch.setattr(found, "_holders", lambda *at: scans.append(at) or real(*at))
    one, other = waiter(image, GUEST, pid), waiter(image, OTHER, pid)
    for now_s in range(30):
        found.find_killed([one], float(now_s))
    assert len(scans) == 1
    found.find_killed([one, other], 30.0)  # one more waits
    assert len(scans) == 2
    lie(monkeypatch, pid)
    assert found.find_killed([one], 31.0) == []  # too soon after the last scan
    assert found.find_killed([one], 32.0) == [GUEST]
    found.find_killed([], 99.0)


@pytest.mark.expect_log("processes have over 3 files open")
def test_truncated_scan_yields_no_killed_guest(image, hold, monkeypatch):
    pid = hold()
    lie(monkeypatch, pid)
    found, scans = killed_guests.KilledGuests(tag, links_limit=3), []
    real = found._holders
    monkeypatch.setattr(found, "_holders", lambda *at: scans.append(at) or real(*at))
    for now_s in range(120):  # nor is the scan repeated soon
        assert found.find_killed([waiter(image, GUEST, pid)], float(now_s)) == []
    assert len(scans) == 2


def test_truncated_search_for_a_guest_raises_unusable(image, hold):
    hold()
    with pytest.raises(errors.Unusable, match="over 3 files open"):
        killed_guests.processes_of("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12", links_limit=3)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who sees less")
def test_invisible_holder_counts_as_live(image, hold, monkeypatch):
    hold()
    asked = [waiter(image, GUEST, 1)]
    with image.open("rb"):
        child = os.fork()
        if not child:
            code = 2
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                lie(monkeypatch, os.getpid())
                code = len(killed_guests.KilledGuests(tag).find_killed(asked, 0.0))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.expect_log("cannot list open files of processes")
def test_invisible_processes_are_logged_once(image, hold, monkeypatch, caplog):
    pid = hold()
    real = os.listdir

    def listdir(path):
        if path == f"/proc/{pid}/fd":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = killed_guests.KilledGuests(tag)
    for now_s in range(200):
        assert found.find_killed([waiter(image, GUEST, pid)], float(now_s)) == []
    assert len(caplog.records) == 1


def test_descriptors_that_cannot_be_compared_count_as_shared(monkeypatch):
    with open(os.devnull) as one, open(os.devnull) as other:
        pid, mine, theirs = os.getpid(), one.fileno(), other.fileno()

        def share(first: int, second: int, *more: int) -> bool:
            return killed_guests._shares(
                process_state.FileHolder(pid, 1, pid, (first,), True),
                process_state.FileHolder(pid, 2, pid, (second, *more), False),
            )

        assert share(mine, mine) and not share(mine, theirs)
        assert share(mine, theirs, *range(1000, 1000 + killed_guests.FDS_LIMIT))
        assert share(mine, 1_000_000)  # no such descriptor: it counts as shared
        monkeypatch.setattr(platform, "machine", lambda: "another one")
        assert share(mine, theirs)


def test_opener_has_the_tag_of_its_process_for_any_thread():
    tasks = [int(name) for name in os.listdir("/proc/self/task")]
    assert {killed_guests.tag_of_opener(task, tag) for task in tasks} == {os.getpid()}
    assert killed_guests.tag_of_opener(0, tag) == 0
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert killed_guests.tag_of_opener(process.pid, tag) == 0
