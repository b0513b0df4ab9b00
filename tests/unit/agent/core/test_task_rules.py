# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core import task_rules
from acstor_common import decision_api
from acstor_common import ids

NOW_S = 1_800_000_000.0
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


def given(*hosts, request=1, given_s=NOW_S):
    task = decision_api.ImageTask(
        request=request, kind=decision_api.TaskKind.PRE_SEED, image_id=IMAGE
    )
    return decision_api.TaskForHosts(task=task, hosts=hosts, given_s=given_s)


@pytest.fixture
def seen():
    return task_rules.SeenTasks(ids.HostId("h1"))


@pytest.mark.parametrize("hosts", [(), ("h1",), ("h0", "h1")])
def test_a_task_for_this_host_or_for_all_is_done_once(seen, hosts):
    assert seen.why_not(given(*hosts), NOW_S) == ""
    assert "taken before" in seen.why_not(given(*hosts), NOW_S + task_rules.AGE_S)


def test_a_task_for_others_is_not_done(seen):
    assert "other hosts" in seen.why_not(given("h2", "h11"), NOW_S)


@pytest.mark.parametrize(
    ("age_s", "why"),
    [
        (0.0, ""),
        (task_rules.AGE_S, ""),
        (task_rules.AGE_S + 1, "ago"),
        (86_400.0, "ago"),
        (-task_rules.FUTURE_S, ""),
        (-task_rules.FUTURE_S - 1, "one of the two clocks is wrong"),
    ],
)
def test_a_task_of_another_time_is_not_done(seen, age_s, why):
    found = seen.why_not(given(), NOW_S + age_s)
    assert why in found
    assert bool(found) == bool(why)


def test_a_task_that_is_given_again_is_another_one(seen):
    assert seen.why_not(given(), NOW_S) == ""
    assert seen.why_not(given(given_s=NOW_S + 60), NOW_S + 60) == ""


def test_a_task_is_remembered_until_it_is_old_and_no_longer(seen, monkeypatch):
    monkeypatch.setattr(task_rules, "MAX_REMEMBERED", 3)
    for number in range(3):
        assert seen.why_not(given(request=number), NOW_S) == ""
    assert "3 others" in seen.why_not(given(request=3), NOW_S)
    later_s = NOW_S + task_rules.AGE_S + 1
    assert seen.why_not(given(request=4, given_s=later_s), later_s) == ""
    assert "ago" in seen.why_not(given(request=0), later_s)
