# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import eventlet_warning
from acstor_common import script

eventlet_warning.silence()

start_decision = script.of("acstor-decision", "acstor_decision.cmd.decision", "decision")
start_manage = script.of("acstor-decision-manage", "acstor_decision.cmd.manage", "decision")
start_status = script.of("acstor-status", "acstor_decision.cmd.status", "decision")
