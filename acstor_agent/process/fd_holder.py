# SPDX-License-Identifier: Apache-2.0
"""Who keeps the mount where no service manager does: a process that only holds descriptors.

Where the agent runs in a container its mount would end with the container.  So a holder runs
beside it, outside of the container or in one of its own, that is never replaced together with the
agent's.  A supervisor leaves the descriptors of its mount there, says again every other second
that they are to be kept, and the next supervisor takes them.

One datagram and one answer for each connection to a socket in the state folder, which is root's
alone.  A holder does nothing but hold, so that it has no reason to be replaced.
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
DESCRIPTORS = 2
"""Of a mount: that of /dev/fuse, and its record."""
WAIT_S = 2.0
"""How long either side waits for the other."""
_WORD_BYTES = 16
_CREDENTIALS = struct.Struct("iii")  # pid, uid, gid: struct ucred of linux/socket.h


class FdHolder:
    """Context manager: the holder of one agent's mount.

    :param state_dir: the agent's
    :raises errors.Unusable: the socket cannot be made there, or another holder has it
    """

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
            raise errors.Unusable(str(self._path), "another holder listens there") from e
        except OSError as e:
            raise errors.Unusable(str(self._path), f"cannot be made: {e.strerror or e}") from e
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()  # its name stays: agents see by it that there will be a holder
        self._forget()
        if self._locked is not None:
            os.close(self._locked)

    def _lock(self) -> int:
        """Return what the one holder has locked, even while it is stopped and answers nobody."""
        path = self._path.with_suffix(".lock")
        self._locked = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._locked

    def serve(self) -> None:
        """Answer one after the other, for ever."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError as e:  # there is no memory or descriptor left; what it holds it keeps
                LOG.warning("cannot answer peers now: %s", e.strerror)
                time.sleep(WAIT_S)
                continue
            with client, contextlib.suppress(OSError):  # it has gone, or says nothing
                client.settimeout(WAIT_S)
                self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        theirs = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(theirs)
        if uid != os.geteuid():
            LOG.warning("process %d of user %d is not answered", pid, uid)
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
    """The holder, as a supervisor meets it; see :class:`fd_store.FdStore`."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path = state_dir / SOCKET

    def put(self, connection: fuse_connection.Connection) -> bool:
        """Have it hold a connection; one that it holds already stays."""
        answer = _ask(self._path, PUT, (connection.fuse_fd, connection.record.fd))
        return answer is not None and answer[0] == KEPT

    def ensure_kept(self, connection: fuse_connection.Connection, is_kept: bool) -> bool:
        """Have it hold a connection still: it may be another holder by now."""
        is_still_kept = self.put(connection)
        if is_still_kept != is_kept:
            tell, what = (LOG.info, "keeps") if is_still_kept else (LOG.error, "does not keep")
            tell("%s: the holder %s the mount", self._path, what)
        return is_still_kept

    def take_connection(self) -> fuse_connection.Connection | None:
        """Return the connection that it holds; it goes on holding it."""
        answer = _ask(self._path, TAKE, ())
        return fuse_connection.kept(answer[1] if answer else ())

    def drop_connection(self) -> None:
        """Have it let go."""
        _ask(self._path, FORGET, ())

    def stop_reason(self) -> fd_store.Stopping:
        """Return that somebody sent a signal: whoever it was, the next supervisor comes."""
        return fd_store.Stopping.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Have nobody who waits."""


def is_there(state_dir: pathlib.Path) -> bool:
    """Say whether an agent has a holder, even if that does not run right now."""
    try:
        return stat.S_ISSOCK((state_dir / SOCKET).lstat().st_mode)
    except OSError:
        return False


def answers(state_dir: pathlib.Path) -> bool:
    """Say whether an agent's holder runs and answers now."""
    found = _ask(state_dir / SOCKET, TAKE, ())
    for fd in found[1] if found else ():
        os.close(fd)
    return found is not None


def _ask(path: pathlib.Path, word: bytes, fds: Sequence[int]) -> tuple[bytes, list[int]] | None:
    """Return a holder's answer, None if there is no holder or it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(WAIT_S)
            link.connect(str(path))
            socket.send_fds(link, [word], fds)
            said, handed, _, _ = socket.recv_fds(link, _WORD_BYTES, DESCRIPTORS)
    except OSError:
        return None
    for fd in handed:
        os.set_inheritable(fd, False)
    return (said, handed) if said else None
