# SPDX-License-Identifier: Apache-2.0
"""Scheduling of captures: fair turns despite failures and clock jumps."""

import time
import types

import pytest

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.schedule import worker_pool
from acstor_common import errors
from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages as messages
from tests.fakes import manual_clock
from tests.lab import runs

IDS = [ids.ImageId(f"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1{n}") for n in range(4)]
DISK = domain_xml.RootDisk("vda", "/disk", IDS[0])


def server(number, **specs):
    named = {f"acstor:{name}": value for name, value in specs.items()}
    return domain_xml.Server(IDS[number], "p", DISK, named, False)


class Host:
    """The domains, the capture function and the clocks of a daemon."""

    def __init__(self, folder, *here, interval_s=600):
        self.here, self.now_s, self.wall_ms = list(here), 1000.0, 1_800_000_000_000
        self.undescribed = set()
        self.took, self.cleared, self.fails, self.slow = [], [], {}, {}
        self.states = disk_states.DiskStates(folder)
        self.daemon = self.started(interval_s)

    def started(self, interval_s=600):
        return worker_pool.WorkerPool(
            self,
            self,
            self.states,
            interval_s,
            manual_clock.FunctionClock(lambda: self.now_s, lambda: self.wall_ms / 1000),
        )

    def list_servers(self):
        if self.here is None:
            raise errors.Unusable("libvirt", "it is away")
        return domain_xml.ServerList(self.here, frozenset(self.undescribed))

    def take_checkpoint(self, each, interval_s):
        number = IDS.index(each.instance)
        self.now_s += 5.0
        if number in self.fails:
            raise self.fails[number]
        self.took.append(number)
        return types.SimpleNamespace(
            instance_id=each.instance,
            interval_s=interval_s,
            checkpoint_id="c",
            read_bytes=1,
            sent_bytes=1,
            full_read_reason="",
            slow_holder=self.slow.get(number, ""),
        )

    def clean_up(self, each):
        self.cleared.append(IDS.index(each.instance))

    def run(self, seconds):
        self.took.clear()
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            if not self.daemon.run_turn():
                self.now_s += 5.0
        return list(self.took)


@pytest.fixture
def host(tmp_path):
    return lambda *here, **more: Host(tmp_path / "state", *here, **more)


def test_servers_are_captured_at_their_own_intervals(host):
    it = host(
        server(0), server(1, checkpoint_interval_s="60"), server(2, checkpoint_interval_s="0")
    )
    took = it.run(1195)
    assert took.count(0) == 2 and took.count(2) == 0
    assert 17 <= took.count(1) <= 20
    assert it.cleared == [0, 1, 2]


def test_no_captures_by_default(host):
    it = host(server(0), server(1, checkpoint_interval_s="300"), interval_s=0)
    assert it.run(500) == [1, 1]


@pytest.mark.allow_log("no checkpoint")
@pytest.mark.parametrize("fault", [errors.Unusable("disk", "busy"), OSError("full"), KeyError("x")])
def test_failing_server_backs_off_and_does_not_delay_others(host, fault):
    it = host(server(0), server(1))
    it.fails[0] = fault
    assert it.run(3000) == [1] * 5
    it.fails.clear()
    assert 0 in it.run(700)


@pytest.mark.allow_log("no checkpoint")
def test_server_with_a_failed_holder_is_retried_once_at_once(host):
    it = host(server(0))
    it.fails[0] = holder_group.HolderFailed(ids.HostId("h2"), "it is away")
    assert [it.daemon.run_turn() for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]  # the first turn cleans up
    it.now_s += 60.0
    it.fails.clear()
    assert it.daemon.run_turn() and it.took == [0]


def test_partial_captures_continue_and_do_not_delay_others(host):
    it = host(server(0), server(1), server(2))
    it.fails[0] = snapshot_window.PartialCapture(5, 1)
    assert it.run(1195) == [1, 2, 1, 2]
    it.fails.clear()
    assert it.run(5) == [0]


