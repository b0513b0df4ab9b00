# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common.service import console_script
from acstor_common.service import eventlet_warning

eventlet_warning.silence()

start_checkpointd = console_script.entry_point(
    "acstor-checkpointd", "acstor_checkpoint.cmd.checkpointd", "checkpoint"
)
