# SPDX-License-Identifier: Apache-2.0
"""Requests of guests on a host: admission, disks, and the watch for blocked requests."""

import pathlib
from typing import Any

from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.control import status
from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import checkpoint_restore
from acstor_agent.disks import disks
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import reattach
from acstor_agent.images.read import read_admission
from acstor_agent.mount import dead_mounts
from acstor_agent.mount import stuck_requests
from acstor_agent.runtime import disk_io


class GuestIo:
    """Admits requests of guests, keeps their disks, and watches requests that block."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        io: disk_io.DiskIo,
        images: mirrors.Mirrors,
        cloud: membership.Membership,
    ) -> None:
        own = conf.acstor_agent
        deadline_s = settings.read_deadline_s(own)
        self.read_admission = read_admission.ReadAdmission(deadline_s=deadline_s)
        self.reattach = reattach.Reattach(images, self.read_admission, deadline_s, own.lost_after_s)
        self.stuck_requests = stuck_requests.StuckRequests(
            self.read_admission.table, images.inode_numbers
        )
        self.dead_mounts = dead_mounts.DeadMounts(conf.acstor.mount_point)
        self.disks = disks.Disks(
            pathlib.Path(own.state_dir) / "disks",
            self.reattach,
            io=io,
            inode_numbers=images.inode_numbers,
            reads=self.read_admission,
            holder_connections=checkpoint_client.HolderConnections(
                cloud.vault_credentials, deadline_s
            ),
        )
        self.checkpoint_restore = checkpoint_restore.CheckpointRestore(self.disks, images)

    def status(self) -> dict[str, Any]:
        """Return the numbers of waiting and refused requests; thread-safe."""
        return {
            "guests": status.of_guests(
                self.read_admission,
                self.disks.writes,
                self.stuck_requests.aborted,
                self.dead_mounts.guests,
            )
        }
