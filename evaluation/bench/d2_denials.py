# SPDX-License-Identifier: Apache-2.0
"""D2: a guest's reads during each denial-of-service attack.

One real agent in the default mode, a cached image, and an uncached compressed qcow2. Reads of 4
KiB, one at a time, at rest and then during each attack of ``tests/fakes/dos_attacks.py``: an image
of 2 TiB is attached, another guest reads clusters that decode slowly, 48 hosts of the v-node table
send small messages, a local user scrapes the metrics with 16 connections, strangers occupy the
connections of this host's vault. The values are the worst p99 of cached reads in milliseconds, and
the worst p99 of uncached reads over that at rest. Attackers share the processors with the agent and
are niced.
"""

import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator

from evaluation.bench import harness
from tests.fakes import dos_attacks
from tests.fakes import flood
from tests.fakes import flood_members
from tests.fakes import hosts
from tests.fakes import qcow2_images
from tests.lab import agents
from tests.lab import local
from tests.lab import vaults

CHUNKS = 480
"""Uncached reads during each attack."""
MEMBERS = [f"bad{number}" for number in range(48)]
KINDS = ("pings", "cancels", "hurries", "gets")
PEER_WEIGHT, OWN_WEIGHT = 1, 1000
LIFE_S = 300.0
BEGIN_S = 0.3

Attack = Callable[[], contextlib.AbstractContextManager[object]]


@harness.measures("D2", "D2b")
def run(say: harness.Say) -> harness.Result:
    """Read at rest, then during each attack."""
    cached_ms: dict[str, float] = {}
    uncached_ms: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="acstor-d2-") as text, contextlib.ExitStack() as stack:
        lab = Lab(pathlib.Path(text), stack)
        for number, (name, attack) in enumerate(lab.attacks().items()):
            with attack():
                time.sleep(BEGIN_S)
                cached_ms[name] = 1e3 * dos_attacks.p99_s(
                    dos_attacks.reads(lab.cached, lab.cached_data)
                )
                uncached_ms[name] = 1e3 * dos_attacks.p99_s(lab.uncached_reads(number))
            say(f"{name}: p99 {cached_ms[name]:.2f} ms cached, {uncached_ms[name]:.2f} ms uncached")
    worst = max(cached_ms, key=lambda name: cached_ms[name])
    ratio = max(uncached_ms.values()) / uncached_ms["rest"]
    details = {"cached_p99_ms": cached_ms, "uncached_p99_ms": uncached_ms, "worst": worst}
    return harness.Result({"D2": cached_ms[worst], "D2b": ratio}, details)


class Lab:
    """The attacked agent, and the images of its guests."""

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._images = local.ImageFolder(folder / "images")
        self._metrics_port = local.unused_port()
        cloud = hosts.cloud(
            folder,
            self._images,
            ("h1",),
            in_ring_only={name: number for number, name in enumerate(MEMBERS, 1)},
            security="secure",
            life_s=LIFE_S,
            metrics_listen=f"127.0.0.1:{self._metrics_port}",
            variants="no-read-ahead",
        )
        self._cloud = stack.enter_context(cloud)
        weights = dict.fromkeys(MEMBERS, PEER_WEIGHT) | {"h1": OWN_WEIGHT}
        ports = {**self._cloud.ports, **{name: n for n, name in enumerate(MEMBERS, 1)}}
        hosts.write_ring(self._cloud.ring_file, ports, 2, weights)
        hosts.wait_until(lambda: self.agent.status()["ring"]["epoch"] == 2, "the table")
        self.cached_data = local.random_bytes(4 << 20)
        self._cached_id = self._images.add(self.cached_data)
        self.cached = self.agent.image_path(self._cached_id)
        if self.cached.read_bytes() != self.cached_data:
            raise harness.CannotRun("the cached image has other bytes")
        lines = 2 * 7 * CHUNKS * dos_attacks.CHUNK // 36
        text = b"".join(b"line %d of text that compresses\n" % number for number in range(lines))
        self._text = text[: len(text) // dos_attacks.CHUNK * dos_attacks.CHUNK]
        self._uncached = self.agent.image_path(qcow2_images.add(self._images, self._text))

    @property
    def agent(self) -> agents.Agent:
        """The attacked agent."""
        return self._cloud["h1"]

    def uncached_reads(self, turn: int) -> list[float]:
        """Return the latencies of chunks that no other turn reads."""
        chunks = range(2 * turn * CHUNKS + 1, 2 * (turn + 1) * CHUNKS, 2)
        return dos_attacks.chunk_times_s(self._uncached, self._text, chunks)

    def attacks(self) -> dict[str, Attack]:
        """Return the context manager of each attack; the first one is no attack."""
        return {
            "rest": contextlib.nullcontext,
            "attach of 2 TiB": self._attach,
            "slow clusters": self._slow_clusters,
            "48 members": lambda: flood_members.flooding(
                self._cloud.ports["h1"], "h1", self._cached_id, MEMBERS, KINDS, processes=2
            ),
            "16 scrapers": lambda: dos_attacks.scraping(self._metrics_port),
            "unauthenticated vault connections": self._strangers,
        }

    @contextlib.contextmanager
    def _attach(self) -> Iterator[None]:
        large = self.agent.image_path(dos_attacks.large_image(self._images))
        with dos_attacks.doing(lambda: os.close(os.open(large, os.O_RDONLY))):
            yield

    @contextlib.contextmanager
    def _slow_clusters(self) -> Iterator[None]:
        path = self.agent.image_path(dos_attacks.slow_image(self._images))
        with flood.reading(path, 4 * dos_attacks.SLOW_CLUSTERS, 4096, dos_attacks.CLUSTER // 4):
            yield

    @contextlib.contextmanager
    def _strangers(self) -> Iterator[None]:
        vault = vaults.Vault(self._folder / "h2", "h2")
        vault.start()
        try:
            with dos_attacks.SilentConnections(vault.port):
                yield
        finally:
            vault.close()
