# SPDX-License-Identifier: Apache-2.0
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.cloud import interface_traffic
from acstor_agent.core.images import fill_rate

LINK_BYTES_S = 12_500_000


class Link:
    """A network interface whose counter the test controls."""

    def __init__(self):
        self.at_s, self.received = 0.0, 0

    def look(self, received=0, after_s=1.0):
        self.at_s += after_s
        self.received += int(received)
        eth0 = interface_traffic.NetworkInterface(2, "eth0", "", 0, 0, self.received, 0)
        return interface_traffic.InterfaceSample(self.at_s, [eth0], LINK_BYTES_S)


def test_fill_takes_its_share_of_an_idle_link():
    spare, link = fill_rate.SpareBandwidth(), Link()
    assert spare.spare_bytes_s(link.look()) == fill_rate.SHARE * LINK_BYTES_S
    own = 11_000_000
    spare.count_bytes(own)
    assert spare.spare_bytes_s(link.look(own * interface_traffic.HEADER_FACTOR)) == pytest.approx(
        0.9 * LINK_BYTES_S
    )


def test_fill_yields_to_other_traffic_at_once_and_recovers_slowly():
    spare, link = fill_rate.SpareBandwidth(), Link()
    spare.spare_bytes_s(link.look())
    busy = spare.spare_bytes_s(link.look(10_000_000))
    assert busy == pytest.approx(0.9 * 2_500_000)
    calmer = [spare.spare_bytes_s(link.look()) for _ in range(3)]
    assert calmer == [pytest.approx(0.9 * rate) for rate in (7_500_000, 10_000_000, 11_250_000)]


def test_fill_continues_at_the_least_rate_on_a_full_link():
    spare, link = fill_rate.SpareBandwidth(), Link()
    spare.spare_bytes_s(link.look())
    assert spare.spare_bytes_s(link.look(LINK_BYTES_S)) == fill_rate.LEAST_BYTES_S


def test_traffic_during_a_pause_does_not_count():
    spare, link = fill_rate.SpareBandwidth(), Link()
    spare.spare_bytes_s(link.look())
    spare.reset()
    assert spare.spare_bytes_s(link.look(LINK_BYTES_S * 3600)) == fill_rate.SHARE * LINK_BYTES_S


def test_recreated_interface_counts_as_no_traffic():
    spare, link = fill_rate.SpareBandwidth(), Link()
    link.received = 10**12
    spare.spare_bytes_s(link.look())
    link.received = 0
    assert spare.spare_bytes_s(link.look()) == fill_rate.SHARE * LINK_BYTES_S


@pytest.mark.parametrize("bytes_s", [1e5, 1e7])
def test_pacer_keeps_its_rate(bytes_s):
    pacer = fill_rate.Pacer()
    pacer.bytes_s, now_s, taken = bytes_s, 100.0, 0
    while now_s < 200.0:
        if wait_s := pacer.wait_s(65536, now_s):
            now_s += wait_s
        else:
            taken += 65536
    most = bytes_s * (100.0 + fill_rate.AHEAD_S) + 2 * 65536
    assert bytes_s * 99.0 <= taken <= most


def test_pacer_accumulates_no_credit_while_idle():
    pacer = fill_rate.Pacer()
    pacer.bytes_s = 65536.0
    assert pacer.wait_s(65536, 0.0) == 0.0
    waits = [pacer.wait_s(65536, 1000.0) for _ in range(3)]
    assert waits == [0.0, 0.75, 0.75]


def test_pacer_keeps_its_rate_when_most_callers_are_refused():
    pacer = fill_rate.Pacer()
    pacer.bytes_s, taken = 65536.0, 0
    for tenth in range(1000):  # 100 s
        taken += sum(pacer.wait_s(65536, tenth / 10) == 0.0 for _ in range(8))
    assert 98 <= taken <= 101
    pacer.bytes_s = 65536000.0
    assert sum(pacer.wait_s(65536, 102.0) == 0.0 for _ in range(100)) == 100


