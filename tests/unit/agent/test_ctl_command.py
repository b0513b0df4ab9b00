# SPDX-License-Identifier: Apache-2.0
"""What ``acstor-agent-ctl`` shows to people; what it asks an agent is in tests/functional."""

import pytest

from acstor_agent.cmd import ctl

END_S = 1_800_000_000


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        ({"certificate_not_after_s": None, "enrolment": None}, "no certificate"),
        (
            {
                "certificate_not_after_s": END_S,
                "enrolment": {"error": "", "failures": 0, "clock_off_s": 0.2, "fingerprint": ""},
            },
            f"certificate until {ctl._time(END_S)}",
        ),
        (
            {
                "certificate_not_after_s": None,
                "enrolment": {
                    "error": "Keystone is away",
                    "failures": 3,
                    "clock_off_s": -86400.0,
                    "fingerprint": "ab" * 32,
                },
            },
            f"no certificate; Keystone is away; KEY is {'ab' * 32}; the clock was 86400 s behind",
        ),
    ],
)
def test_status_says_what_the_host_can_prove_and_why_not(identity, shown):
    assert ctl._identity(identity) == shown
