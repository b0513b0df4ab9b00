# SPDX-License-Identifier: Apache-2.0
"""Client of the host's agent: the requests that Nova makes."""

import base64
import os
import stat
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.service import tracing
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import control_client
from acstor_common.wire import control_wire
from acstor_nova import boot_profile
from acstor_nova import compute_user

TIMEOUT_S = control_client.TIMEOUT_S


class Stored(NamedTuple):
    """Disk format of an image in Glance, and its length in bytes."""

    disk_format: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.disk_format}"


class ZeroMap(NamedTuple):
    """The zero chunks of an image: one bit per chunk, set if it has only zeros."""

    cut: geometry.Geometry
    bits: bytes
    os_hash: chunk_map.OsHash

    def is_zero(self, chunk_no: int) -> bool:
        """Return whether a chunk has only zeros."""
        return bool(self.bits[chunk_no // 8] >> chunk_no % 8 & 1)


class AgentClient:
    """Client of one agent; requests raise AgentUnreachable, or AgentRefused (also: too old)."""

    def __init__(self, socket_path: str, timeout_s: float) -> None:
        self._socket_path = socket_path
        self._timeout_s = timeout_s

    def attach_image(
        self,
        image_id: str,
        head_bytes: int = 0,  # fetched because Nova reads it
        os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,  # Glance's, to compare
        boot: boot_profile.ProfiledBoot = boot_profile.NO_BOOT,
    ) -> Stored:
        """Attach an image, for ``boot`` if it has a profile; return its format and size."""
        asked = control_wire.AttachImage(
            image_id, head_bytes, os_hash.algo, os_hash.value.hex(), *boot
        )
        try:
            answer = self._ask(asked)
        except errors.AgentRefused as e:
            if boot == boot_profile.NO_BOOT or e.kind != errors.RemoteProtocolError.__name__:
                raise
            return self.attach_image(image_id, head_bytes, os_hash)  # an older agent
        return Stored(answer["disk_format"], answer["stored_bytes"])

    def detach_image(self, image_id: str) -> None:
        """Detach an image that no process has open and no disk is based on."""
        self._ask(control_wire.DetachImage(image_id))

    def pre_seed(self, image_id: str, timeout_s: float) -> None:
        """Fetch all of an image to this host."""
        self._ask(control_wire.PreSeed(image_id), timeout_s)

    def set_fill_mode(
        self, image_id: str, mode: control_wire.FillMode, deadline_s: float = 0.0
    ) -> dict[str, Any]:
        """Set how fast an image is cached completely; return the status of its fill.

        :param deadline_s: of an urgent fill, in seconds from now; 0: as fast as possible
        """
        result: dict[str, Any] = self._ask(control_wire.SetFillMode(image_id, mode, deadline_s))
        return result

    def zero_map(self, image_id: str) -> ZeroMap:
        """Return the zero chunks of an image, and the hash of its bytes."""
        reply = self._ask(control_wire.Zeros(image_id))
        cut = geometry.Geometry(reply["size_bytes"], reply["chunk_bytes"])
        value = bytes.fromhex(reply.get("os_hash_value", ""))
        os_hash = chunk_map.OsHash(reply.get("os_hash_algo", ""), value)
        return ZeroMap(cut, base64.b64decode(reply["zeros"]), os_hash)

    def notify_power_off(
        self, instance_id: str, timeout_s: float, *, is_cancelled: bool = False
    ) -> None:
        """Let reads of an instance fail instead of wait, as it is powered off; or not."""
        self._ask(control_wire.PowerOff(instance_id, is_cancelled), timeout_s)

    def count_fallback(self, reason: control_wire.Fallback, times: int) -> None:
        """Add fallbacks to the agent's counters."""
        self._ask(control_wire.CountFallback(reason, times))

    def attach_checkpoint(
        self, recovery: checkpoint_messages.RecoveryData, backing_file: str, max_bytes: int
    ) -> int:
        """Make a disk of a checkpoint; return its size; ``max_bytes`` 0: that of any image."""
        fields = {name: getattr(recovery, name) for name in recovery.__struct_fields__}
        fields["holders"] = tuple((holder.host, holder.address) for holder in recovery.holders)
        fields |= {"backing_file": backing_file, "max_bytes": max_bytes}
        reply = self._ask(control_wire.AttachCheckpoint(**fields))
        return int(reply["size_bytes"])

    def list_recovered(self) -> list[dict[str, Any]]:
        """Return the disks made of checkpoints."""
        disks: list[dict[str, Any]] = self._ask(control_wire.ListRestoredDisks())["disks"]
        return disks

    def drop_disk(self, disk_id: str) -> None:
        """Delete a disk that no process has open."""
        self._ask(control_wire.DropDisk(disk_id))

    def agent_status(self) -> dict[str, Any]:
        """Return the agent's status."""
        result: dict[str, Any] = self._ask(control_wire.Status())
        return result

    def _ask(self, request: control_wire.ControlRequest, timeout_s: float | None = None) -> Any:
        operation = request.__struct_config__.tag
        timeout_s = timeout_s or self._timeout_s
        with tracing.Span("acstor_agent_call", operation=operation):
            return control_client.send(self._socket_path, request, timeout_s, _denied)


def _denied(path: str) -> str:
    user = compute_user.current_user()
    words = f"this process is user {user.name}, groups {compute_user.names_of(user.groups)}"
    try:
        found = os.stat(path)
    except OSError:
        return f"permission denied: {words}, and cannot access the folder of that socket"
    owner, group = compute_user.user_name(found.st_uid), compute_user.group_name(found.st_gid)
    return (
        f"permission denied: the socket is for user {owner} and group {group} (mode "
        f"{stat.S_IMODE(found.st_mode):04o}; [acstor_agent] control_group), {words}"
    )
