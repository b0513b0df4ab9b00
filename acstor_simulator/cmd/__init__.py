# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import script

start_simulate = script.of("acstor-simulate", "acstor_simulator.cmd.simulate", "simulator")
