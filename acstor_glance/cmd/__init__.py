# SPDX-License-Identifier: Apache-2.0
"""The commands, one module each."""

from acstor_common.service import console_script
from acstor_common.service import eventlet_warning

eventlet_warning.silence()

start_boot_image = console_script.entry_point(
    "acstor-boot-image", "acstor_glance.cmd.boot_image", "glance"
)
start_listener = console_script.entry_point(
    "acstor-glance-listener", "acstor_glance.cmd.listener", "glance"
)
start_manage = console_script.entry_point(
    "acstor-glance-manage", "acstor_glance.cmd.manage", "glance"
)
start_prehash = console_script.entry_point("acstor-prehash", "acstor_glance.cmd.prehash", "glance")
