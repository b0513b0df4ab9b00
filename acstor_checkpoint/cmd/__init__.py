# SPDX-License-Identifier: Apache-2.0
"""The commands that an operator starts; one module a command."""

from acstor_common import eventlet_warning
from acstor_common import script

eventlet_warning.silence()

start_checkpointd = script.of(
    "acstor-checkpointd", "acstor_checkpoint.cmd.checkpointd", "checkpoint"
)
