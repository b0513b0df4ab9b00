# SPDX-License-Identifier: Apache-2.0
"""The actions of a soak: tenants' and operators' operations, in sequence.

A failed action, or a wrong byte on a disk after it, is a finding; the soak continues.
"""

import collections
import functools
import random
import time
from collections.abc import Callable
from collections.abc import Mapping

from openstack import exceptions

from acstor_common import errors
from evaluation.bench import nova_pair
from evaluation.soak import plan
from evaluation.soak import soak_cloud
from tests.fakes import nova_hosts
from tests.lab import runs

MAX_FINDINGS = 50
SHOWN = 1500  # characters from the start and from the end of an error: it may be a log
RELEASED_WITHIN_S = 300.0
GUEST_FLAVOR = "guest"

Note = Callable[[str, float], None]
"""Records a latency: its name, and seconds."""


class Churn:
    """Runs actions on a cloud and collects findings."""

    def __init__(
        self,
        soak: soak_cloud.SoakCloud,
        cluster: nova_hosts.NovaHosts,
        rng: random.Random,
        note: Note,
    ) -> None:
        self._soak, self._cluster, self._rng, self._note = soak, cluster, rng, note
        self._servers: list[nova_hosts.Server] = []
        self._image_ids: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[str] = []
        self._actions: Mapping[str, Callable[[], None]] = {
            "build": self._build,
            "boot-guest": self._boot_guest,
            "delete": self._delete,
            "snapshot": self._snapshot,
            "hard-reboot": self._hard_reboot,
            "stop-and-start": self._stop_and_start,
            "rebuild": self._rebuild,
            "live-migrate": self._live_migrate,
            "upload": self._upload,
            "delete-image": self._delete_image,
            "kill-worker": self._kill_worker,
            "upgrade-agent": self._upgrade_agent,
            "reboot-host": self._reboot_host,
        }

    def step(self) -> str:
        """Run one action; return its name."""
        there = plan.Population(len(self._servers), len(self._image_ids))
        name = plan.next_action(self._rng, there)
        self._attempt(name, self._actions[name])
        return name

    def roll_out(self) -> None:
        """Restart every service once, and every agent with the other version's code."""
        soak = self._soak
        for service in (soak.decision, soak.api, soak.listener):
            self._attempt(f"restart of {service.name}", service.restart)
        for agent in soak.kept_agents:
            self._attempt(f"upgrade of {agent.name}", functools.partial(soak.upgrade, agent))

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        self.counts[name] += 1
        try:
            action()
        except Exception as e:  # a soak goes on
            words = str(e)
            what = words if len(words) < 2 * SHOWN else f"{words[:SHOWN]} … {words[-SHOWN:]}"
            self.add_finding(f"{name}: {type(e).__name__}: {what}")

    def add_finding(self, what: str) -> None:
        """Record a finding."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(what)
            print(f"FOUND {what}", flush=True)

    # Tenants

    def _build(self) -> None:
        self._add_server(self._rng.choice(self._image_ids), self._rng.choice(self._cluster.hosts))

    def _add_server(self, image_id: str, host: nova_hosts.Host) -> None:
        began_s = time.monotonic()
        server = self._cluster.begin(image_id, host)
        self._servers.append(server)
        server.wait("ACTIVE")
        self._note("server ACTIVE", time.monotonic() - began_s)
        self._check(server)

    def _check(self, server: nova_hosts.Server) -> None:
        if not server.host.is_mirrored(server.image_id):
            raise AssertionError(f"{server.id} is not on a mirror of its image")
        if not server.has_bytes_of(server.image_id):
            raise AssertionError(f"the disk of {server.id} has other bytes than its image")

    def _boot_guest(self) -> None:
        host, began_s = self._rng.choice(self._cluster.hosts), time.monotonic()
        with self._cluster.server(self._soak.guest_image_id, host, GUEST_FLAVOR) as server:
            nova_pair.wait_login(server)
            self._note("guest's login prompt", time.monotonic() - began_s)

    def _choose(self) -> nova_hosts.Server:
        return self._rng.choice(self._servers)

    def _delete(self) -> None:
        server = self._choose()
        self._servers.remove(server)
        server.delete()

    def _snapshot(self) -> None:
        server = self._choose()
        began_s = time.monotonic()
        snapshot_id = server.snapshot()
        self._note("snapshot", time.monotonic() - began_s)
        self._cluster.images.map(snapshot_id)
        with self._cluster.server(snapshot_id, self._rng.choice(self._cluster.hosts)) as copy:
            if not copy.has_bytes_of(server.image_id):
                raise AssertionError(f"the snapshot of {server.id} has other bytes than its disk")
        self._delete_released(snapshot_id)

    def _hard_reboot(self) -> None:
        server = self._choose()
        server.hard_reboot()
        self._check(server)

    def _stop_and_start(self) -> None:
        server = self._choose()
        server.client.stop_server(server.id)
        server.wait("SHUTOFF")
        server.client.start_server(server.id)
        server.wait("ACTIVE")
        self._check(server)

    def _rebuild(self) -> None:
        server = self._choose()
        server.image_id = self._rng.choice(self._image_ids)
        server.client.rebuild_server(server.id, server.image_id)
        server.wait("ACTIVE")
        self._check(server)

    def _live_migrate(self) -> None:
        server = self._choose()
        here = server.host
        others = [host for host in self._cluster.hosts if host is not here]
        server.live_migrate(self._rng.choice(others))
        self._check(server)

    def _upload(self) -> None:
        self._image_ids.append(self._cluster.images.new())

    def _delete_image(self) -> None:
        image_id = self._image_ids.pop(0)
        for server in [one for one in self._servers if one.image_id == image_id]:
            self._servers.remove(server)
            server.delete()
        self._delete_released(image_id)

    def _delete_released(self, image_id: str) -> None:
        """Delete an image, which stays protected for a while after its last server."""
        began_s = time.monotonic()

        def is_deleted() -> bool:
            try:
                self._cluster.images.client.delete_image(image_id)
            except exceptions.ForbiddenException:
                return False
            return True

        runs.wait_for(is_deleted, RELEASED_WITHIN_S, f"the release of image {image_id}", str)
        self._note("image released", time.monotonic() - began_s)

    # Operators; the first host's agent restarts only in the roll-out, to show growth

    def _choose_agent(self) -> soak_cloud.KeptAgent:
        return self._rng.choice(self._soak.kept_agents[1:])

    def _kill_worker(self) -> None:
        agent = self._choose_agent()
        processes = agent.processes()
        began_s = time.monotonic()
        self._soak.kill_worker(agent, processes[f"{agent.name} worker"])
        self._note("worker's successor serves", time.monotonic() - began_s)

    def _upgrade_agent(self) -> None:
        self._soak.upgrade(self._choose_agent())

    def _reboot_host(self) -> None:
        agent = self._choose_agent()
        name = agent.machine.name
        theirs = [server for server in self._servers if server.host.name == name]
        try:
            self._soak.reboot(agent)
        except errors.AcstorError:
            self._soak.start_services(agent)  # as systemd would; other actions need the host
            raise
        for server in theirs:
            server.wait("ACTIVE")
            self._check(server)
