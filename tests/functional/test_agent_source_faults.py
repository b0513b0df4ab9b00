# SPDX-License-Identifier: Apache-2.0
"""Sources that respond badly, late or not at all: retries until the deadline, then EIO."""

import errno
import os
import pathlib
import threading
import time

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import server_threads
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(32 * CHUNK)


@pytest.fixture
def web(images):
    """An image on a web server: the server and the image's id."""
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        yield server, image_id


def begin(start, server, **options):
    defaults = {"read_deadline_s": 1.0, "variants": "no-read-ahead"}
    return start(**{**defaults, **options}, **hosts.http_options(server.url, 0.3))


def read(path: pathlib.Path, chunk_no: int) -> bytes:
    return hosts.read_direct(path, chunk_no * CHUNK, CHUNK)


def chunk(chunk_no: int) -> bytes:
    return DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


def errno_of(action, *args) -> int:
    with pytest.raises(OSError) as caught:
        action(*args)
    return caught.value.errno


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (http_server.whole_file, "answered 200 instead of 206"),
        (http_server.status(404), "there is no such blob (404)"),
        (http_server.status(503), "the server answered 503"),
        (http_server.half_a_body, "the body ended after"),
        (http_server.content_range("bytes 0-1/2"), "the answer is 'bytes 0-1/2'"),
        (http_server.garbage, "RemoteProtocolError"),
        (http_server.hang_up, "closed the connection without an answer"),
        (http_server.too_long, "the body is longer than"),
        (http_server.too_short, "the body ended after"),
        (http_server.gzipped, "encodes the blob"),
        (http_server.slow(5), "did not arrive within 1 s"),
    ],
)
def test_bad_responses_cause_eio_until_the_source_recovers(web, start, behaviour, said):
    server, image_id = web
    agent = begin(start, server)
    path, pid = agent.image_path(image_id), agent.worker_pid()
    assert read(path, 0) == chunk(0)
    server.always = behaviour
    began = time.monotonic()
    assert errno_of(read, path, 5) == errno.EIO
    assert time.monotonic() - began < 4
    assert read(path, 0) == chunk(0)  # a cached chunk needs no source
    assert said in agent.log()
    server.always = http_server.fine
    assert read(path, 5) == chunk(5)
    status = agent.status()
    assert (status["worker_pid"], status["images"][image_id]["failed_reads"]) == (pid, 1)


def test_transient_faults_fail_no_read(web, start):
    server, image_id = web
    agent = begin(start, server, read_deadline_s=10)
    agent.ctl("attach", image_id)
    bad = [http_server.status(503), http_server.half_a_body, http_server.garbage]
    server.behaviours = [behaviour for behaviour in bad for _ in range(2)]
    assert agent.image_path(image_id).read_bytes() == DATA
    assert not server.behaviours
    assert agent.status()["images"][image_id]["failed_reads"] == 0


def test_source_without_range_requests_is_reported_at_once(web, start):
    server, image_id = web
    server.always = http_server.whole_file
    agent = begin(start, server, read_deadline_s=20)
    began = time.monotonic()
    assert errno_of(os.stat, agent.image_path(image_id)) == errno.EIO
    assert time.monotonic() - began < 5
    assert "the server does not do range requests" in agent.log()


@pytest.mark.parametrize(
    ("behaviour", "remedy"),
    [
        (http_server.redirect("https://127.0.0.1:1/"), "Set the url of this source to where"),
        (http_server.gzipped, "Disable that for these files"),
        (http_server.status(403), "Let the user of this source read the file"),
    ],
)
def test_permanent_refusal_is_logged_and_reported_until_it_ends(web, start, behaviour, remedy):
    server, image_id = web
    server.always = behaviour
    agent = begin(start, server)
    for _ in range(2):
        assert errno_of(os.stat, agent.image_path(image_id)) == errno.EIO
    reported = agent.status()["faults"][f"source {server.url}"]
    assert remedy in reported["why"]
    warned = [line for line in agent.log().splitlines() if "Source " in line and remedy in line]
    assert [" WARNING " in line for line in warned] == [True]
    server.always = http_server.status(404)
    assert errno_of(os.stat, agent.image_path(image_id)) == errno.ENOENT
    server.always = http_server.fine
    assert agent.image_path(image_id).read_bytes() == DATA
    assert agent.status()["faults"] == {}


def server_down_and_up(files: dict[str, bytes], port: int, down_s: float):
    """Start the server again on ``port`` after a delay."""

    def serve(is_over: threading.Event) -> None:
        if not is_over.wait(down_s):
            with http_server.serve(files, port=port):
                is_over.wait(30)

    return server_threads.beside(serve)


def test_reads_wait_for_a_source_that_returns_before_the_deadline(images, start):
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        agent = begin(start, server, read_deadline_s=15)
        path = agent.image_path(image_id)
        assert read(path, 0) == chunk(0)
    port = int(server.url.rstrip("/").rpartition(":")[2])
    with server_down_and_up(files, port, 1.2):
        assert read(path, 5) == chunk(5)
        assert path.read_bytes() == DATA
    assert agent.status()["images"][image_id]["failed_reads"] == 0


def test_unreachable_source_causes_eio_and_cached_chunks_are_read(images, start):
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        agent = begin(start, server)
        path = agent.image_path(image_id)
        for chunk_no in range(8):
            read(path, chunk_no)
    pid = agent.worker_pid()
    began = time.monotonic()
    assert errno_of(read, path, 9) == errno.EIO
    assert 0.9 < time.monotonic() - began < 4
    assert [read(path, chunk_no) for chunk_no in range(8)] == [chunk(n) for n in range(8)]
    assert "did not arrive within 1 s" in agent.log()
    hosts.wait_written(agent)
    agent.stop()
    agent.start()  # without any source
    agent.wait_ready()
    assert [read(path, chunk_no) for chunk_no in range(8)] == [chunk(n) for n in range(8)]
    assert os.listdir(path.parent) == [path.name]
    assert agent.worker_pid() != pid


def test_image_cannot_be_attached_while_the_source_is_down(images, start):
    image_id = images.add(DATA)
    with http_server.serve({}) as server:
        pass
    agent = begin(start, server)
    began = time.monotonic()
    assert errno_of(os.stat, agent.image_path(image_id)) == errno.EIO
    assert time.monotonic() - began < 4
    assert server.url in agent.log()


def test_second_source_is_read_when_the_first_is_down(images, start):
    image_id = images.add(DATA)
    with http_server.serve({}) as server:
        pass
    sections = {
        "source_http": {"url": server.url, "timeout_s": 0.3},
        "source_file": {"folder": images.folder},
    }
    agent = start(sources="http,file", sections=sections)
    assert agent.image_path(image_id).read_bytes() == DATA


def test_waiting_reads_end_with_the_agent(web, start):
    """A guest's read that waits for a source must not keep the agent from stopping."""
    server, image_id = web
    agent = begin(start, server, read_deadline_s=30)
    path = agent.image_path(image_id)
    assert read(path, 0) == chunk(0)
    server.always = http_server.slow(20)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(errno_of(read, path, 9)))
    reader.start()
    hosts.wait_until(lambda: agent.status()["images"][image_id]["reads_in_flight"] == 1, "a read")
    began = time.monotonic()
    agent.stop()
    reader.join(10)
    assert time.monotonic() - began < 8
    assert seen and seen[0] in (errno.ENOTCONN, errno.ECONNABORTED)
    assert not agent.is_mounted()
