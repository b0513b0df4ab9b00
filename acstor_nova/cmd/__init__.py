# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common.service import console_script

start_manage = console_script.entry_point("acstor-nova-manage", "acstor_nova.cmd.manage", "nova")
