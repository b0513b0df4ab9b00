# SPDX-License-Identifier: Apache-2.0
"""How a host does, from its status."""

import copy

import pytest

from acstor_agent.control import health
from acstor_common import decision_api

PICTURE = {
    "images": {
        "a": {"failed_reads": 1, "waiting": None},
        "b": {
            "failed_reads": 2,
            "waiting": {"requests": 2, "longest_s": 6.0, "since_s": 1.0, "why": "refused"},
        },
    },
    "disks": {"d": {"waiting": {"requests": 1, "longest_s": 9.0, "since_s": 1.0, "why": ""}}},
    "nova": {"fallbacks": {"not-mapped": 3, "agent-away": 0}},
    "troubles": {"metrics": {"why": "address in use", "since_s": 12.0}},
}


@pytest.fixture
def picture():
    return copy.deepcopy(PICTURE)


def test_it_is_summed_up(picture):
    now = health.Health(lambda: picture).now()
    assert (now.waiting, now.longest_wait_s, now.waits_for) == (3, 9.0, "refused")
    assert (now.failed_reads, now.fallbacks) == (3, {"not-mapped": 3})
    assert now.troubles == {"metrics": decision_api.HostTrouble("address in use", 12.0)}


def test_nothing_that_it_says_is_too_long_for_the_bus(picture):
    picture["disks"]["d"]["waiting"]["why"] = "x" * 1000
    picture["nova"]["fallbacks"] = {f"reason {n}": 1 for n in range(100)}
    picture["troubles"] = {
        "y" * 300 + str(n): {"why": "z" * 1000, "since_s": -1.0} for n in range(100)
    }
    now = health.Health(lambda: picture).now()
    raw = decision_api.encode(now)
    assert decision_api.decode(raw, decision_api.HostHealth) == now
