# SPDX-License-Identifier: Apache-2.0
"""A log that nobody reads, as of a stuck journald or container runtime."""

import fcntl
import os
import pathlib
import uuid
from collections.abc import Iterator

import pytest

from acstor_common import errors
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

DATA = local.random_bytes(1 << 20)
PIPE_BYTES = 8192  # two pages: poll calls a pipe full whose last page is in use
LIFE_S = 300.0
LINES = 100


@pytest.fixture
def log_pipe(tmp_path: pathlib.Path) -> Iterator[int]:
    """Make the log of the agent h1 a pipe; return its end to read, which does not wait."""
    path = tmp_path / "h1" / "agent" / "agent.log"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield pipe
    finally:
        os.close(pipe)


def fill_log(agent: agents.Agent) -> None:
    """Have the agent log more warnings than the pipe takes."""
    for _ in range(LINES):
        with pytest.raises(errors.Unusable):
            agents.request(agent.control_socket, "detach-image", image_id=str(uuid.uuid4()))


def test_guests_read_while_nobody_reads_the_log(tmp_path, images, log_pipe):
    image_id = images.add(DATA)
    with local.agent(tmp_path / "h1", images) as agent, hosts.bounded(agent, LIFE_S):
        agent.log = lambda: "a pipe"  # type: ignore[method-assign]
        agent.wait_ready()
        fill_log(agent)
        assert agent.image_path(image_id).read_bytes() == DATA
        killed = agent.worker_pid()
        os.kill(killed, 9)
        hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker", 60)
        agent.wait_ready()
        assert hosts.read_direct(agent.image_path(image_id), 0, 1 << 20) == DATA
        assert len(os.read(log_pipe, 1 << 20)) > PIPE_BYTES // 4
        fill_log(agent)
        assert b"log lines lost" in os.read(log_pipe, 1 << 20)
