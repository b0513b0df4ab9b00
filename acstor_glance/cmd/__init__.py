# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import eventlet_warning
from acstor_common import script

eventlet_warning.silence()

start_boot_image = script.of("acstor-boot-image", "acstor_glance.cmd.boot_image", "glance")
start_listener = script.of("acstor-glance-listener", "acstor_glance.cmd.listener", "glance")
start_manage = script.of("acstor-glance-manage", "acstor_glance.cmd.manage", "glance")
start_prehash = script.of("acstor-prehash", "acstor_glance.cmd.prehash", "glance")
