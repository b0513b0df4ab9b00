# SPDX-License-Identifier: Apache-2.0
"""The health summary of a host."""

import types

import pytest

from acstor_agent.control import host_report
from acstor_agent.core import health_issues
from acstor_agent.core.mount import blocked_requests
from acstor_common.wire import decision_messages


class Host:
    def __init__(self):
        self.late = [
            blocked_requests.LateWaits(2, 6.0, "refused"),
            blocked_requests.LateWaits(1, 9.0, ""),
        ]
        self.failed = 3
        self.fallbacks = {"not-mapped": 3, "agent-away": 0}
        self.issues = types.SimpleNamespace(
            now={"metrics": health_issues.HealthIssue("address in use", 12.0)}
        )
        self.guests = ["s1"]
        self.health = host_report.HealthSummary(self, self, self, self.fallbacks, self, self)

    def failed_reads(self):
        return self.failed

    def list_statuses(self):
        return []

    def list_late_requests(self):
        return dict(enumerate(self.late))


@pytest.fixture
def host():
    return Host()


def test_health_summary_lists_waits_failures_and_faults(host):
    now = host.health.current_health()
    assert (now.waiting, now.longest_wait_s, now.waits_for) == (3, 9.0, "refused")
    assert (now.failed_reads, now.fallbacks) == (3, {"not-mapped": 3})
    assert now.on_dead_mounts == ("s1",)
    assert now.faults == {"metrics": decision_messages.HostFault("address in use", 12.0)}


def test_healthy_host_reports_only_its_version(host):
    host.late, host.failed, host.issues.now = [], 0, {}
    host.fallbacks.clear()
    host.guests = []
    assert host.health.current_health() == decision_messages.HostHealth(
        version=host.health.current_health().version
    )


def test_oversized_health_summary_can_be_encoded_and_decoded(host):
    host.late = [blocked_requests.LateWaits(1, 9.0, "x" * 1000)]
    host.guests = [f"{n:03}" + "q" * 1000 for n in range(300)]
    host.fallbacks.update({f"reason {n}": 1 for n in range(100)})
    host.issues.now = {
        "y" * 300 + str(n): health_issues.HealthIssue("z" * 1000, -1.0) for n in range(100)
    }
    now = host.health.current_health()
    raw = decision_messages.encode(now)
    assert decision_messages.decode(raw, decision_messages.HostHealth) == now