def test_pacer_debt_of_a_slow_rate_does_not_delay_a_faster_rate():
    pacer = fill_rate.Pacer()
    pacer.bytes_s = 1.0
    assert pacer.wait_s(65536, 100.0) == 0.0
    assert pacer.wait_s(65536, 101.0) > 65000
    pacer.bytes_s = 65536.0
    assert pacer.wait_s(65536, 101.0) == 0.0
    assert 0 < pacer.wait_s(65536, 101.0) <= 1.0


def test_speed_follows_arrivals_and_estimates_the_time_left():
    speed = fill_rate.Speed()
    assert speed.left_s(100) is None
    for second in range(60):
        speed.refresh(float(second))
        speed.count_bytes(1000)
    assert speed.bytes_s == pytest.approx(1000)
    assert speed.left_s(60_000) == pytest.approx(60)
    for second in range(60, 200):
        speed.refresh(float(second))
    assert speed.left_s(60_000) is None or speed.left_s(60_000) > 1e6


def test_recent_speed_follows_a_rise_at_once_and_a_fall_slowly():
    speed = fill_rate.Speed()
    for second, count in enumerate((0, 1000, 1000, 4000, 0)):
        speed.count_bytes(count)
        speed.refresh(float(second))
    assert speed.recent_bytes_s == pytest.approx(fill_rate.RECENT_DECAY * 4000)
    assert speed.bytes_s < 1500


def test_pause_does_not_count_as_transfer_time():
    speed = fill_rate.Speed()
    for second in range(30):
        speed.refresh(float(second))
        speed.count_bytes(1000)
    speed.refresh(3600.0)
    assert speed.bytes_s == pytest.approx(1000)
    speed.count_bytes(1000)
    speed.refresh(3601.0)
    assert speed.bytes_s == pytest.approx(1000)


def test_speed_is_unaffected_by_two_refreshes_at_one_time():
    speed = fill_rate.Speed()
    speed.refresh(1.0)
    speed.count_bytes(500)
    speed.refresh(1.0)
    speed.refresh(2.0)
    assert speed.bytes_s == 500


def test_backoff_grows_to_a_maximum_and_resets_on_success():
    backoff, now_s, pauses = fill_rate.Backoff(), 0.0, []
    for _ in range(10):
        backoff.record_failure("why", now_s)
        assert not backoff.may_try(now_s)
        pauses.append(backoff.failure.again_s - now_s)
        now_s = backoff.failure.again_s
        assert backoff.may_try(now_s)
    assert pauses[:3] == [5.0, 10.0, 20.0] and max(pauses) == fill_rate.LONGEST_PAUSE_S
    backoff.record_success()
    assert backoff.failure is None and backoff.may_try(-math.inf)


@hypothesis.given(by_s=st.floats(-1e12, 1e12), within_s=st.floats(0, 1e8), now_s=st.floats(0, 1e12))
def test_time_left_is_bounded_whatever_the_wall_clock_says(by_s, within_s, now_s):
    assert 0 <= fill_rate.time_left_s(by_s, within_s, now_s) <= within_s


@hypothesis.given(
    left_bytes=st.integers(1, 10**12),
    within_s=st.floats(1, 1e5),
    stalls=st.lists(st.booleans(), max_size=100),
)
def test_needed_rate_completes_an_image_in_time(left_bytes, within_s, stalls):
    deadline = fill_rate.Deadline(at_s=within_s, within_s=within_s)
    reserve_s = min(fill_rate.RESERVE_SHARE * within_s, fill_rate.RESERVE_S)
    at_first = deadline.needed_bytes_s(left_bytes, 0.0)
    is_stalling = any(stalls)
    now_s, left, tick_s = 0.0, float(left_bytes), within_s / 200
    while left >= 1 and now_s < within_s:
        rate = deadline.needed_bytes_s(math.ceil(left), now_s)
        if not is_stalling:  # an even rate except for the last bytes
            assert not deadline.is_pressing(now_s)
            more = 1 / (deadline.left_s(now_s) - reserve_s)  # rounding to whole bytes
            assert rate <= at_first * 1.001 + more
        if not (stalls and stalls.pop()):
            left = max(0.0, left - rate * tick_s)
        now_s += tick_s
    assert left < 1
    assert now_s <= within_s - reserve_s + 2 * tick_s


