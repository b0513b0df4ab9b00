# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import script

start_manage = script.of("acstor-nova-manage", "acstor_nova.cmd.manage", "nova")
