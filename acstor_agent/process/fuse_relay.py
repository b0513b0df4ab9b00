# SPDX-License-Identifier: Apache-2.0
"""FUSE relay for kernels before 6.9, which cannot resend unanswered requests.

A process between kernel and worker keeps each request until it is answered, in the mount record
(process/inflight_requests.py), which survives its kill. It resends requests to the next worker on
FUSE_NOTIFY_RESEND. For a worker, its socket is /dev/fuse. It ends with its supervisor, or later
with the worker. It never blocks on a worker, which may be blocked on it.
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
_BUFFER_BYTES = inflight_requests.BUFFER_BYTES + inflight_requests.PAGE
"""For one message with the kernel's overhead."""
_ENDED = (errno.ENODEV, errno.ECONNABORTED)


class Relay:
    """The supervisor's handle of the relay process; recorded requests go to the first worker.

    :raises errors.Unusable: the host's buffer limits are too low
    """

    def __init__(self, connection: fuse_connection.MountConnection) -> None:
        for end in _pair():  # fail now rather than at a worker's start
            end.close()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._pid = os.fork()
            if not self._pid:
                self._ours.close()
                _be_relay(connection, theirs)

    def connect(self) -> socket.socket:
        """Return the next worker's /dev/fuse, a socket, or raise OSError if the relay exited."""
        kernels, workers = _pair()
        with kernels:
            try:
                socket.send_fds(self._ours, [_WORKER], [kernels.fileno()])
            except OSError:
                workers.close()
                raise
        return workers

    def end_relay(self) -> None:
        """End the relay and wait for its exit."""
        with contextlib.suppress(OSError):
            self._ours.send(_END)
        self._ours.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):  # the first one needs CAP_NET_ADMIN
            if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _BUFFER_BYTES:
                with contextlib.suppress(PermissionError):
                    end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _BUFFER_BYTES:
            for sock in ends:
                sock.close()
            raise errors.Unusable(
                "net.core.wmem_max",
                f"a message of {inflight_requests.BUFFER_BYTES} bytes needs a larger buffer",
                f"Set it to {_BUFFER_BYTES} or more",
            )
    return ends


def _be_relay(connection: fuse_connection.MountConnection, supervisor: socket.socket) -> None:
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
    def __init__(
        self, connection: fuse_connection.MountConnection, supervisor: socket.socket
    ) -> None:
        self._fuse_fd = connection.fuse_fd
        os.set_blocking(self._fuse_fd, False)
        self._supervisor: socket.socket | None = supervisor
        self._worker: socket.socket | None = None
        self._is_worker_ready = False  # it accepts requests
        self._to_send: collections.deque[bytes] = collections.deque()
        self._buffer = memoryview(bytearray(inflight_requests.BUFFER_BYTES))
        self._inflight = inflight_requests.InflightRequests(connection.record)

    def run(self) -> None:
        for answer in self._inflight.unsent_replies:
            self._answer(memoryview(answer))
        while self._supervisor or self._worker:
            for fd, events in self._poll():
                if self._supervisor and fd == self._supervisor.fileno():
                    if not self._receive_worker():
                        return
                    break  # the former worker's socket is closed
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
            if self._is_worker_ready and not self._to_send and not self._inflight.is_full:
                poll.register(self._fuse_fd, select.POLLIN)
        return poll.poll()

    def _receive_worker(self) -> bool:
        if self._supervisor is None:
            return False
        word, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            word, fds, _, _ = socket.recv_fds(self._supervisor, 1, 1)
        if not word:  # it was killed; a remaining worker is still served
            self._supervisor = None
        elif word == _WORKER and fds:
            self._leave_worker()
            self._worker = socket.socket(fileno=fds[0])
            self._worker.setblocking(False)
        return word != _END

    def _leave_worker(self) -> None:
        if self._worker:
            self._worker.close()
        self._worker, self._is_worker_ready = None, False
        self._to_send.clear()

    def _read_kernel(self) -> bool:
        try:
            length = os.readv(self._fuse_fd, [self._inflight.buffer])
        except OSError as e:  # no request, or it was withdrawn
            if e.errno == errno.EINVAL:  # the buffer is too short
                raise
            return e.errno not in _ENDED
        self._to_send.append(self._inflight.save_request(length))
        self._send()
        return True

    def _move_worker(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send()
        if events & ~select.POLLOUT:
            self._receive()

    def _send(self) -> None:
        while self._worker and self._to_send:
            try:
                self._worker.send(self._to_send[0])
            except BlockingIOError:
                return
            except OSError:  # it exited
                self._leave_worker()
                return
            self._to_send.popleft()

    def _receive(self) -> None:
        if not self._worker:
            return
        try:
            length = self._worker.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            length = 0
        if length < inflight_requests.HEADER.size:
            self._leave_worker()
            return
        _, code, unique = inflight_requests.HEADER.unpack_from(self._buffer)
        if not unique and code == fuse_connection.NOTIFY_RESEND:
            self._is_worker_ready = True
            waiting = self._inflight.requests
            self._to_send.extend(waiting[number] for number in sorted(waiting))
            self._send()
            return
        self._answer(self._buffer[:length])

    def _answer(self, answer: memoryview) -> None:
        _, _, unique = inflight_requests.HEADER.unpack_from(answer)
        self._inflight.save_reply(unique, answer)
        with contextlib.suppress(OSError):  # it was interrupted
            os.write(self._fuse_fd, answer)
        self._inflight.forget_request(unique)
