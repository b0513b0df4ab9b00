# SPDX-License-Identifier: Apache-2.0
"""Disks recovered from checkpoints, which must not be read or moved by their tables alone."""

import os

from oslo_concurrency import processutils

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.disks import recovery_marker
from acstor_nova import host_context
from acstor_nova import mirror_link
from acstor_nova.snapshots import delta_stream

DISK = "disk"
REBASE_S = 60


def rebase_disk(host: host_context.HostContext, path: str) -> None:
    """Restore the checkpoint as base of a disk whose copy was interrupted."""
    try:
        checkpoint_id = recovery_marker.read(path)
        if checkpoint_id is None or mirror_link.checkpoint_of(local_file.backing_of(path) or ""):
            return
        _check_header(host, path)
        shown = mirror_link.checkpoint_path(host.nova.conf.acstor.mount_point, checkpoint_id)
        rebase = ("qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", shown, path)
        processutils.execute(*rebase, timeout=REBASE_S)
    except (
        processutils.ProcessExecutionError,
        errors.AcstorError,
        OSError,
        ValueError,
    ) as e:
        why = f"{path} may lack data of its checkpoint, and cannot be rebased to it: {e}"
        raise host.nova.cannot_start(why) from e


def _check_header(host: host_context.HostContext, path: str) -> None:
    """Raise Unusable if a disk is not Nova's on an image: qemu-img follows its header."""
    with open(path, "rb") as file:
        delta_stream.open_disk(file)
    base = local_file.backing_of(path) or ""
    if os.path.dirname(base) != os.path.dirname(host.base_path("")):
        raise errors.Unusable(
            path, f"it is based on {base!r}, which is not an image in Nova's cache"
        )


def why_unmovable(host: host_context.HostContext, instance_id: str) -> str:
    """Return why a server cannot move: its disk may need this host; empty if it can."""
    path = os.path.join(host.nova.conf.instances_path, instance_id, DISK)
    try:
        checkpoint_id = recovery_marker.read(path)
    except (OSError, ValueError) as e:
        return f"it is unknown whether {path} lacks data of a checkpoint: {e}"
    return move_refusal_text(checkpoint_id) if checkpoint_id else ""


def move_refusal_text(checkpoint_id: str) -> str:
    """Return the text for a refused migration."""
    return (
        f"its disk depends on checkpoint {checkpoint_id}, which is on the host that recovered "
        "it. acstor-checkpointd copies that into the disk there, which takes some minutes for "
        "each 10 GiB once acstor-agent-ctl shows the checkpoint as complete. Move the server then"
    )
