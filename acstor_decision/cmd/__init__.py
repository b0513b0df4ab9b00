# SPDX-License-Identifier: Apache-2.0
"""Entry points of the commands."""

from acstor_common.service import console_script
from acstor_common.service import eventlet_warning

eventlet_warning.silence()

start_decision = console_script.entry_point(
    "acstor-decision", "acstor_decision.cmd.decision", "decision"
)
start_manage = console_script.entry_point(
    "acstor-decision-manage", "acstor_decision.cmd.manage", "decision"
)
start_status = console_script.entry_point("acstor-status", "acstor_decision.cmd.status", "decision")
