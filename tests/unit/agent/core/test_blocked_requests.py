# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import blocked_requests

GUESTS = [requests.Stream(requests.Klass.GUEST, name) for name in ("a/8", "a/9", "b/8")]
STEP = strategies.tuples(
    strategies.floats(0, 3, allow_nan=False),
    strategies.sampled_from([*GUESTS, None]),
    strategies.integers(0, 20),
)


@given(strategies.lists(STEP, max_size=60), strategies.floats(0, 10, allow_nan=False))
def test_late_guests_are_those_with_requests_older_than_the_limit(steps, for_s):
    table, truth, now_s = blocked_requests.BlockedRequests(), [], 0.0
    for after_s, guest, number in steps:
        now_s += after_s
        if guest is not None:
            truth.append(table.begin_request(guest, now_s, number))
        elif truth:
            table.end_request(truth.pop(number % len(truth)))
    late = table.late_guests(now_s, for_s)
    for guest in GUESTS:
        own = [now_s - one.since_s for one in truth if one.guest == guest]
        own_late = [waited_s for waited_s in own if waited_s >= for_s]
        assert (late[guest].count if guest in late else 0) == len(own_late)
        if own_late:
            assert late[guest].longest_s == max(own_late)
        assert len(table.requests_of_guest(guest)) == len(own)


def test_late_report_gives_the_reason_of_the_oldest_request():
    table = blocked_requests.BlockedRequests()
    for since_s, why in ((1.0, "refused"), (2.0, "no answer")):
        table.begin_request(GUESTS[0], since_s, since_s).why = why
    assert table.late_guests(9.0, 5.0)[GUESTS[0]] == blocked_requests.LateWaits(2, 8.0, "refused")


def test_request_may_be_ended_twice():
    table = blocked_requests.BlockedRequests()
    wait = table.begin_request(GUESTS[0], 1.0, "a")
    table.end_request(wait)
    table.end_request(wait)
    assert len(table) == 0 and table.late_guests(99.0, 0.0) == {}
