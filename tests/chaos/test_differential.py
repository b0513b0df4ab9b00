# SPDX-License-Identifier: Apache-2.0
"""Differential test: under all faults together a mirror reads like the image's file.

Three agents with caches far too small serve one image to random readers, while workers are killed,
stopped and frozen, bits flip in their slab files, a peer lies, the ring changes, and the source
fails every fifth request.  No read may fail and no byte may differ.

One seed decides everything; ACSTOR_TEST_SEED sets another one.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Callable

from acstor_common.model import geometry
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import lying_peer
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
SEED = int(os.environ.get("ACSTOR_TEST_SEED", "1"))
CHAOS_S, MOST_S = 7.0, 40.0
"""Duration of the chaos, and its limit: a busy machine needs longer to reach each fault."""
LIFE_S = 140.0
"""MOST_S, and all waits after it."""
OPTIONS = {
    "cache_limit_bytes": 4 * MIB,
    "constants": {tuned.READ_AHEAD_LIMIT_BYTES: MIB},
}


def image_bytes() -> bytes:
    """Return an image with zeros, equal chunks, and an odd end."""
    unique = local.random_bytes(16 * MIB, seed=SEED, zero_share=0.1)
    return unique + unique[: 3 * MIB] + unique[5 * MIB + 4096 : 6 * MIB] + b"the end"


def wrong_bytes(handler, asked: http_server.ClientRequest) -> None:
    """Send a well-formed response with one flipped bit."""
    at = asked.start + len(asked.part) // 2
    body = asked.body[:at] + bytes([asked.body[at] ^ 4]) + asked.body[at + 1 :]
    http_server.fine(
        handler, http_server.ClientRequest(body, asked.start, asked.stop, asked.headers)
    )


class FlakySource:
    """Every fifth response has one of these faults."""

    FAULTS = (
        http_server.status(503),
        http_server.half_a_body,
        http_server.hang_up,
        http_server.garbage,
        http_server.slow(0.1),
        wrong_bytes,
    )

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.faults = 0

    def __call__(self, handler, asked: http_server.ClientRequest) -> None:
        """Respond, correctly in four cases of five."""
        if not handler.path.endswith(".raw") or self._rng.random() >= 0.2:
            http_server.fine(handler, asked)
            return
        self.faults += 1
        self._rng.choice(self.FAULTS)(handler, asked)


class Chaos:
    """The faults; each method is one fault that is over when it returns."""

    def __init__(self, cloud: hosts.Cloud, peer: lying_peer.LyingPeer, rng: random.Random) -> None:
        self._cloud, self._peer, self._rng = cloud, peer, rng
        self._epoch = 1
        self._left: list[Callable[[agents.Agent], None]] = []
        self.done: list[str] = []

    def __call__(self) -> None:
        """Do one fault; each comes once, in random order, before one repeats."""
        faults = [self.kill_worker, self.stop_worker, self.freeze_worker, self.flip_bits, self.ring]
        self._left = self._left or self._rng.sample(faults, len(faults))
        fault = self._left.pop()
        agent = self._cloud[self._rng.choice(sorted(self._cloud.agents))]
        self.done.append(f"{fault.__name__} on {agent.host.name}")
        fault(agent)

    def _worker_pid(self, agent: agents.Agent) -> int:
        hosts.wait_until(lambda: agent.worker_pid() is not None, "a worker")
        return agent.worker_pid() or 0

    def kill_worker(self, agent: agents.Agent) -> None:
        """SIGKILL."""
        hosts.kill(self._worker_pid(agent))

    def stop_worker(self, agent: agents.Agent) -> None:
        """SIGTERM: it may finish its writes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker_pid(agent), signal.SIGTERM)

    def freeze_worker(self, agent: agents.Agent) -> None:
        """For longer than its peers' time-out."""
        with hosts.frozen(self._worker_pid(agent)):
            time.sleep(0.7)

    def flip_bits(self, agent: agents.Agent) -> None:
        """Damage the slab files while there is no worker."""
        with hosts.frozen(agent.pid):
            pid = agent.worker_pid()
            hosts.kill(pid)
            hosts.wait_until(lambda: is_dead(pid), "the end of the worker")
            for slab in sorted((agent.folder / "cache").glob("slab-*.acslab")):
                self._flip(slab)

    def _flip(self, slab: pathlib.Path) -> None:
        with slab.open("r+b") as file:
            size_bytes = slab.stat().st_size
            for _ in range(8):
                at = self._rng.randrange(size_bytes)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << self._rng.randrange(8)]))

    def ring(self, agent: agents.Agent) -> None:
        """Remove the liar from the ring or put it back, and sometimes a host."""
        self._epoch += 1
        ports = dict(self._cloud.ports)
        if self._rng.random() < 0.5:
            del ports[agent.host.name]
        if self._rng.random() < 0.7:
            ports["liar"] = self._peer.port
        hosts.write_ring(self._cloud.ring_file, ports, self._epoch)


def is_dead(pid: int | None) -> bool:
    """Return whether a process has ended, even if its parent has not reaped it."""
    try:
        return ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_mirrors_read_like_the_file_under_all_faults(tmp_path):
    print(f"ACSTOR_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(image_bytes())
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(http_server.serve(files))
        peer = stack.enter_context(lying_peer.hostile_peer("liar", SEED))
        source = hosts.http_options(server.url, 2)
        ghosts = {"liar": peer.port}
        cloud = stack.enter_context(
            hosts.cloud(tmp_path, images, in_ring_only=ghosts, life_s=LIFE_S, **OPTIONS, **source)
        )
        mirrors = [agent.image_path(image_id) for agent in cloud.agents.values()]
        for mirror in mirrors:
            mirror.stat()
        server.always = flaky = FlakySource(rng)
        readers = stack.enter_context(
            guest_readers.Readers(images.path(image_id), mirrors, SEED, threads=6)
        )
        chaos = Chaos(cloud, peer, rng)
        began_s = time.monotonic()
        while (lasted_s := time.monotonic() - began_s) < CHAOS_S or (
            lasted_s < MOST_S and not all(what_happened(cloud, peer, flaky).values())
        ):
            time.sleep(rng.uniform(0.05, 0.5))
            chaos()
        tally = readers.stop()
        print(*chaos.done, tally, sep="\n")
        assert (tally.errors, tally.wrong) == ([], [])
        for mirror in mirrors:
            subprocess.run(["cmp", mirror, images.path(image_id)], check=True, timeout=20)
        assert tally.reads > 100
        assert all(what_happened(cloud, peer, flaky).values())
        assert any(status["cache"]["evictions"] for status in cloud.statuses().values())
    assert not hosts.mounts(tmp_path)


def what_happened(
    cloud: hosts.Cloud, peer: lying_peer.LyingPeer, flaky: FlakySource
) -> dict[str, bool]:
    """Return which faults occurred: without faults the test proves nothing."""
    logs = "".join(agent.log() for agent in cloud.agents.values())
    return {
        "the source failed": flaky.faults > 10,
        "a peer lied": peer.gets > 0,  # each lie earns a backoff
        "a worker was started anew": "starting another" in logs,
        "damage was found": "is damaged in slab file" in logs,
    }
