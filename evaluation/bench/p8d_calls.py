# SPDX-License-Identifier: Apache-2.0
"""P8d: the Python calls of agents for one cold read of 64 KiB from a peer.

The file and the connections are open.  Calls of acstor's own functions in the event loop count,
from the start of the read until AFTER_S later; calls of libraries and in threads do not.  The
median of READS reads counts, each of another segment.

A *return* is a call into a module that was entered and left before; *lines* are those of the called
functions, each once.
"""

import contextlib
import mmap
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from evaluation.bench import loopback
from tests.lab import agents
from tests.lab import local

IMAGE_BYTES = 128 * geometry.MIB
READ_BYTES = geometry.DEFAULT_CHUNK_BYTES
READS = 15
AFTER_S, APART_S = 0.02, 0.2
"""Chunks are stored after the first; the second also covers delayed announcements."""
SWITCH_S = 2.0
"""An agent's event loop wakes at least this often."""
TRACER = pathlib.Path(__file__).with_name("call_tracer")


class Call(NamedTuple):
    """A call: time, file and lines."""

    at_s: float
    module: str
    first: int
    last: int


@harness.measures("P8d")
def run(say: harness.Say) -> harness.Result:
    """Trace reads of one image that another host has in its cache."""
    with tempfile.TemporaryDirectory(prefix="acstor-p8d-") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        spans, traces = traced(folder, images, image_id)
    figures: dict[str, dict[str, float]] = {}
    for host, calls in traces.items():
        reads = [[call for call in calls if span[0] <= call.at_s <= span[1]] for span in spans]
        each = [figures_of(read) for read in reads]
        figures[host] = {key: statistics.median(one[key] for one in each) for key in each[0]}
        say(f"{host}: " + ", ".join(f"{key} {value:g}" for key, value in figures[host].items()))
    reader, sender = figures["reader"], figures["giver"]
    values = (*reader.values(), sender["calls"], sender["modules"])
    return harness.Result({"P8d": values}, figures)


def traced(
    folder: pathlib.Path, images: local.ImageFolder, image_id: ids.ImageId
) -> tuple[list[tuple[float, float]], dict[str, list[Call]]]:
    """Return start and end of each read, and all calls of both hosts."""
    hosts = {"giver": loopback.HOME_VNODES, "reader": 1}
    cloud = loopback.Cloud(folder / "cloud", images, hosts, "secure", 2 * IMAGE_BYTES)
    spans: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing(folder))
        sender, reader = (stack.enter_context(cloud.running(host)) for host in hosts)
        for agent in (sender, reader):
            loopback.attach(agent, image_id)
        loopback.read(sender.image_path(image_id), loopback.whole(IMAGE_BYTES))
        path, apart = reader.image_path(image_id), IMAGE_BYTES // (READS + 1)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        stack.callback(os.close, fd)
        buffer = mmap.mmap(-1, READ_BYTES)  # O_DIRECT needs alignment
        os.preadv(fd, [buffer], 0)  # opens the connections
        (folder / "on").touch()
        time.sleep(SWITCH_S)
        for number in range(1, READS + 1):
            began_s = time.monotonic()
            os.preadv(fd, [buffer], number * apart)
            time.sleep(AFTER_S)
            spans.append((began_s, time.monotonic()))
            time.sleep(APART_S)
        (folder / "on").unlink()
        time.sleep(SWITCH_S)
        calls = {"reader": calls_of(folder, reader), "giver": calls_of(folder, sender)}
    return spans, calls


@contextlib.contextmanager
def tracing(folder: pathlib.Path) -> Iterator[None]:
    """Let agents started in the block record calls while ``on`` exists in the folder."""
    former = dict(os.environ)
    os.environ["ACSTOR_CALLS"] = str(folder)
    os.environ["PYTHONPATH"] = f"{TRACER}:{former.get('PYTHONPATH', '')}".rstrip(":")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


def calls_of(folder: pathlib.Path, agent: agents.Agent) -> list[Call]:
    """Return the recorded calls of an agent's worker.

    :raises harness.CannotRun: it recorded nothing
    """
    path = folder / f"{agent.worker_pid()}.calls"
    if not path.exists():
        raise harness.CannotRun(f"{agent.host.name} recorded no calls")
    lines = (line.split(" ", 4) for line in path.read_text().splitlines())
    return [Call(float(at), file, int(first), int(last)) for at, file, first, last, _ in lines]


def figures_of(calls: Sequence[Call]) -> dict[str, float]:
    """Return the figures of one read's calls.

    >>> calls = [Call(0, module, 1, 9) for module in "aab"] + [Call(0, "a", 1, 9)]
    >>> figures_of(calls)
    {'calls': 4, 'modules': 2, 'lines': 18, 'returns': 1}
    """
    functions = {(call.module, call.first): call.last - call.first + 1 for call in calls}
    entered, returns, now = set[str](), 0, ""
    for call in calls:
        if call.module != now:
            returns += call.module in entered
            now = call.module
            entered.add(now)
    return {
        "calls": len(calls),
        "modules": len(entered),
        "lines": sum(functions.values()),
        "returns": returns,
    }
