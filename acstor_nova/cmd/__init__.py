# SPDX-License-Identifier: Apache-2.0
"""The commands, one module each."""

from acstor_common.service import console_script

start_manage = console_script.entry_point("acstor-nova-manage", "acstor_nova.cmd.manage", "nova")
