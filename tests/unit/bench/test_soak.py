# SPDX-License-Identifier: Apache-2.0
"""A soak test detects growth, chooses possible actions, and draws its samples."""

import json
import os
import random
import time

import pytest

from acstor_common import errors
from evaluation.soak import churn
from evaluation.soak import plan
from evaluation.soak import report
from evaluation.soak import samples
from evaluation.soak import trend

HOUR_S = 3600.0
WORKER = ("acstor-agent-compute1 worker", "memory_mib")


def series(values):
    return [trend.Point(60.0 * number, value) for number, value in enumerate(values)]


def test_level_after_the_warm_up_is_compared_with_the_last_one():
    warm_up = [50.0 + number for number in range(90)]
    assert trend.growing({WORKER: series([*warm_up, *[140.0] * 270])}) == []


def test_steady_growth_is_reported_with_its_rate():
    [line] = trend.growing({WORKER: series([100.0 + number / 2 for number in range(360)])})
    assert "memory_mib grew from 167" in line and "(+30 per hour)" in line


@pytest.mark.parametrize("resource", trend.ALLOWED_GROWTH)
def test_one_outlier_is_no_growth(resource):
    values = [100.0] * 100
    values[95] = 10_000.0
    assert trend.growing({("any", resource): series(values)}) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_action_is_chosen_and_only_when_possible(seed):
    rng, seen = random.Random(seed), set()
    for servers in (0, 1, plan.MAX_SERVERS):
        for images in (plan.MIN_IMAGES, plan.MAX_IMAGES):
            there = plan.Population(servers, images)
            names = {plan.next_action(rng, there) for _ in range(400)}
            assert servers or not names & plan.NEED_SERVER
            assert images < plan.MAX_IMAGES or "upload" not in names
            assert images > plan.MIN_IMAGES or "delete-image" not in names
            seen |= names
    assert seen == set(plan.WEIGHTS)


def test_own_process_is_sampled_and_a_dead_one_is_left_out():
    pids = {"this": os.getpid(), "dead": 1 << 22}
    began_s = time.monotonic()
    with samples.Sampler(lambda: pids, began_s, 0.01) as sampler:
        while len(sampler.series().get(("this", "threads"), ())) < 3:
            assert time.monotonic() < began_s + 30
            time.sleep(0.01)
    found = sampler.series()
    assert {name for name, _ in found} == {"this"}
    assert {resource for _, resource in found} == set(trend.ALLOWED_GROWTH)
    assert found["this", "memory_mib"][-1].value > 5


def test_report_has_series_and_picture_and_judges_only_long_series(tmp_path):
    short = [trend.Point(HOUR_S + number, 1e6 * number) for number in range(60)]
    latency = ("4 KiB read, median", report.LATENCY)
    seen = {
        WORKER: series([100.0] * 360),
        (f"{WORKER[0]} #2", "memory_mib"): short,
        latency: series([0.001] * 40),
    }
    assert set(report.judged(seen, 6 * HOUR_S)) == {WORKER}
    assert "acstor-agent-compute1 worker" in report.table(seen, 6 * HOUR_S)
    report.write(tmp_path, seen, {"build": 3}, ["a finding"])
    reported = json.loads((tmp_path / "soak.json").read_text())
    assert (reported["actions"], reported["findings"]) == ({"build": 3}, ["a finding"])
    assert len(reported["series"]) == len(seen) and (tmp_path / "soak.png").stat().st_size > 10_000


class Soak:
    """A soak's cloud without hosts."""

    kept_agents = ()


def test_action_that_fails_in_any_way_is_a_finding_with_the_end_of_its_error():
    actions = churn.Churn(Soak(), None, random.Random(1), lambda name, seconds: None)

    def fail():
        next(iter(()))

    def fail_with_a_log():
        raise errors.Unusable("an agent", "it has ended: " + "lines " * 1000 + "the cause")

    for name, action in (("live-migrate", fail), ("reboot-host", fail_with_a_log)):
        actions._attempt(name, action)
    first, second = actions.findings
    assert first == "live-migrate: StopIteration: "
    assert second.startswith("reboot-host: Unusable: an agent: it has ended") and len(second) < 4000
    assert second.endswith("the cause")
