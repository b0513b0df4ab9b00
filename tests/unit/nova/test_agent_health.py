# SPDX-License-Identifier: Apache-2.0
"""Findings of the host check in the agent's status."""

import re

import pytest

from acstor_common.service import version
from acstor_nova.checks import agent_health

NOW_S = 1_800_000_000.0
WELL = {
    "version": version.installed(),
    "identity": {"certificate_not_after_s": NOW_S + 60, "enrolment": None},
    "ring": {"epoch": 7, "hosts": 2},
    "faults": {},
}
ENDED = {"certificate_not_after_s": NOW_S - 60, "enrolment": {"error": "Keystone is away"}}
REFUSED = {"message bus": {"why": "controller as acstor: ACCESS_REFUSED", "since_s": 1.0}}


def found(**changed):
    said = agent_health.check_health({**WELL, **changed}, lambda: NOW_S)
    return {one.what: one for one in said}


def test_healthy_agent_has_only_ok_findings():
    assert {one.level for one in found().values()} == {"ok"}


@pytest.mark.parametrize(
    ("changed", "what", "level", "words"),
    [
        ({"version": "99"}, "version", "warning", "the agent runs 99"),
        ({"identity": ENDED}, "certificate", "error", "2027-01-15 07:59 UTC; .* Keystone is away"),
        ({"ring": {"epoch": 0, "hosts": 0}}, "v-node table", "warning", "exchanges no chunks"),
        ({"faults": REFUSED}, "agent: message bus", "warning", "ACCESS_REFUSED"),
    ],
)
def test_agent_problem_is_named_with_a_remedy(changed, what, level, words):
    one = found(**changed)[what]
    assert one.level == level and one.remedy
    assert re.search(words, one.detail)
