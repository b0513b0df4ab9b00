# SPDX-License-Identifier: Apache-2.0
"""Pulling of recovered servers' disks: selection, order and retries."""

import threading
import types

import pytest

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.restore import offline_pull
from acstor_checkpoint.restore import pull_loop
from acstor_common import errors
from acstor_common.disks import recovery_marker
from acstor_common.model import ids
from tests.fakes import manual_clock

CHECKPOINT = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")


def server(number, path="/disk"):
    instance = ids.parse_image_id(f"0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e3{number}")
    return domain_xml.Server(instance, "p", domain_xml.RootDisk("vda", path, CHECKPOINT), {}, False)


@pytest.fixture(autouse=True)
def marks(monkeypatch):
    found = []
    monkeypatch.setattr(recovery_marker, "read", lambda _: CHECKPOINT if found else None)
    monkeypatch.setattr(recovery_marker, "write", lambda path, _: found.append(path))
    monkeypatch.setattr(recovery_marker, "remove", found.remove)
    return found


class Host:
    """Servers on checkpoints, and a record of the pulls."""

    def __init__(self, *found):
        self.found, self.done, self.now_s = list(found), [], 0.0
        self.undescribed, self.strangers = set(), set()
        self.is_active = self.is_complete = True
        self.fault = None
        self.ended = threading.Event()
        known = types.SimpleNamespace(
            is_complete=lambda _: self.is_complete,
            base_path=lambda _: "/base",
            checkpoint_path=lambda one: one,
            check_server=self._check_server,
        )
        known.is_copied_into = lambda _path, _checkpoint: self.is_copied_into
        self.is_copied_into, self.is_backed_by_checkpoint = False, True
        bases = types.SimpleNamespace(
            is_backed_by_checkpoint=lambda _: self.is_backed_by_checkpoint,
            mounted_path=lambda one: f"/shown/{one}",
        )
        self.pulling = pull_loop.PullLoop(
            self,
            known,
            bases,
            7,
            self.ended,
            self._pull_off,
            manual_clock.FunctionClock(lambda: self.now_s),
        )

    def _check_server(self, _checkpoint_id, instance):
        if instance in self.strangers:
            raise errors.Unusable("the disk", "it is not of this server")

    def list_servers(self):
        if isinstance(self.found, Exception):
            raise self.found
        return domain_xml.ServerList(self.found, frozenset(self.undescribed))

    def find_domain(self, one):
        pull = lambda base, rate: self._pull(one, base, rate)  # noqa: E731
        return types.SimpleNamespace(is_active=lambda: self.is_active, pull_blocks=pull)

    def look(self):
        self.pulling.start_due_pulls()
        self.pulling.wait_for_pull()

    def _pull(self, one, base, rate_bytes_s):
        if self.fault:
            raise self.fault
        self.done.append((one.instance, base, rate_bytes_s))
        return True

    def _pull_off(self, disk, is_off):
        assert is_off()
        if self.fault:
            raise self.fault
        self.done.append(disk)


def test_running_server_is_pulled_by_qemu_and_stopped_one_by_the_daemon(marks):
    host = Host(server(1))
    host.look()
    assert host.done == [(server(1).instance, "/base", 7)] and marks == ["/disk"]
    host.now_s += pull_loop.FIRST_PAUSE_S
    host.is_active = False
    host.look()
    assert host.done[1:] == [("/disk", "/base", f"/shown/{CHECKPOINT}", CHECKPOINT)] and marks == []


def test_large_offline_pull_does_not_delay_other_servers(marks):
    host = Host(server(1), server(2), server(3))
    active, begun, go_on = {2}, [], threading.Event()

    def domain(one):
        number = int(one.instance[-1])
        return types.SimpleNamespace(
            is_active=lambda: number in active,
            pull_blocks=lambda base, rate: host._pull(one, base, rate),
        )

    def pull_off(_disk, _is_off):
        begun.append(1)
        assert go_on.wait(30)

    host.find_domain, host.pulling._pull_offline = domain, pull_off
    host.pulling.start_due_pulls()
    assert [one[0] for one in host.done] == [server(2).instance] and len(begun) == 1
    active.add(3)
    active.add(1)  # its copy must end before QEMU pulls it
    host.pulling.start_due_pulls()
    assert [one[0] for one in host.done] == [server(2).instance, server(3).instance]
    assert len(begun) == 1
    go_on.set()
    host.pulling.wait_for_pull()
    host.pulling.start_due_pulls()
    assert [one[0] for one in host.done][2:] == [server(1).instance]


