# SPDX-License-Identifier: Apache-2.0
"""Runs a command of acstor as a process, with changed constants.

    python -P tests/lab/tuned.py MODULE '{"acstor_glance.prepare.plan.RETRY_FIRST_S": 1}'
    ARGUMENT...

A value that no operator sets is a constant, not an option; tests change it here.  The product
has no support for this, so a constant can be changed only if the product reads it from its module
at each use.
"""

import gc
import importlib
import json
import pathlib
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

ANNOUNCED_CHUNKS = "acstor_agent.engine.gossip.announcements.ANNOUNCED_CHUNKS"
BACKGROUND_LIMIT = "acstor_agent.engine_io.exchange.MAX_PREFETCHES"
BOOT_ID_FILE = "acstor_agent.disks.disks.BOOT_ID_FILE"
BOOT_IDLE_S = "acstor_agent.core.boot.boot_memory.IDLE_S"
BOOT_LONGEST_S = "acstor_agent.core.boot.boot_memory.LONGEST_S"
BUILD_LONGEST_S = "acstor_glance.boot.boot_image_maker.LONGEST_S"
CHECKPOINT_FAILURES_S = "acstor_decision.checkpoint_registry.NOTE_EVERY_S"
CHECKPOINT_INTERVALS_AGAIN_S = "acstor_checkpoint.schedule.nova_intervals.RETRY_S"
COLLECTION_S = "acstor_common.wire.decision_messages.COLLECTION_S"
COPIES_LIMIT = "acstor_agent.settings.COPIES_LIMIT"
ENROLMENT_RETRY_S = "acstor_agent.core.cloud.certificate_renewal.RETRY_LONGEST_S"
FLATTEN_JOBS = "acstor_glance.gateway.flatten.job_slots.JOBS"
FORMER_TABLE_LIFETIME_S = "acstor_agent.cloud.ring_store.FORMER_TABLE_LIFETIME_S"
GATEWAY_READS = "acstor_glance.gateway.read_admission.READS"
GATEWAY_TIMEOUT_S = "acstor_glance.gateway.read_admission.TIMEOUT_S"
HANDSHAKES = "acstor_common.identity.handshake_rate_limit.OF_UNAUTHENTICATED"
HANDSHAKES_OF_ADDRESS = "acstor_common.identity.handshake_rate_limit.OF_ADDRESS"
LOOKUPS_OF_ALL = "acstor_agent.engine.gossip.announcements.LOOKUPS_OF_ALL"
LOOKUPS_OF_PEER = "acstor_agent.engine.gossip.announcements.LOOKUPS_OF_PEER"
METRICS_KEPT_S = "acstor_common.service.metrics_endpoint.KEPT_S"
NOTIFICATION_POOL = "acstor_glance.controller.notifications.POOL"
OVERLOAD_SHARE = "acstor_decision.core.membership.members.OVERLOAD_SHARE"
PAGE_IMAGES = "acstor_glance.client.glance_client.PAGE_IMAGES"
PEER_SILENCE_S = "acstor_agent.settings.PEER_SILENCE_S"
PEER_VERSION = "acstor_common.wire.peer.peer_wire.MAJOR_VERSION"
READ_AHEAD_LIMIT_BYTES = "acstor_agent.settings.READ_AHEAD_LIMIT_BYTES"
RECONCILE_INTERVAL_S = "acstor_glance.controller.listener_service.RECONCILE_INTERVAL_S"
RECONCILE_RETRY_S = "acstor_glance.controller.listener_service.RETRY_S"
RECORD_IDLE_S = "acstor_agent.images.boot.boot_recording.IDLE_S"
RECORD_LONGEST_S = "acstor_agent.images.boot.boot_recording.LONGEST_S"
RETRY_FIRST_S = "acstor_glance.prepare.plan.RETRY_FIRST_S"
SCRATCH_DIR = "acstor_checkpoint.capture_service.SCRATCH_DIR"
SERVICE_CHUNK_BYTES = "acstor_glance.prepare.service_hashing.CHUNK_BYTES"
SOURCE_TIMEOUT_S = "acstor_agent.core.sources.attempt_timeout.BASE_S"
SWITCHES = "acstor_decision.switch_loads.static.PATH"
TRACES_NEEDED = "acstor_glance.boot.boot_image_maker.TRACES_NEEDED"

VARIABLE = "ACSTOR_LAB_CONSTANTS"
"""Environment variable of a WSGI server's program: constants as JSON."""
Constants = Mapping[str, float | str | Sequence[float]]
"""Values by the constants' full names; a named tuple's fields as a sequence."""


def argv(module: str, constants: Constants) -> Sequence[str | pathlib.Path]:
    """Return the command line of a module with ``constants``; its arguments follow."""
    return [sys.executable, "-P", pathlib.Path(__file__), module, json.dumps(dict(constants))]


def change(constants: Constants) -> None:
    """Change constants in this process.

    :raises AttributeError: there is no such constant
    """
    for name, value in constants.items():
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(module_name)
        of_type = type(getattr(module, constant))
        fields = getattr(of_type, "_make", of_type)  # a named tuple's, or a plain type
        setattr(module, constant, fields(value))


def main() -> Any:
    """Run the command; return its exit status."""
    module, constants, *arguments = sys.argv[1:]
    gc.disable()  # as acstor_common.service.console_script does
    change(json.loads(constants))
    command = importlib.import_module(module)
    gc.freeze()
    gc.enable()
    sys.argv = [module, *arguments]
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
