# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common.service import console_script

start_simulate = console_script.entry_point(
    "acstor-simulate", "acstor_simulator.cmd.simulate", "simulator"
)
