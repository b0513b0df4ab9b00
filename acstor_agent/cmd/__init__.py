# SPDX-License-Identifier: Apache-2.0
"""Entry points of the commands."""

from acstor_common.service import console_script
from acstor_common.service import eventlet_warning

eventlet_warning.silence()

start_agent = console_script.entry_point("acstor-agent", "acstor_agent.cmd.agent", "agent")
start_authority = console_script.entry_point(
    "acstor-authority", "acstor_agent.cmd.authority", "agent"
)
start_ctl = console_script.entry_point("acstor-agent-ctl", "acstor_agent.cmd.ctl", "agent")
start_holder = console_script.entry_point("acstor-agent-holder", "acstor_agent.cmd.holder", "agent")
