# SPDX-License-Identifier: Apache-2.0
"""The FUSE relay, with a socket in place of the kernel."""

import os
import select
import signal
import socket
import struct

import pytest

from acstor_agent.mount import fuse_connection
from acstor_agent.mount import mount_record
from acstor_agent.process import fuse_relay
from acstor_agent.process import inflight_requests

READ, WRITE, FORGET = 15, 16, 2
WAIT_S = 30.0


def request(unique, opcode=READ):
    return struct.pack("<IiQ", 40, opcode, unique) + bytes(24)


def answer(unique, data=b""):
    return struct.pack("<IiQ", 16 + len(data), 0, unique) + data


ASK = struct.pack("<IiQ", 16, fuse_connection.NOTIFY_RESEND, 0)


class World:
    """A relay; the test plays its kernel and its workers."""

    def __init__(self):
        self.kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.record = mount_record.MountRecord.begin_record(b"offer")
        self.connection = fuse_connection.MountConnection(theirs.detach(), self.record)
        self.kernel.settimeout(WAIT_S)
        self.start()

    def start(self):
        self.relay = fuse_relay.Relay(self.connection)

    def worker(self):
        """Connect as the next worker and ask for the unanswered requests."""
        end = self.relay.connect()
        end.settimeout(WAIT_S)
        end.send(ASK)
        return end

    def kill(self):
        os.kill(self.relay._pid, signal.SIGKILL)
        os.waitpid(self.relay._pid, 0)

    def left(self):
        """Return the requests that the next relay would replay, as another process reads them."""
        reading, writing = os.pipe()
        if not (pid := os.fork()):
            requests = inflight_requests.InflightRequests(self.record).requests
            os.write(writing, b"".join(requests[number] for number in sorted(requests)))
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        return [data[at : at + 40] for at in range(0, len(data), 40)]

    def close(self):
        self.relay.end_relay()
        self.kernel.close()
        self.connection.close()


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


def test_requests_go_to_the_worker_and_answers_to_the_kernel(world):
    with world.worker() as worker:
        world.kernel.send(request(2))
        assert worker.recv(100) == request(2)
        worker.send(answer(2, b"bytes"))
        assert world.kernel.recv(100) == answer(2, b"bytes")


def test_next_worker_receives_only_unanswered_requests(world):
    with world.worker() as worker:
        for unique in (2, 4, 6):
            world.kernel.send(request(unique))
        world.kernel.send(request(8, FORGET))
        assert [worker.recv(100) for _ in range(4)][:3] == [request(2), request(4), request(6)]
        worker.send(answer(4))
        assert world.kernel.recv(100) == answer(4)
    with world.worker() as worker:
        assert [worker.recv(100) for _ in range(2)] == [request(2), request(6)]
        world.kernel.send(request(10))
        assert worker.recv(100) == request(10)


def test_longest_messages_pass_with_small_default_socket_buffers(world, monkeypatch):
    real = socket.socketpair

    def short(*kind):
        ends = real(*kind)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        return ends

    monkeypatch.setattr(socket, "socketpair", short)
    data = bytes(fuse_connection.RELAYED_BYTES)
    with world.worker() as worker:
        world.kernel.send(request(2, WRITE) + data)
        assert worker.recv(1 << 20) == request(2, WRITE) + data
        worker.send(answer(2, data))


def test_worker_receives_no_request_before_it_asks(world):
    with world.relay.connect() as worker:
        world.kernel.send(request(2))
        worker.send(answer(0x42))  # like the reply to FUSE_INIT
        assert world.kernel.recv(100) == answer(0x42)
        assert select.select([worker], [], [], 0.2)[0] == []
        worker.settimeout(WAIT_S)
        worker.send(ASK)
        assert worker.recv(100) == request(2)


def test_stalled_worker_blocks_no_answer_and_loses_no_request(world):
    with world.worker() as worker:
        world.kernel.setblocking(False)
        sent = 0
        while select.select([], [world.kernel], [], 0.5)[1]:
            sent += 1
            world.kernel.send(request(2 * sent))
        world.kernel.settimeout(WAIT_S)
        worker.send(answer(2))
        assert world.kernel.recv(100) == answer(2)
    with world.worker() as worker:
        found = [worker.recv(100) for _ in range(sent - 1)]
    assert found == [request(2 * number) for number in range(2, sent + 1)]


def test_next_relay_takes_over_unanswered_requests(world):
    world.record.record_init_answer(b"yes")
    with world.worker() as worker:
        for unique in (2, 4):
            world.kernel.send(request(unique))
            worker.recv(100)
        worker.send(answer(2))
        world.kernel.recv(100)
        world.relay.end_relay()
    assert world.record.init_answer() == b"yes"
    world.start()
    with world.worker() as worker:
        assert worker.recv(100) == request(4)
        worker.send(answer(4))
        world.kernel.recv(100)
    world.relay.end_relay()
    assert world.left() == []
    world.start()


def test_requests_of_a_killed_relay_are_replayed_until_answered(world):
    first, second = request(2, WRITE), request(4, WRITE)
    with world.worker() as worker:
        world.kernel.send(first)
        world.kernel.send(second)
        assert [worker.recv(100), worker.recv(100)] == [first, second]
        worker.send(answer(2))
        assert world.kernel.recv(100) == answer(2)
        world.kill()
    world.start()
    with world.worker() as worker:
        assert worker.recv(100) == second
        worker.send(answer(4))
        reported = world.kernel.recv(100)
        if reported == answer(2):  # resent by the next relay; the kernel drops it
            reported = world.kernel.recv(100)
        assert reported == answer(4)
        world.kill()
    assert world.left() == []
    world.start()
    with world.worker() as worker:
        world.kernel.send(request(6))
        assert worker.recv(100) == request(6)


def test_next_relay_waits_until_the_former_one_exits(world):
    """After its supervisor was killed, a relay may run for as long as its worker does."""
    with world.worker() as worker:
        former, former_pid = world.relay, world.relay._pid
        former._ours.close()
        world.kernel.send(request(2))
        worker.recv(100)
        world.start()
        with world.worker() as following:
            assert select.select([following], [], [], 0.3)[0] == []
            worker.send(answer(2))
            assert world.kernel.recv(100) == answer(2)
            worker.shutdown(socket.SHUT_RDWR)  # the next relay, a fork of this process, has it, too
            os.waitpid(former_pid, 0)
            world.kernel.send(request(4))
            assert following.recv(100) == request(4)


def test_connect_to_a_killed_relay_raises_broken_pipe(world):
    world.kill()
    with pytest.raises(BrokenPipeError):
        world.relay.connect()


def test_relay_ignores_sigint_and_sigterm(world):
    with world.worker() as worker:
        world.kernel.send(request(2))
        assert worker.recv(100) == request(2)  # it has begun
        os.kill(world.relay._pid, signal.SIGINT)
        os.kill(world.relay._pid, signal.SIGTERM)
        world.kernel.send(request(4))
        assert worker.recv(100) == request(4)


def test_relay_serves_its_worker_after_the_supervisor_was_killed(world):
    with world.worker() as worker:
        world.relay._ours.close()
        for unique in (2, 4):
            world.kernel.send(request(unique))
            assert worker.recv(100) == request(unique)
        worker.send(answer(2))
        assert world.kernel.recv(100) == answer(2)
    os.waitpid(world.relay._pid, 0)
    assert world.left() == [request(4)]


def test_relay_ends_although_its_worker_keeps_running(world):
    with world.worker() as worker:
        world.kernel.send(request(2))
        worker.recv(100)
        world.relay.end_relay()
        assert world.left() == [request(2)]