@pytest.mark.parametrize(
    ("now_s", "takes_s", "is_late"),
    [
        (0.0, None, False),
        (0.0, 99.0, False),
        (0.0, 101.0, True),
        (99.9, None, False),
        (100.0, None, True),
        (1e9, 0.0, True),
    ],
)
def test_deadline_is_late_if_past_or_unreachable(now_s, takes_s, is_late):
    assert fill_rate.Deadline(100.0, 50.0).is_late(takes_s, now_s) is is_late


@pytest.mark.parametrize(("within_s", "reserve_s"), [(10.0, 1.0), (3600.0, 60.0)])
def test_rate_is_unlimited_once_only_the_time_reserve_is_left(within_s, reserve_s):
    deadline = fill_rate.Deadline(within_s, within_s)
    assert not deadline.is_pressing(within_s - reserve_s - 0.1)
    assert deadline.is_pressing(within_s - reserve_s)
    assert deadline.needed_bytes_s(1, within_s - reserve_s) == math.inf
    assert deadline.needed_bytes_s(0, 0.0) == 0.0


def test_retry_delay_is_at_most_a_tenth_of_the_time_to_the_deadline():
    backoff, deadline, now_s = fill_rate.Backoff(), fill_rate.Deadline(1000.0, 1000.0), 0.0
    while now_s < 1000.0:
        backoff.record_failure("why", now_s, deadline)
        pause_s = backoff.failure.again_s - now_s
        assert pause_s <= max(fill_rate.FIRST_PAUSE_S, 0.1 * (1000.0 - now_s)) + 1e-6
        now_s += pause_s
    for _ in range(10):
        backoff.record_failure("why", now_s, deadline)
    assert backoff.failure.again_s - now_s == fill_rate.LONGEST_PAUSE_S


@hypothesis.given(
    images=st.lists(st.tuples(st.floats(100, 2e3), st.integers(1, 10**12)), min_size=1, max_size=5)
)
def test_images_filled_one_after_another_all_meet_their_deadlines(images):
    due = sorted(fill_rate.Deadline(within_s, within_s) for within_s, _ in images)
    left = [float(count) for _, count in images]
    tick_s, now_s, at = due[0].at_s / 50, 0.0, 0
    for deadline in due:
        reserve_s = min(fill_rate.RESERVE_SHARE * deadline.within_s, fill_rate.RESERVE_S)
        while left[at] >= 1 and now_s < deadline.at_s:
            rest = [math.ceil(count) for count in left[at:]]
            rate = fill_rate.needed_bytes_s(zip(due[at:], rest, strict=True), now_s)
            step_s = min(tick_s, left[at] / rate)
            left[at] = max(0.0, left[at] - rate * step_s)
            now_s += step_s
            if rate == math.inf:
                break
        assert left[at] < 1 and now_s <= deadline.at_s - reserve_s + 2 * tick_s
        at += 1


def test_later_deadline_raises_the_rate_of_the_first_image():
    first, second = fill_rate.Deadline(1000.0, 1000.0), fill_rate.Deadline(1001.0, 1001.0)
    both = fill_rate.needed_bytes_s([(second, 900), (first, 900)], 0.0)
    assert both == pytest.approx(1800 / 941)
    assert fill_rate.needed_bytes_s([(first, 900), (second, 0)], 0.0) == pytest.approx(900 / 940)
    assert fill_rate.needed_bytes_s([], 0.0) == 0


def test_link_share_is_that_of_the_latest_chunks():
    link = fill_rate.LinkShare()
    link.refresh()
    assert link.share == 1.0
    assert (link.count_chunk(1000, 0.25), link.count_chunk(3000, 1.0)) == (250.0, 3000.0)
    assert link.share == 1.0
    link.refresh()
    assert link.share == 3250 / 4000
    link.refresh()  # nothing arrived
    assert link.share == 3250 / 4000


def test_long_use_above_a_share_of_a_processor_delays_for_a_bounded_time():
    processor = fill_rate.ProcessorShare(0.5)
    processor.wait_s(0.0, 0.0)
    assert processor.wait_s(1800.0, 1800.0) == fill_rate.PROCESSOR_OVER_S / 0.5
    assert processor.wait_s(1800.0, 1802.0) == 0.0
