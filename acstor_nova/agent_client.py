# SPDX-License-Identifier: Apache-2.0
"""Asks the agent of this host, one connection a request, never longer than a deadline.

It blocks and knows only the standard library's sockets, so that it works in
nova-compute whether that uses threads or eventlet.  Nothing is kept between
two requests: an agent that was restarted is a new one to the next request.
"""

import base64
import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.wire import control_wire
from acstor_nova import compute_user
from acstor_nova import decision_client

READ_BYTES = 64 * 1024
TIMEOUT_S = 45.0
"""How long Nova waits for an answer before it makes a disk without acstor.  The agent may still get
an image's chunk map for 30 s, and says then that it cannot."""


class Stored(NamedTuple):
    """How Glance has an image, as its chunk map says: the format, and the length in bytes."""

    disk_format: str
    size_bytes: int

    def __str__(self) -> str:
        """Return both in words, for warnings."""
        return f"{self.size_bytes} bytes of {self.disk_format}"


class ZeroMap(NamedTuple):
    """What the agent tells of an image that it shows.

    :param cut: how it is cut into chunks
    :param bits: one for each chunk, set if it has only zeros
    :param os_hash: Glance's, of the image that the chunk map was made of; unknown if an agent is
        too old to tell
    """

    cut: geometry.Geometry
    bits: bytes
    os_hash: chunk_map.OsHash

    def is_zero(self, chunk_no: int) -> bool:
        """Say whether a chunk has only zeros."""
        return bool(self.bits[chunk_no // 8] >> chunk_no % 8 & 1)


class AgentClient:
    """One host's agent.

    :param socket_path: its control socket
    :param timeout_s: how long a request may take that has no deadline of its own
    """

    def __init__(self, socket_path: str, timeout_s: float) -> None:
        self._socket_path = socket_path
        self._timeout_s = timeout_s

    def attach_image(
        self,
        image_id: str,
        head_bytes: int = 0,
        os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    ) -> Stored:
        """Have an image attached, with its beginning on the host; return how Glance has it.

        :param head_bytes: what Nova is about to read itself, and must not wait for as guests do
        :param os_hash: Glance's hash of the image; an agent that is too old to compare it is asked
            without
        :raises errors.AgentRefused: the agent cannot attach it, or not get its beginning in time
        :raises errors.AgentUnreachable: it does not answer in time
        """
        asked = control_wire.Ensure(image_id, head_bytes, os_hash.algo, os_hash.value.hex())
        try:
            answer = self._ask(asked)
        except errors.AgentRefused as e:
            if e.kind != errors.RemoteProtocolError.__name__ or not os_hash.algo:
                raise
            answer = self._ask(control_wire.Ensure(image_id, head_bytes))
        return Stored(answer["disk_format"], answer["stored_bytes"])

    def detach_image(self, image_id: str) -> None:
        """Have an image forgotten that no process has open and no disk was made from.

        :raises errors.AgentRefused: one has, or was
        :raises errors.AgentUnreachable: it does not answer in time
        """
        self._ask(control_wire.Drop(image_id))

    def pre_seed(self, image_id: str, timeout_s: float) -> None:
        """Have all of an image brought to this host.

        :raises errors.AgentRefused: some of it could not be had
        :raises errors.AgentUnreachable: it is not done in time
        """
        self._ask(control_wire.PreSeed(image_id), timeout_s)

    def zero_map(self, image_id: str) -> ZeroMap:
        """Return where an image has zeros, and whose bytes its mirror shows.

        :raises errors.AgentRefused: it does not know the image, or is too old for the question
        :raises errors.AgentUnreachable: it does not answer in time
        """
        said = self._ask(control_wire.Zeros(image_id))
        cut = geometry.Geometry(said["size_bytes"], said["chunk_bytes"])
        value = bytes.fromhex(said.get("os_hash_value", ""))
        os_hash = chunk_map.OsHash(said.get("os_hash_algo", ""), value)
        return ZeroMap(cut, base64.b64decode(said["zeros"]), os_hash)

    def notify_power_off(
        self, instance_id: str, timeout_s: float, *, is_taken_back: bool = False
    ) -> None:
        """Let the guest of an instance that is being switched off wait for nothing any more.

        :param is_taken_back: it stays on after all: its guest is to wait again
        :raises errors.AgentRefused: it is an agent that does not know how
        :raises errors.AgentUnreachable: it does not answer in time
        """
        self._ask(control_wire.SwitchedOff(instance_id, is_taken_back), timeout_s)

    def count_fallback(self, reason: control_wire.Fallback, times: int) -> None:
        """Have fallbacks counted where an operator looks.

        :raises errors.AgentRefused: it is an agent that does not know how
        :raises errors.AgentUnreachable: it does not answer in time
        """
        self._ask(control_wire.CountFallback(reason, times))

    def attach_checkpoint(
        self, recovery: decision_client.Recovery, backing_file: str, max_bytes: int
    ) -> int:
        """Have a disk made of a checkpoint; return how large it is, in bytes.

        :param backing_file: path of what has the image, raw
        :param max_bytes: it is refused if it is larger; 0: if it is larger than any image
        :raises errors.AgentRefused: it cannot be had, or is not what it should be
        :raises errors.AgentUnreachable: it does not answer in time
        """
        fields = {name: getattr(recovery, name) for name in recovery.__struct_fields__}
        fields["holders"] = tuple((holder.host, holder.address) for holder in recovery.holders)
        fields |= {"backing_file": backing_file, "max_bytes": max_bytes}
        said = self._ask(control_wire.AttachCheckpoint(**fields))
        return int(said["size_bytes"])

    def list_recovered(self) -> list[dict[str, Any]]:
        """Return the disks that were made of checkpoints.

        :raises errors.AgentRefused: it is an agent that does not know how
        :raises errors.AgentUnreachable: it does not answer in time
        """
        disks: list[dict[str, Any]] = self._ask(control_wire.Recovered())["disks"]
        return disks

    def drop_disk(self, disk_id: str) -> None:
        """Have a disk deleted that nobody has open.

        :raises errors.AgentRefused: somebody has, or there is none
        :raises errors.AgentUnreachable: it does not answer in time
        """
        self._ask(control_wire.DropDisk(disk_id))

    def agent_status(self) -> dict[str, Any]:
        """Return what the agent says of itself.

        :raises errors.AgentUnreachable: it does not answer in time
        """
        result: dict[str, Any] = self._ask(control_wire.Status())
        return result

    def _ask(self, request: control_wire.Request, timeout_s: float | None = None) -> Any:
        for reply in self._replies(request, timeout_s or self._timeout_s):
            match reply:
                case control_wire.Failed(kind, error):
                    raise errors.AgentRefused(kind, error)
                case control_wire.Done(result):
                    return result
        raise errors.AgentUnreachable(
            self._socket_path, "it closed the connection before it answered"
        )

    def _replies(
        self, request: control_wire.Request, timeout_s: float
    ) -> Iterator[control_wire.AnyReply]:
        ends_s = time.monotonic() + timeout_s
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as agent:
                agent.settimeout(timeout_s)
                agent.connect(self._socket_path)
                agent.sendall(control_wire.encode(request))
                for line in _lines(agent, ends_s):
                    yield control_wire.decode_reply(line)
        except TimeoutError as e:
            why = f"no answer within {timeout_s:g} s"
            raise errors.AgentUnreachable(self._socket_path, why) from e
        except PermissionError as e:
            raise errors.AgentUnreachable(self._socket_path, _denied(self._socket_path)) from e
        except (OSError, errors.RemoteProtocolError) as e:
            raise errors.AgentUnreachable(self._socket_path, str(e)) from e


def _denied(path: str) -> str:
    """Return whose a socket is, and who we are who may not use it."""
    here = compute_user.current_user()
    who = f"this process is user {here.name}, groups {compute_user.names_of(here.groups)}"
    try:
        found = os.stat(path)
    except OSError:
        return f"permission denied: {who}, and may not enter the folder of that socket"
    owner, group = compute_user.user_name(found.st_uid), compute_user.group_name(found.st_gid)
    return (
        f"permission denied: the socket is for user {owner} and group {group} (mode "
        f"{stat.S_IMODE(found.st_mode):04o}; [acstor_agent] control_group), {who}"
    )


def _lines(agent: socket.socket, ends_s: float) -> Iterator[bytes]:
    """Cut what comes until ``ends_s`` (monotonic clock) into lines.

    :raises errors.RemoteProtocolError: a line is too long
    """
    buffer = b""
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        agent.settimeout(left_s)
        received = agent.recv(READ_BYTES)
        if not received:
            return
        *lines, buffer = (buffer + received).split(b"\n")
        yield from lines
        if len(buffer) > control_wire.MAX_LINE_BYTES:
            why = f"a line of over {control_wire.MAX_LINE_BYTES} bytes"
            raise errors.RemoteProtocolError("acstor-agent", why)