def test_overwriting_server_is_reported_until_its_next_checkpoint(host):
    it = host(server(0))
    it.fails[0] = snapshot_window.PartialCapture(5, 1)
    it.run(60)
    assert it.daemon.failures.failing_servers(None) == []
    it.fails[0] = snapshot_window.Overwritten(5, 1)
    it.run(60)
    [failing] = it.daemon.failures.failing_servers(None)
    assert (failing.instance_id, failing.reason, failing.holder) == (IDS[0], "overwritten", "")
    it.fails.clear()
    it.run(5)
    assert it.daemon.failures.failing_servers(None) == []


@pytest.mark.parametrize("is_partial", [False, True])
def test_slow_holder_is_reported_until_it_keeps_up(host, is_partial):
    it = host(server(0))
    it.slow[0] = "h2"
    if is_partial:
        it.fails[0] = snapshot_window.PartialCapture(5, 1, "h2")
    it.run(5)
    assert it.daemon.failures.failing_servers(None) == [
        messages.Failing(IDS[0], "holder_slow", "h2")
    ]
    assert it.daemon.failures.waits_by_holder() == {"h2": 1} and not it.daemon.failures.by_holder()
    it.slow.clear(), it.fails.clear()
    it.run(700)
    assert it.daemon.failures.failing_servers(None) == []


def test_overdue_time_is_known_before_the_first_checkpoint(host):
    it = host(server(0), server(1), server(2, checkpoint_interval_s="0"))
    it.fails[0] = snapshot_window.PartialCapture(5, 1)
    it.run(1195)
    waits = it.daemon.overdue_s()
    assert waits[IDS[0]] == pytest.approx(1195, abs=20) and waits[IDS[1]] < 20
    assert IDS[2] not in waits
    it.fails.clear()
    it.run(5)
    assert it.daemon.overdue_s()[IDS[0]] == 0


@pytest.mark.expect_log("it is away")
def test_captures_continue_while_libvirt_is_away(host):
    it = host(server(0))
    assert it.run(10) == [0]
    here, it.here = it.here, None
    assert it.run(1200) == [0, 0]  # known servers are still captured
    it.here = here
    assert it.run(600) == [0]


@pytest.mark.parametrize("jump_s", [-86_400 * 3650, -400, 400, 86_400 * 3650])
def test_wall_clock_jump_moves_no_turn_by_more_than_an_interval(host, jump_s):
    it = host(server(0))
    state = disk_states.new_state(IDS[0], 65536)
    state.taken_ms = it.wall_ms
    it.states.save(IDS[0], state)
    it.wall_ms += jump_s * 1000
    it.daemon = it.started()
    took = it.run(1205)
    assert 1 <= len(took) <= 3
    it.wall_ms -= 2 * jump_s * 1000
    assert len(it.run(1200)) == 2


def test_restart_keeps_the_schedule(host):
    it = host(server(0), server(1))
    state = disk_states.new_state(IDS[0], 65536)
    state.taken_ms = it.wall_ms - 100_000
    it.states.save(IDS[0], state)
    it.daemon = it.started()
    assert it.run(400) == [1]
    assert it.run(110) == [0]


def test_requested_server_is_captured_next(host):
    it = host(server(0), server(1), server(2, checkpoint_interval_s="0"))
    it.run(20)
    state = disk_states.new_state(IDS[0], 65536)
    state.number = 7
    it.states.save(IDS[1], state)
    assert it.daemon.request_checkpoint(IDS[1]) == 7
    assert it.run(10) == [1]
    assert it.daemon.request_checkpoint(IDS[0]) == 0


def test_request_returns_the_number_before_a_concurrent_capture(host):
    it = host(server(0))
    it.run(20)
    ask = it.daemon._schedule.prioritize

    def begin_at_once(instance, now_s):
        ask(instance, now_s)
        state = disk_states.new_state(IDS[0], 65536)
        state.number = 1
        it.states.save(instance, state)

    it.daemon._schedule.prioritize = begin_at_once
    assert it.daemon.request_checkpoint(IDS[0]) == 0


def test_request_for_a_server_without_checkpoints_is_refused(host):
    it = host(server(0), server(2, checkpoint_interval_s="0"))
    for number, why in ((2, "no interval"), (3, "not on this host")):
        with pytest.raises(errors.Unusable, match=why):
            it.daemon.request_checkpoint(IDS[number])
    it.here.append(server(1))  # not listed since
    assert it.daemon.request_checkpoint(IDS[1]) == 0
    it.here = None
    with pytest.raises(errors.Unusable, match="it is away"):
        it.daemon.request_checkpoint(IDS[3])


