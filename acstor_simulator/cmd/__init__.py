# SPDX-License-Identifier: Apache-2.0
"""Entry points of the commands."""

from acstor_common.service import console_script

start_simulate = console_script.entry_point(
    "acstor-simulate", "acstor_simulator.cmd.simulate", "simulator"
)
