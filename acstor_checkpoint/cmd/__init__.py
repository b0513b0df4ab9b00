# SPDX-License-Identifier: Apache-2.0
"""Commands that an operator starts; one module per command."""

from acstor_common.service import console_script
from acstor_common.service import eventlet_warning

eventlet_warning.silence()

start_checkpointd = console_script.entry_point(
    "acstor-checkpointd", "acstor_checkpoint.cmd.checkpointd", "checkpoint"
)