def test_request_during_a_capture_starts_another_one(host):
    it = host(server(0), server(1))
    it.run(20)
    take, asked = it.daemon._taker.take_checkpoint, []

    def ask_meanwhile(each, interval_s):
        done = take(each, interval_s)
        if not asked:
            asked.append(it.daemon.request_checkpoint(each.instance))
        return done

    it.daemon._taker = types.SimpleNamespace(take_checkpoint=ask_meanwhile, clean_up=it.clean_up)
    it.daemon.request_checkpoint(IDS[1])
    assert it.run(30) == [1, 1] and asked == [0]


def test_workers_end_when_stopped(host):
    it = host(server(0))
    it.daemon.stop()
    it.daemon.run()
    assert it.took == []


@pytest.mark.parametrize("words", ["", "-5", "1e3", "9" * 40, "²", "\u0663"])
def test_invalid_interval_is_ignored(words):
    assert checkpoint_intervals.parse(words) is None


def test_server_with_a_new_interval_is_not_overdue(host):
    it = host(server(0, checkpoint_interval_s="0"), server(1))
    it.run(500)
    it.here[0] = server(0, checkpoint_interval_s="600")
    it.now_s += 150  # the other server is due since then
    assert it.run(10) == [1, 0]


@pytest.mark.allow_log("no checkpoint")
def test_disabled_server_gets_one_last_checkpoint_when_due(host):
    it = host(server(0))
    assert it.run(5) == [0] and it.daemon.interval_s(IDS[0]) == 600
    it.here[0], it.fails[0] = server(0, checkpoint_interval_s="0"), OSError("full")
    assert it.run(590) == []
    assert it.run(100) == [] and it.daemon.interval_s(IDS[0]) == 0
    it.fails.clear()
    assert it.run(600) == [0]
    assert it.run(3000) == []


@pytest.mark.expect_log("no checkpoint: h2 keeps no")
def test_fetched_intervals_apply_from_the_first_turn(host):
    it = host(server(0), server(1, checkpoint_interval_s="300"), interval_s=600)
    reported = nova_intervals.Intervals(0, {IDS[1]: 200})
    said = []

    def ask(failing):
        said.append(failing)
        return reported

    it.daemon = worker_pool.WorkerPool(
        it,
        it,
        it.states,
        600,
        manual_clock.FunctionClock(lambda: it.now_s, lambda: it.wall_ms / 1000),
        fetch_intervals=ask,
    )
    assert it.run(395) == [1, 1] and it.daemon.interval_s(IDS[1]) == 200
    it.fails[1] = holder_group.HolderFailed(ids.HostId("h2"), "it is too slow")
    it.run(1300)
    it.fails.clear()
    it.run(1300)
    assert said[0] == said[-1] == []
    assert [messages.Failing(IDS[1], "holder", "h2")] in said


@pytest.mark.expect_log("it is away")
@pytest.mark.expect_log("no checkpoint: h2 keeps no")
def test_failures_are_reported_while_libvirt_is_away(host):
    it, said = host(server(0)), []
    it.daemon = worker_pool.WorkerPool(
        it,
        it,
        it.states,
        600,
        manual_clock.FunctionClock(lambda: it.now_s),
        fetch_intervals=lambda failing: said.append(failing) or nova_intervals.Intervals(),
    )
    it.fails[0] = holder_group.HolderFailed(ids.HostId("h2"), "it is too slow")
    it.run(700)
    it.here = None
    said.clear()
    it.run(1300)
    assert said == [[messages.Failing(IDS[0], "holder", "h2")]] * 2


@pytest.mark.expect_log("did not end: .*1 is broken")
@pytest.mark.allow_log("no checkpoint")
@pytest.mark.parametrize("fault", [OSError("1 is broken"), KeyError("1 is broken")])
def test_failure_of_one_server_is_counted_and_does_not_affect_others(host, monkeypatch, fault):
    it = host(server(0), server(1))
    clear = it.clean_up
    it.fails[0] = fault

    def fail(each):
        clear(each)
        if each.instance == IDS[0]:
            raise fault

    monkeypatch.setattr(it, "clean_up", fail)
    before = supervision.failures().get(worker_pool.FAILURES, 0)
    assert it.run(600) == [1] and it.cleared == [0, 1]
    assert supervision.failures()[worker_pool.FAILURES] - before >= 3


