# SPDX-License-Identifier: Apache-2.0
"""A cloud of the lab whose hosts read one region at once: what P1 and its kin share."""

import contextlib
import hashlib
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from acstor_common import ids
from tests.bench import harness
from tests.lab import agents
from tests.lab import image_server
from tests.lab import local
from tests.lab import network

READ_BYTES = 1 << 20


class Cloud:
    """Hosts with agents, and an image server, joined by links of one rate.

    :param hosts: how many
    :param link_mbit: rate of every link, the image server's as well
    """

    def __init__(self, hosts: int, link_mbit: float, data: bytes, shared: bool) -> None:
        self._network = network.Network(hosts, link_mbit, link_mbit)
        self._data = data
        self._shared = shared
        self.agents: list[agents.Agent] = []
        self.image_id = ids.ImageId("")

    @contextlib.contextmanager
    def running(self, **options: object) -> Iterator["Cloud"]:
        """Start everything; the caches are empty, the image is attached everywhere."""
        with contextlib.ExitStack() as stack:
            net = stack.enter_context(self._network)
            images = local.ImageFolder(net.run.folder / "images")
            self.image_id = images.add(self._data)
            server = stack.enter_context(image_server.ImageServer(net.source, images.folder))
            ring = agents.write_ring(net.hosts, net.run.folder / "ring.json")
            self.server = server
            self.agents = [
                stack.enter_context(
                    agents.Agent(host, server.url, ring if self._shared else None, **options)
                )
                for host in net.hosts
            ]
            for agent in self.agents:
                agent.wait_ready()
                os.stat(agent.image_path(self.image_id))  # attaches it
            self._before = net.link_bytes()["source"].sent
            self._requests_before = len(list(server.requests()))
            yield self

    def source_bytes(self) -> int:
        """Return what of the image's bytes has left the server since the start, as it logged."""
        later = list(self.server.requests())[self._requests_before :]
        return sum(request.body_bytes_sent for request in later)

    def read_all(self, region_bytes: int, delays_s: Sequence[float]) -> list[dict[str, float]]:
        """Have every host read the region, from its own start on; return what each one saw.

        :raises harness.CannotRun: a host read something else than the image has
        """
        wanted = hashlib.blake2b(self._data[:region_bytes]).digest()
        seen: list[dict[str, float]] = [{} for _ in self.agents]
        barrier = threading.Barrier(len(self.agents))

        def read(number: int, path: pathlib.Path) -> None:
            barrier.wait()
            time.sleep(delays_s[number])
            began = time.monotonic()
            digest = hashlib.blake2b()
            with open(path, "rb", buffering=0) as file:
                for offset in range(0, region_bytes, READ_BYTES):
                    digest.update(os.pread(file.fileno(), READ_BYTES, offset))
            took_s = time.monotonic() - began
            seen[number] = {"began_s": began, "took_s": took_s, "ok": digest.digest() == wanted}

        threads = [
            threading.Thread(target=read, args=(number, agent.image_path(self.image_id)))
            for number, agent in enumerate(self.agents)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not all(host.get("ok") for host in seen):
            raise harness.CannotRun(f"a host read wrong bytes, or nothing: {seen}")
        return seen

    def status(self) -> list[dict[str, Any]]:
        """Return what each agent says of itself."""
        return [agent.status() for agent in self.agents]

    def cpu_seconds(self) -> float:
        """Return the processor time that the agents have used so far, all together."""
        return sum(harness.cpu_seconds(agent.pid) for agent in self.agents)


def total_by_origin(statuses: Sequence[dict[str, Any]], family: str) -> dict[str, int]:
    """Add up the bytes by origin of all agents; family is "read" or "fetched"."""
    origins = statuses[0][family]
    return {name: sum(s[family][name]["bytes"] for s in statuses) for name in origins}
