# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
import stat
import time

import pytest
import trio
import trio.testing

from acstor_agent.control import control_socket
from acstor_common import errors
from acstor_common.wire import control_wire


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control.sock"


class Served:
    """A control socket with a handler that tests replace."""

    def __init__(self, path):
        self.path = path
        self.handle = self.echo
        self.cancelled = 0

    async def echo(self, request, report):
        return type(request).__name__

    async def __call__(self, request, report):
        return await self.handle(request, report)

    async def ask(self, data, replies=1):
        """Send bytes; return so many replies, with None for the end of the connection."""
        stream = await trio.open_unix_socket(str(self.path))
        async with stream:
            await stream.send_all(data)
            got = b""
            while got.count(b"\n") < replies and (more := await stream.receive_some(65536)):
                got += more
            lines = [json.loads(line) for line in got.splitlines()]
            return lines + [None] * (replies - len(lines))


@pytest.fixture
async def served(path, nursery, request):
    made, limits = Served(path), getattr(request, "param", ())
    await nursery.start(control_socket.serve, control_socket.bind(path, None), made, *limits)
    return made


STATUS = control_wire.encode(control_wire.Status())


async def test_request_is_answered(served):
    assert await served.ask(STATUS) == [{"reply": "done", "result": "Status"}]


@pytest.mark.expect_log("image x: is open")
async def test_connection_continues_after_a_failed_request(served):
    async def refuse(request, report):
        served.handle = served.echo
        raise errors.Unusable("image x", "is open")

    served.handle = refuse
    with trio.fail_after(5):
        failed, done = await served.ask(STATUS * 2, replies=2)
    assert failed == {"reply": "failed", "kind": "Unusable", "error": "image x: is open"}
    assert done["reply"] == "done"


@pytest.mark.expect_log("control request failed")
@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError("no"), KeyError("x")])
async def test_any_exception_of_a_handler_is_answered(served, error):
    async def fail(request, report):
        raise error

    served.handle = fail
    (reply,) = await served.ask(STATUS)
    assert (reply["reply"], reply["kind"]) == ("failed", type(error).__name__)
    served.handle = served.echo
    assert (await served.ask(STATUS))[0]["reply"] == "done"


@pytest.mark.expect_log("broke the protocol")
async def test_invalid_line_closes_the_connection(served):
    failed, end = await served.ask(b"rubbish\n" + STATUS, replies=2)
    assert failed["kind"] == "RemoteProtocolError"
    assert end is None


@pytest.mark.expect_log("a line of over 100 bytes")
@pytest.mark.parametrize("served", [(control_socket.MAX_CLIENTS, 100)], indirect=True)
async def test_overlong_line_closes_the_connection(served):
    failed, end = await served.ask(b"x" * 200, replies=2)
    assert "a line of over 100 bytes" in failed["error"]
    assert end is None


async def test_fragmented_request_is_reassembled(served):
    stream = await trio.open_unix_socket(str(served.path))
    async with stream:
        for byte in STATUS:
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert b'"done"' in await stream.receive_some(1000)


class Pieces:
    """A stream of some pieces that are there at once."""

    def __init__(self, pieces):
        self._pieces = iter(pieces)

    async def receive_some(self, max_bytes):
        return next(self._pieces, b"")


async def test_cost_of_a_byte_is_independent_of_the_length_of_its_line():
    async def cost_s(length):
        pieces, began_s = Pieces([bytes(length), *[b"x"] * 300]), time.thread_time()
        assert [line async for line in control_socket._lines(pieces, 2 * length)] == []
        return time.thread_time() - began_s

    assert await cost_s(control_wire.MAX_LINE_BYTES // 2) < 100 * await cost_s(1000)


async def test_progress_comes_before_the_result(served):
    async def work(request, report):
        await report(1, 2)
        await report(2, 2)

    served.handle = work
    replies = await served.ask(STATUS, replies=3)
    assert [reply["reply"] for reply in replies] == ["progress", "progress", "done"]


async def leave_work(served, work, ended):
    """Start a request, disconnect, and check that it ends and that others are served."""
    served.handle = work
    await served.ask(STATUS)
    with trio.fail_after(5):
        await ended.wait()
    served.handle = served.echo
    assert (await served.ask(STATUS))[0]["reply"] == "done"


async def test_request_is_cancelled_when_its_client_disconnects(served):
    ended = trio.Event()

    async def work(request, report):
        try:
            while True:
                await report(1, 2)
                await trio.lowlevel.checkpoint()
        finally:
            ended.set()

    await leave_work(served, work, ended)


async def test_request_with_a_nursery_is_cancelled_when_its_client_disconnects(served):
    ended = trio.Event()

    async def work(request, report):
        async def tell():
            while True:
                await report(1, 2)
                await trio.lowlevel.checkpoint()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell)
        finally:
            ended.set()

    await leave_work(served, work, ended)