@pytest.mark.expect_log("odd")
@pytest.mark.expect_log("are unknown now")
@pytest.mark.allow_log("by zero")
def test_unlistable_servers_do_not_end_the_loop(host, monkeypatch):
    it = host(server(0))
    monkeypatch.setattr(it, "list_servers", lambda: 1 // 0)
    assert not it.daemon.run_turn() and it.daemon.list_servers() is None
    it.now_s += 10
    monkeypatch.setattr(it, "list_servers", lambda: (_ for _ in ()).throw(OSError("odd")))
    assert not it.daemon.run_turn()


@pytest.mark.allow_log("no checkpoint")
def test_failed_and_partial_servers_share_a_few_workers(host):
    it = host(server(0), server(1), server(2), server(3))
    it.fails, it.slow = {0: OSError("slow"), 1: snapshot_window.PartialCapture(1, 1)}, {3: "h2"}
    it.run(100)
    it.now_s += 700
    seen = []

    def take(each, _interval_s):
        seen.append(IDS.index(each.instance))
        it.daemon.run_turn()  # a second worker while this one is busy
        raise OSError("slow")

    it.daemon._taker = types.SimpleNamespace(take_checkpoint=take, clean_up=it.clean_up)
    it.daemon.run_turn()
    assert len(seen) == worker_pool.RETRY_WORKERS + 1 and 2 in seen


def test_held_or_busy_server_is_not_captured(host):
    it = host(server(0))
    it.run(5)
    it.now_s += 700
    with it.daemon.hold_server(IDS[0]) as is_held, it.daemon.hold_server(IDS[0]) as is_held_twice:
        assert is_held and not is_held_twice
        assert not it.daemon.run_turn()
    assert it.daemon.run_turn()


def test_checkpoint_request_wakes_a_worker(host):
    it = host(server(0))
    it.run(5)
    worker = supervision.start_once("a worker", it.daemon.run)
    time.sleep(0.2)
    it.daemon.request_checkpoint(IDS[0])
    runs.wait_for(lambda: it.took == [0, 0], 5.0, "the checkpoint", str)
    it.daemon.stop()
    worker.join(5.0)
    assert not worker.is_alive()


def test_servers_are_listed_once_for_all_workers(host, monkeypatch):
    it, looked = host(server(0)), []
    present = it.list_servers
    monkeypatch.setattr(it, "list_servers", lambda: looked.append(it.now_s) or present())
    it.run(5)
    began_s = it.now_s
    for _ in range(60):
        it.daemon.run_turn()
        it.now_s += 1
    assert len([at_s for at_s in looked if at_s >= began_s]) == 6


def test_undescribed_server_is_neither_gone_nor_captured(host):
    it = host(server(0))
    state = disk_states.new_state(IDS[0], 65536)
    for number in (0, 1):
        it.states.save(IDS[number], state)
    it.undescribed = {IDS[1], IDS[2]}
    assert it.run(5) == [0] and it.cleared == [0]
    assert it.daemon.list_servers() == set(IDS[:3])
    assert it.daemon.overdue_s().keys() == {IDS[0]}
    assert it.daemon._failing() == [
        messages.Failing(IDS[1], "undescribed")
    ]  # the other server has no state
    with pytest.raises(errors.Unusable, match="libvirt does not describe it"):
        it.daemon.request_checkpoint(IDS[1])
    it.here, it.undescribed = [server(0), server(1)], set()
    it.now_s += 10
    assert it.run(5) == [1] and it.cleared == [0, 1] and it.daemon._failing() == []


@pytest.mark.allow_log("no checkpoint")
def test_failure_of_an_undescribed_server_stays_reported(host):
    it = host(server(0))
    it.fails[0] = OSError("full")
    it.run(5)
    [failing] = it.daemon._failing()
    it.here, it.undescribed = [], {IDS[0]}
    it.now_s += 10
    it.run(5)
    assert failing in it.daemon._failing()
    it.undescribed = set()
    it.now_s += 10
    it.run(5)
    assert it.daemon._failing() == []
