# SPDX-License-Identifier: Apache-2.0
"""What kernels before 6.9 lack: a dead worker's unanswered requests, for the next one.

A process between the kernel and the worker.  It hands on each request, keeps it until it is
answered, and hands all that it keeps to a worker that asks for it as it would ask a newer kernel
(FUSE_NOTIFY_RESEND).  To a worker, its end of a socket is /dev/fuse.

What it keeps is in the mount's record (process/inflight_requests.py), whatever happens to the
process; the next relay goes on with it.  It ends when its supervisor ends it, or is gone and the
worker, too.

It never waits for a worker, since that may be waiting for it.
"""

import collections
import contextlib
import errno
import logging
import os
import select
import signal
import socket

from acstor_agent.mount import fuse_connection
from acstor_agent.process import inflight_requests
from acstor_common import errors

LOG = logging.getLogger(__name__)

_WORKER, _END = b"w", b"e"
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h
_BUFFER_BYTES = inflight_requests.ROOM_BYTES + inflight_requests.PAGE
"""For one message, and what the kernel keeps beside it."""
_ENDED = (errno.ENODEV, errno.ECONNABORTED)


class Relay:
    """The process, as the supervisor knows it.

    :param connection: the mount; what is under way by its record is handed to the first worker
    :raises errors.Unusable: the host's limits are too low for it
    """

    def __init__(self, connection: fuse_connection.Connection) -> None:
        for end in _pair():  # what no worker could be given is said at the start
            end.close()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._pid = os.fork()
            if not self._pid:
                self._ours.close()
                _be_relay(connection, theirs)

    def connect(self) -> socket.socket:
        """Return what is /dev/fuse for the next worker; the one before it is not served any more.

        :raises OSError: the process has ended
        """
        kernels, workers = _pair()
        with kernels:
            try:
                socket.send_fds(self._ours, [_WORKER], [kernels.fileno()])
            except OSError:
                workers.close()
                raise
        return workers

    def end_relay(self) -> None:
        """End it, whether there is a worker or not, and wait for its end."""
        with contextlib.suppress(OSError):
            self._ours.send(_END)
        self._ours.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a link that takes the longest message, whatever the host's default is.

    :raises errors.Unusable: the host allows no buffer of that size
    """
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):  # the first one needs CAP_NET_ADMIN
            if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _BUFFER_BYTES:
                with contextlib.suppress(PermissionError):
                    end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _BUFFER_BYTES:
            for one in ends:
                one.close()
            raise errors.Unusable(
                "net.core.wmem_max",
                f"a message of {inflight_requests.ROOM_BYTES} bytes needs a larger buffer",
                f"Set it to {_BUFFER_BYTES} or more",
            )
    return ends


def _be_relay(connection: fuse_connection.Connection, supervisor: socket.socket) -> None:
    """Be the process in a fork of the supervisor."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _Moving(connection, supervisor).run()
    except BaseException:
        LOG.exception("the relay failed")
    finally:
        logging.shutdown()
        os._exit(0)


class _Moving:
    """What is moved between the kernel and the worker.

    :param supervisor: brings the socket of each next worker
    """

    def __init__(self, connection: fuse_connection.Connection, supervisor: socket.socket) -> None:
        self._fuse_fd = connection.fuse_fd
        os.set_blocking(self._fuse_fd, False)
        self._supervisor: socket.socket | None = supervisor
        self._worker: socket.socket | None = None
        self._is_asked = False
        """The worker takes requests; before it has asked for them it can do nothing with one."""
        self._to_send: collections.deque[bytes] = collections.deque()
        self._room = memoryview(bytearray(inflight_requests.ROOM_BYTES))
        self._under_way = inflight_requests.InflightRequests(connection.record)

    def run(self) -> None:
        """Move messages until there is nobody more to move them for."""
        for answer in self._under_way.answers:
            self._answer(memoryview(answer))
        while self._supervisor or self._worker:
            for fd, events in self._poll():
                if self._supervisor and fd == self._supervisor.fileno():
                    if not self._hear_supervisor():
                        return
                    break  # what was found of the former worker's socket is no more
                if fd == self._fuse_fd:
                    if not self._read_kernel():
                        return
                elif self._worker and fd == self._worker.fileno():
                    self._move_worker(events)

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        if self._supervisor:
            poll.register(self._supervisor, select.POLLIN)
        if self._worker:
            events = select.POLLIN | (select.POLLOUT if self._to_send else 0)
            poll.register(self._worker, events)
            if self._is_asked and not self._to_send and not self._under_way.is_full:
                poll.register(self._fuse_fd, select.POLLIN)
        return poll.poll()

    def _hear_supervisor(self) -> bool:
        """Take the socket of the next worker; return False if there is to be none."""
        if self._supervisor is None:
            return False
        word, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            word, fds, _, _ = socket.recv_fds(self._supervisor, 1, 1)
        if not word:  # it was killed: its worker, if it is left, serves on
            self._supervisor = None
        elif word == _WORKER and fds:
            self._leave_worker()
            self._worker = socket.socket(fileno=fds[0])
            self._worker.setblocking(False)
        return word != _END

    def _leave_worker(self) -> None:
        if self._worker:
            self._worker.close()
        self._worker, self._is_asked = None, False
        self._to_send.clear()

    def _read_kernel(self) -> bool:
        """Take a request and hand it on; return False if the mount has ended."""
        try:
            length = os.readv(self._fuse_fd, [self._under_way.room])
        except OSError as e:  # nothing there, or it was withdrawn meanwhile
            if e.errno == errno.EINVAL:  # it was told of longer messages than these
                raise
            return e.errno not in _ENDED
        self._to_send.append(self._under_way.save_request(length))
        self._send()
        return True

    def _move_worker(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send()
        if events & ~select.POLLOUT:
            self._receive()

    def _send(self) -> None:
        """Hand on what waits, as far as the worker takes it."""
        while self._worker and self._to_send:
            try:
                self._worker.send(self._to_send[0])
            except BlockingIOError:
                return
            except OSError:  # it has gone
                self._leave_worker()
                return
            self._to_send.popleft()

    def _receive(self) -> None:
        """Take an answer to the kernel."""
        if not self._worker:
            return
        try:
            length = self._worker.recv_into(self._room)
        except BlockingIOError:
            return
        except OSError:
            length = 0
        if length < inflight_requests.HEADER.size:
            self._leave_worker()
            return
        _, code, unique = inflight_requests.HEADER.unpack_from(self._room)
        if not unique and code == fuse_connection.NOTIFY_RESEND:
            self._is_asked = True
            waiting = self._under_way.requests
            self._to_send.extend(waiting[number] for number in sorted(waiting))
            self._send()
            return
        self._answer(self._room[:length])

    def _answer(self, answer: memoryview) -> None:
        _, _, unique = inflight_requests.HEADER.unpack_from(answer)
        self._under_way.note_answer(unique, answer)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(self._fuse_fd, answer)
        self._under_way.forget_request(unique)