async def connected(served, count):
    return [await trio.open_unix_socket(str(served.path)) for _ in range(count)]


async def hung_up(stream):
    with trio.fail_after(30):
        return await stream.receive_some(1000) == b""


@pytest.mark.expect_log("control socket: more than 4 clients")
@pytest.mark.parametrize("served", [(4,)], indirect=True)
async def test_client_idle_for_longest_is_disconnected_for_a_new_one(served):
    streams = await connected(served, 4)
    await trio.testing.wait_all_tasks_blocked()
    await streams[0].send_all(STATUS)
    assert b'"done"' in await streams[0].receive_some(1000)
    assert await served.ask(STATUS) == [{"reply": "done", "result": "Status"}]
    assert await hung_up(streams[1])
    for stream in (streams[0], *streams[2:]):
        await stream.send_all(STATUS)
        assert b'"done"' in await stream.receive_some(1000)
        await stream.aclose()


@pytest.mark.expect_log("control socket: more than 4 clients")
@pytest.mark.parametrize("served", [(4,)], indirect=True)
async def test_client_with_a_request_in_progress_is_not_disconnected(served):
    may_end = trio.Event()

    async def work(request, report):
        await may_end.wait()

    served.handle = work
    streams = await connected(served, 4)
    for stream in streams:
        await stream.send_all(STATUS)
    await trio.testing.wait_all_tasks_blocked()
    failed, end = await served.ask(b"", replies=2)
    assert (failed["kind"], end) == ("QueueFull", None)
    assert "4 requests in progress" in failed["error"]
    may_end.set()
    for stream in streams:
        assert b'"done"' in await stream.receive_some(1000)
        await stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (await served.ask(STATUS))[0]["reply"] == "done"


@pytest.mark.expect_log("control socket: more than 4 clients")
@pytest.mark.parametrize("served", [(4,)], indirect=True)
async def test_client_that_reads_no_reply_is_disconnected_for_a_new_one(served):
    async def tell(request, report):
        return "x" * 10_000_000  # more than fits in the socket's buffer

    served.handle = tell
    streams = await connected(served, 4)
    for stream in streams:
        await stream.send_all(STATUS)
    await trio.testing.wait_all_tasks_blocked()
    served.handle = served.echo
    for _ in range(2):
        assert await served.ask(STATUS) == [{"reply": "done", "result": "Status"}]
    for stream in streams:
        await stream.aclose()


@pytest.mark.expect_log("control socket: more than 1 clients")
async def test_client_displaced_before_its_line_is_handled_is_disconnected():
    clients = control_socket._Clients(limit=1)
    with clients.one_more() as late:
        with clients.one_more():  # before the first client's task handles its line
            with clients.busy(late):
                await trio.lowlevel.checkpoint()
                raise AssertionError("it goes on")
    assert late.cancelled_caught
    assert not clients._idle and not clients._busy


async def test_socket_is_private_to_the_user(path):
    listener = control_socket.bind(path, None)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    await listener.aclose()


async def test_socket_of_a_dead_worker_is_replaced(path):
    listener = control_socket.bind(path, None)
    listener.socket.close()
    await control_socket.bind(path, None).aclose()


async def test_socket_of_a_zombie_worker_is_replaced(path):
    """It still accepts connections, but never answers."""
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))
        child = os.fork()
        if not child:
            held.listen()
            os._exit(0)
        await trio.to_thread.run_sync(os.waitid, os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        await control_socket.bind(path, None).aclose()
    await trio.to_thread.run_sync(os.waitpid, child, 0)


async def test_socket_of_a_running_agent_is_not_replaced(served):
    with pytest.raises(errors.Unusable, match="another agent listens on it"):
        control_socket.bind(served.path, None)
    assert (await served.ask(STATUS))[0]["reply"] == "done"


@pytest.mark.parametrize("bad", ["folder", "no/such/folder", "x" * 200])
async def test_error_names_the_path_that_cannot_be_bound(tmp_path, bad):
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.Unusable, match=bad):
        control_socket.bind(tmp_path / bad, None)