@pytest.mark.expect_log("was not copied into its disk: nobody expected it")
def test_unexpected_offline_failure_is_logged_and_retried():
    host = Host(server(1))
    host.is_active, host.fault = False, RuntimeError("nobody expected it")
    host.look()
    assert host.pulling._tried[server(1).instance].again_s == host.now_s + pull_loop.FIRST_PAUSE_S


def test_loop_ends_after_the_pull_in_progress(marks):
    marks.append("/disk")
    host = Host(server(1))
    host.is_active = False
    host.pulling._pull_offline = lambda _disk, _is_off: host.done.append(host.ended.wait(30))
    host.pulling.start_due_pulls()
    threading.Timer(0.2, host.ended.set).start()
    host.pulling.run()
    assert host.done == [True] and marks == []


@pytest.mark.parametrize("is_backed_by_checkpoint", [True, False])
def test_leftover_copy_of_a_killed_pull_is_removed(tmp_path, is_backed_by_checkpoint):
    copy = tmp_path / f"disk{offline_pull.COPY_ENDING}"
    copy.touch()
    host = Host(server(1, str(tmp_path / "disk")))
    host.is_backed_by_checkpoint = is_backed_by_checkpoint
    host.look()
    assert not copy.exists()


def test_mark_is_removed_when_the_file_is_complete(marks, tmp_path, monkeypatch):
    path = str(tmp_path / "disk")
    host = Host(server(1, path))
    host.look()
    host.is_backed_by_checkpoint = False
    host.look()
    assert marks == [path]
    (tmp_path / "disk").touch()
    host.is_copied_into = True
    host.look()
    assert marks == []


def test_disk_with_missing_data_is_rebased_on_its_checkpoint(monkeypatch):
    laid = []
    monkeypatch.setattr(offline_pull, "rebase", lambda *how: laid.append(how))
    host = Host(server(1))
    host.is_backed_by_checkpoint = False
    host.look()
    assert laid == []  # QEMU may use the disk
    host.is_active = False
    host.look()
    assert laid == [("/disk", f"/shown/{CHECKPOINT}", "/base")]


@pytest.mark.expect_log("it is not of this server")
@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("is_backed_by_checkpoint", [True, False])
def test_disk_on_another_servers_checkpoint_is_not_touched(
    marks, monkeypatch, is_active, is_backed_by_checkpoint
):
    """Its QEMU may have written the name; root would read another tenant's data."""
    monkeypatch.setattr(offline_pull, "rebase", lambda *how: host.done.append(how))
    host = Host(server(1))
    host.strangers, host.is_active = {server(1).instance}, is_active
    host.is_backed_by_checkpoint, host.is_copied_into = is_backed_by_checkpoint, True
    host.look()
    assert host.done == [] and marks == []


def test_incomplete_checkpoint_is_not_pulled():
    host = Host(server(1))
    host.is_complete = False
    host.look()
    assert host.done == []


@pytest.mark.expect_log("was not copied into its disk: it: busy")
def test_failed_pull_backs_off_and_does_not_delay_others():
    host = Host(server(1))
    host.fault = errors.Unusable("it", "busy")
    tried = []
    for _ in range(10):
        host.look()
        tried.append(host.pulling._tried[server(1).instance].again_s - host.now_s)
        host.now_s += tried[-1]
    assert tried[:3] == [30, 60, 120] and tried[-1] == pull_loop.LONGEST_PAUSE_S
    host.now_s -= 1
    host.fault, host.found = None, [server(1), server(2)]
    host.look()
    assert [one[0] for one in host.done] == [server(2).instance]


def test_finished_or_deleted_server_is_forgotten():
    host = Host(server(1))
    host.look()
    host.found, host.undescribed = [], {server(1).instance}
    host.look()
    assert host.pulling._tried  # libvirt lists it without a description
    host.undescribed = set()
    host.look()
    assert host.pulling._tried == {}


@pytest.mark.expect_log("libvirt: away")
def test_unreachable_libvirt_is_logged_once():
    host = Host()
    host.found = errors.Unusable("libvirt", "away")
    host.look()
    host.look()


@pytest.mark.expect_log("are not checked")
def test_unexpected_exception_does_not_end_the_loop():
    host = Host(server(1))

    def fail():
        host.ended.set()
        raise RuntimeError("never")

    host.list_servers = fail
    host.pulling.run(check_interval_s=0.0)


def test_no_pull_begins_when_the_daemon_ends():
    host = Host(server(1))
    host.ended.set()
    host.look()
    assert host.done == []
