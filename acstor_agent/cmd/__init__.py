# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import eventlet_warning
from acstor_common import script

eventlet_warning.silence()

start_agent = script.of("acstor-agent", "acstor_agent.cmd.agent", "agent")
start_authority = script.of("acstor-authority", "acstor_agent.cmd.authority", "agent")
start_ctl = script.of("acstor-agent-ctl", "acstor_agent.cmd.ctl", "agent")
start_holder = script.of("acstor-agent-holder", "acstor_agent.cmd.holder", "agent")
