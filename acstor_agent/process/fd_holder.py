# SPDX-License-Identifier: Apache-2.0
"""A holder process keeps the mount's descriptors where no service manager does.

It runs outside the agent's container, whose end would end the mount, or in one of its own. The
supervisor sends it the descriptors, and confirms them every 2 s; the next supervisor takes them. A
connection to its socket in the state folder (root only) carries one datagram and one answer.
"""

import contextlib
import fcntl
import logging
import os
import pathlib
import socket
import stat
import struct
import time
from collections.abc import Sequence
from typing import Self

from acstor_agent.mount import fuse_connection
from acstor_agent.process import fd_store
from acstor_agent.process import folders
from acstor_common import errors

LOG = logging.getLogger(__name__)

SOCKET = "holder.sock"
PUT, TAKE, FORGET = b"put", b"take", b"forget"
KEPT, NOTHING, REFUSED = b"kept", b"nothing", b"refused"
DESCRIPTORS = 2  # of a mount: /dev/fuse and the record
WAIT_S = 2.0
_WORD_BYTES = 16
_CREDENTIALS = struct.Struct("iii")  # pid, uid, gid: struct ucred of linux/socket.h


class FdHolder:
    """Context manager: the holder of an agent's mount; raises Unusable if it gets no socket."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path = state_dir / SOCKET
        self._kept: list[int] = []
        self._locked: int | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def __enter__(self) -> Self:
        try:
            folders.make_private(self._path.parent)
            fcntl.flock(self._lock(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._path.chmod(0o600)
            self._socket.listen()
        except BlockingIOError as e:
            raise errors.Unusable(str(self._path), "another holder listens on it") from e
        except OSError as e:
            raise errors.Unusable(str(self._path), f"cannot be created: {e.strerror or e}") from e
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()  # the socket file stays, as a sign that a holder exists
        self._forget()
        if self._locked is not None:
            os.close(self._locked)

    def _lock(self) -> int:
        """Return the descriptor to lock, which excludes even a stopped holder."""
        path = self._path.with_suffix(".lock")
        self._locked = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._locked

    def serve(self) -> None:
        """Answer one client after the other; never returns."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError as e:  # out of memory or descriptors
                LOG.warning("cannot accept clients now: %s", e.strerror)
                time.sleep(WAIT_S)
                continue
            with client, contextlib.suppress(OSError):  # the client exited or is silent
                client.settimeout(WAIT_S)
                self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        theirs = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(theirs)
        if uid != os.geteuid():
            LOG.warning("process %d of user %d is refused", pid, uid)
            return
        word, fds, _, _ = socket.recv_fds(client, _WORD_BYTES, DESCRIPTORS)
        if word == PUT and len(fds) == DESCRIPTORS:
            self._keep(fds)
            client.send(KEPT)
            return
        for fd in fds:
            os.close(fd)
        if word == TAKE and self._kept:
            socket.send_fds(client, [KEPT], self._kept)
        elif word == FORGET:
            self._forget()
            client.send(NOTHING)
        else:
            client.send(NOTHING if word == TAKE else REFUSED)

    def _keep(self, fds: list[int]) -> None:
        if not self._kept:
            LOG.info("holding a mount")
        self._forget()
        self._kept = fds

    def _forget(self) -> None:
        for fd in self._kept:
            os.close(fd)
        self._kept = []


class HolderStore:
    """A supervisor's client of the holder; see :class:`fd_store.FdStore`."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path = state_dir / SOCKET

    def store_connection(self, connection: fuse_connection.MountConnection) -> bool:
        """Send the descriptors; return whether they are kept."""
        answer = _ask(self._path, PUT, (connection.fuse_fd, connection.record.fd))
        return answer is not None and answer[0] == KEPT

    def verify_stored(self, connection: fuse_connection.MountConnection, is_stored: bool) -> bool:
        """Send the descriptors again, because the holder may be a new one."""
        is_still_stored = self.store_connection(connection)
        if is_still_stored != is_stored:
            log, what = (LOG.info, "keeps") if is_still_stored else (LOG.error, "does not keep")
            log("%s: the holder %s the mount", self._path, what)
        return is_still_stored

    def take_connection(self) -> fuse_connection.MountConnection | None:
        """Return the kept connection, which stays kept."""
        answer = _ask(self._path, TAKE, ())
        return fuse_connection.from_descriptors(answer[1] if answer else ())

    def drop_connection(self) -> None:
        """Tell the holder to close the descriptors."""
        _ask(self._path, FORGET, ())

    def stop_reason(self) -> fd_store.StopReason:
        """Return SIGNALLED: the next supervisor follows in any case."""
        return fd_store.StopReason.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Do nothing: no manager waits."""


def has_socket(state_dir: pathlib.Path) -> bool:
    """Return whether an agent has a holder, running or not."""
    try:
        return stat.S_ISSOCK((state_dir / SOCKET).lstat().st_mode)
    except OSError:
        return False


def is_answering(state_dir: pathlib.Path) -> bool:
    """Return whether an agent's holder answers now."""
    found = _ask(state_dir / SOCKET, TAKE, ())
    for fd in found[1] if found else ():
        os.close(fd)
    return found is not None


def _ask(path: pathlib.Path, word: bytes, fds: Sequence[int]) -> tuple[bytes, list[int]] | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(WAIT_S)
            link.connect(str(path))
            socket.send_fds(link, [word], fds)
            message, handed, _, _ = socket.recv_fds(link, _WORD_BYTES, DESCRIPTORS)
    except OSError:
        return None
    for fd in handed:
        os.set_inheritable(fd, False)
    return (message, handed) if message else None
