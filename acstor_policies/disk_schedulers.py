# SPDX-License-Identifier: Apache-2.0
"""All disk schedulers: the agent's, and those of Linux that Ling 2015 compares with."""

from collections.abc import Mapping

from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import scheduler
from acstor_policies import anticipatory
from acstor_policies import cfq
from acstor_policies import deadline

SCHEDULERS: Mapping[str, type[policy.SchedulingPolicy]] = {
    **scheduler.POLICIES,
    "deadline": deadline.Deadline,
    "anticipatory": anticipatory.Anticipatory,
    "cfq": cfq.Cfq,
}
