# SPDX-License-Identifier: Apache-2.0
"""Hanging sources: a folder whose file server is stopped, and web servers that stall."""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import socket
import threading
import time

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import hung_folder
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(24 * CHUNK)
OTHER = local.random_bytes(4 * CHUNK, seed=2)
SOON_S = 25.0
"""Long for some chunks, even on a busy machine, and shorter than one time-out of a source."""
WAIT_S = 60.0
LIFE_S = 150.0
OPTIONS = {"variants": "no-read-ahead", "read_deadline_s": 100.0, "life_s": LIFE_S}


def given_up_after(least_s: float) -> tuned.Constants:
    """Let source attempts time out after ``least_s``."""
    return {tuned.SOURCE_TIMEOUT_S: least_s}


@pytest.fixture
def readers():
    """Threads that read; their reads end with the agent at the latest."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        yield pool


@pytest.fixture
def folder(images, tmp_path, readers):
    """The folder; it ends before the readers are joined, so that no agent hangs on it."""
    with hung_folder.serving(images.folder, tmp_path / "nfs") as folder:
        yield folder


def sections(folder: hung_folder.HungFolder, url: str = "http://127.0.0.1:1/"):
    return {
        "source_file": {"folder": folder.mount_point},
        "source_http": {"url": url, "timeout_s": 5.0},
    }


def files_of(images: local.ImageFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in images.folder.iterdir()}


def read(path: pathlib.Path, chunk_no: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(fd, CHUNK, chunk_no * CHUNK)
    finally:
        os.close(fd)


def errno_of(reader: concurrent.futures.Future[object]) -> int | None:
    error = reader.exception(WAIT_S)
    assert isinstance(error, OSError)
    return error.errno


def chunk(chunk_no: int, data: bytes = DATA) -> bytes:
    return data[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


def threads_of(pid: int | None) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def hanging(agent) -> int:
    return sum(place["hanging_calls"] for place in agent.status()["sources"].values())


def source_trouble(agent, folder) -> str:
    found = agent.status()["faults"].get(f"source {folder.mount_point}", {"why": ""})
    return found["why"]


@pytest.mark.parametrize("how", ["frozen", "keeps what it takes"])
def test_second_source_is_read_when_the_first_one_hangs(images, folder, readers, start, how):
    image_id = images.add(DATA)
    with http_server.serve(files_of(images)) as server:
        agent = start(sources="file,http", sections=sections(folder, server.url), **OPTIONS)
        path = agent.image_path(image_id)
        assert read(path, 0) == chunk(0)
        assert server.asked == []
        folder.stop() if how == "frozen" else folder.take_and_keep()
        began_s = time.monotonic()
        found = list(readers.map(lambda number: read(path, number), range(1, 24)))
        assert found == [chunk(number) for number in range(1, 24)]
        assert time.monotonic() - began_s < SOON_S
        assert "no answer for" in source_trouble(agent, folder)
        assert f"Source {folder.mount_point} does not answer" in agent.log()
        assert agent.status()["images"][image_id]["failed_reads"] == 0
        assert threads_of(agent.worker_pid()) < 60


def test_reads_wait_until_a_hung_only_source_responds_again(images, folder, readers, start):
    image_id = images.add(DATA)
    with http_server.serve({}) as server:
        agent = start(
            sources="file,http",
            constants=given_up_after(2.0),
            sections=sections(folder, server.url),
            **OPTIONS,
        )
        other_id = images.add(OTHER)
        server.files.update(
            {p.name: p.read_bytes() for p in images.folder.iterdir() if other_id in p.name}
        )
        images.path(other_id).unlink()
        images.map_path(other_id).unlink()
        path, pid = agent.image_path(image_id), agent.worker_pid()
        assert read(path, 0) == chunk(0)
        folder.stop()
        waiting = [readers.submit(read, path, number) for number in range(1, 24)]
        hosts.wait_until(lambda: hanging(agent) >= 4, "calls that hang", WAIT_S)
        assert [read(agent.image_path(other_id), n) for n in range(4)] == [
            chunk(n, OTHER) for n in range(4)
        ]
        assert read(path, 0) == chunk(0)  # a cached chunk needs no source
        hosts.wait_until(lambda: "hang" in source_trouble(agent, folder), "the trouble", WAIT_S)
        before = threads_of(pid)
        time.sleep(3)  # some more attempts
        assert threads_of(pid) <= before + 8
        assert hanging(agent) <= 16
        assert not any(reader.done() for reader in waiting)
        folder.go_on()
        assert [reader.result(WAIT_S) for reader in waiting] == [chunk(n) for n in range(1, 24)]
    hosts.wait_until(lambda: not hanging(agent), "the calls to come back", WAIT_S)
    assert source_trouble(agent, folder) == ""
    assert agent.worker_pid() == pid
    assert agent.log().count("calls hang") + agent.log().count("call hangs") >= 1
    assert "no call hangs any more" in agent.log()


def test_agent_starts_and_stops_while_the_source_folder_hangs(images, folder, readers, start):
    image_id = images.add(DATA)
    folder.stop()
    agent = start(
        sources="file",
        constants=given_up_after(4.0),
        sections=sections(folder),
        **OPTIONS,
    )
    attaching = readers.submit(os.stat, agent.image_path(image_id))
    hosts.wait_until(lambda: hanging(agent) >= 1, "a call that hangs", WAIT_S)
    folder.go_on()
    assert attaching.result(WAIT_S).st_size == len(DATA)
    folder.stop()
    readers.submit(read, agent.image_path(image_id), 3)
    hosts.wait_until(lambda: hanging(agent) >= 1, "a call that hangs", WAIT_S)
    began_s = time.monotonic()
    agent.stop()
    assert time.monotonic() - began_s < SOON_S
    assert not agent.is_mounted()


def is_held(pid: int | None) -> bool:
    """Return whether some thread of a process has not ended."""
    found = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            found.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return any(state not in "ZX" for state in found)


def memory_of(pid: int | None) -> int:
    """Return the memory of a process, from the thread that reports most."""
    found = [0]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        words = (task / "status").read_text().split()
        if "RssAnon:" in words:  # an ended thread has none
            found.append(1024 * int(words[words.index("RssAnon:") + 1]))
    return max(found)


def start_given_up_soon(start, folder):
    """Start an agent that abandons a worker one second after it should have ended."""
    constants = given_up_after(1.0)
    return start(sources="file", constants=constants, sections=sections(folder), **OPTIONS)


def test_killed_worker_in_state_d_is_replaced(images, folder, readers, start):
    """A thread in state D keeps the whole process from ending until the file server answers."""
    image_id = images.add(DATA)
    agent = start_given_up_soon(start, folder)
    path = agent.image_path(image_id)
    assert [read(path, number) for number in range(4)] == [chunk(n) for n in range(4)]
    hosts.wait_written(agent)
    folder.take_and_keep()
    waiting = readers.submit(read, path, 9)
    hosts.wait_until(lambda: hanging(agent) >= 1, "a call that hangs", WAIT_S)
    killed = agent.worker_pid()
    memory_bytes = memory_of(killed)
    hosts.kill(killed)
    hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker", WAIT_S)
    agent.wait_ready(WAIT_S)
    assert is_held(killed)
    assert memory_of(killed) < memory_bytes / 4
    assert "threads of it hang in kernel calls" in agent.log()
    assert "peer_listen" not in agent.status()["faults"]  # taken over with the port
    assert [read(path, number) for number in range(4)] == [chunk(n) for n in range(4)]
    folder.answer()
    assert waiting.result(WAIT_S) == chunk(9)


def test_agent_stops_while_its_worker_is_in_state_d(images, folder, readers, start):
    image_id = images.add(DATA)
    agent = start_given_up_soon(start, folder)
    path = agent.image_path(image_id)
    assert read(path, 0) == chunk(0)
    hosts.wait_written(agent)
    folder.take_and_keep()
    waiting = readers.submit(read, path, 9)
    hosts.wait_until(lambda: hanging(agent) >= 1, "a call that hangs", WAIT_S)
    held = agent.worker_pid()
    agent.stop()
    assert is_held(held)
    assert not agent.is_mounted()
    assert errno_of(waiting) in (errno.ECONNABORTED, errno.ENOTCONN)
    agent.start()  # the remains of the former agent do not lock the folder
    agent.wait_ready(WAIT_S)
    assert read(path, 0) == chunk(0)
    folder.answer()
    hosts.wait_until(lambda: not is_held(held), "the end of the first worker", WAIT_S)


@contextlib.contextmanager
def silent_server(head: bytes, every_s: float):
    """Accept connections and never respond, or send ``head`` byte by byte."""
    end = threading.Event()
    links: list[socket.socket] = []

    def drip(link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for number in range(len(head)):
                if end.wait(every_s):
                    return
                link.sendall(head[number : number + 1])
            end.wait()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                links.append(link)
                threading.Thread(target=drip, args=(link,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            end.set()
            listener.shutdown(socket.SHUT_RDWR)
            for link in links:
                link.close()


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Type: application/octet-stream\r\n\r\n"


@pytest.mark.parametrize("head", [b"", HEAD], ids=["silent", "one byte a second"])
def test_second_source_is_read_when_a_web_server_stalls(images, readers, start, head):
    image_id = images.add(DATA)
    with silent_server(head, 1.0) as url:
        asked = {
            "source_http": {"url": url, "timeout_s": 20.0},
            "source_file": {"folder": images.folder},
        }
        agent = start(sources="http,file", sections=asked, **OPTIONS)
        path = agent.image_path(image_id)
        began_s = time.monotonic()
        assert list(readers.map(lambda n: read(path, n), range(24))) == [
            chunk(n) for n in range(24)
        ]
        assert time.monotonic() - began_s < SOON_S
        assert f"source {url}" in agent.status()["faults"]


def test_request_to_a_web_server_that_trickles_bytes_times_out(images, readers, start):
    """The server is never silent for long: the limit for the whole request ends it."""
    image_id = images.add(DATA)
    with silent_server(HEAD, 1.0) as url:
        asked = {"source_http": {"url": url, "timeout_s": 20.0}}
        agent = start(sources="http", constants=given_up_after(1.0), sections=asked, **OPTIONS)
        attaching = readers.submit(os.stat, agent.image_path(image_id))

        def missed() -> bool:
            return agent.status()["sources"][url]["missed_attempts"] >= 3

        hosts.wait_until(missed, "requests that are given up", WAIT_S)
        hosts.kill_agent(agent)
        assert errno_of(attaching) in (errno.EIO, errno.ECONNABORTED, errno.ENOTCONN)
