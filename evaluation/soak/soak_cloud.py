# SPDX-License-Identifier: Apache-2.0
"""A soak's cloud: OpenStack services, acstor on all compute hosts, many images.

Each agent has a service manager that keeps its mount, as systemd does, so that an agent can be
upgraded and killed under running servers.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from typing import cast

from acstor_common import errors
from evaluation.soak import samples
from tests.fakes import descriptor_keeper
from tests.fakes import next_version
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import ini

RECONCILE_S = 300
PREPARED_WITHIN_S = 300.0
HOST_UP_S = 240.0
PROBE_S = 60.0
PROBE_READS = 64
PROBE = """\
import mmap, os, random, statistics, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
blocks, page, took = os.fstat(fd).st_size // 4096, mmap.mmap(-1, 4096), []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    assert os.preadv(fd, [page], 4096 * random.randrange(blocks)) == 4096
    took.append(1000 * (time.perf_counter() - began))
print(statistics.median(took), max(took))
"""


class KeptAgent(acstor.Agent):
    """An agent with a service manager that keeps its mount.

    :ivar tree: folder of the code that its next start runs; None for this checkout
    """

    def __init__(self, host: compute.Compute, lab: cloud.Cloud) -> None:
        super().__init__(host, lab)
        self.tree: pathlib.Path | None = None
        self._manager = descriptor_keeper.DescriptorKeeper(lab.folder / f"{host.host}.notify")

    def __enter__(self) -> "KeptAgent":
        self._manager.__enter__()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=self.name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._manager.__exit__()

    def _keep(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                self._manager.listen("a message that is never sent", 0.2)
            del self._manager.reported[:-1]

    def environment(self) -> Mapping[str, str]:
        """Return the environment with its code's path."""
        return {"PYTHONPATH": str(self.tree)} if self.tree else {}

    def start(self) -> None:
        """Start it, if it is stopped, with the mount that its manager keeps."""
        if self.pid is not None:
            return
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.configure()
        self._process = self._manager.start(self.argv(), self.log_path, self._environment())
        runs.record(self._process.pid, self._record)

    def close_mount(self) -> None:
        """Let the manager close the mount, like a power failure of the host."""
        self._manager.drop()

    def processes(self) -> dict[str, int]:
        """Return the pids of its running supervisor and worker."""
        if (supervisor := self.pid) is None:
            return {}
        found = {f"{self.name} supervisor": supervisor}
        if children := samples.children_of(supervisor):
            found[f"{self.name} worker"] = children[-1]
        return found


class SoakImages(nova_hosts.Images):
    """Images prepared by the listener, as in a real cloud."""

    def map(self, image_id: str) -> str:
        """Wait until the listener has prepared the image."""

        def is_prepared() -> bool:
            record = self.client.get(f"/images/{image_id}").json()
            return bool(record.get("acstor_state") == "ready")

        runs.wait_for(is_prepared, PREPARED_WITHIN_S, f"image {image_id}", str)
        return image_id


class SoakCloud(acstor.Acstor):
    """All services of the cloud."""

    def __init__(self, lab: cloud.Cloud) -> None:
        super().__init__(lab, KeptAgent)
        self.lab = lab
        self.kept_agents = [cast(KeptAgent, agent) for agent in self.agents]
        self.listener = acstor_glance.Listener(
            "acstor-listener", lab, lab.folder, {tuned.RECONCILE_INTERVAL_S: RECONCILE_S}
        )
        self.next_tree = next_version.make(lab.folder / "next")
        self.guest_image_id = self.probe_image_id = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[nova_hosts.NovaHosts]:
        """Run the cloud until the block ends."""
        lab = self.lab
        lab.glance.changes = ini.merged(
            acstor_glance.plugin_sections(lab, lab.folder / "acstor-plugin"),
            {"DEFAULT": acstor_glance.PROTECTIONS},
        )
        restarts_guests = {"DEFAULT": {"resume_guests_state_on_host_boot": True}}
        with contextlib.ExitStack() as stack:
            stack.callback(lab.stop)
            for host, one in zip(lab.computes, self.kept_agents, strict=True):
                stack.enter_context(one)
                host.changes = ini.merged(compute.acstor_options(one.agent), restarts_guests)
            lab.start_compute_services()
            self.api.register()
            stack.callback(self.stop)
            cloud.start(self.services())
            cloud.wait_ready(self.services())
            images = SoakImages(lab, lab.folder / "acstor-glance")
            hosts = [
                nova_hosts.Host(host, one.agent)
                for host, one in zip(lab.computes, self.kept_agents, strict=True)
            ]
            found = nova_hosts.NovaHosts(lab, hosts, images)
            self.probe_image_id = images.new()
            with guest_image.ensure().raw.open("rb") as raw:
                self.guest_image_id = images.map(images.add(raw))
            yield found

    def processes(self) -> dict[str, int]:
        """Return the pids of acstor's processes, by name."""
        found: dict[str, int] = {}
        for one in self.kept_agents:
            found |= one.processes()
        for service in (self.decision, self.listener):
            if pid := service.pid:
                found[service.name] = pid
        if (pid := self.api.pid) and (workers := samples.children_of(pid)):
            found[self.api.name] = workers[0]
        return found

    def probe(self, agent: KeptAgent) -> tuple[float, float]:
        """Return median and maximum of 4 KiB reads through a host's mirror, in ms.

        :raises errors.Unusable: a read failed
        :raises subprocess.TimeoutExpired: they took too long
        """
        path = agent.agent.image_path(self.probe_image_id)
        command = [*agent.machine.enter(), "python3", "-c", PROBE, str(path), str(PROBE_READS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        if done.returncode:
            raise errors.Unusable(f"a read through the mirror of {agent.name}", done.stderr[-500:])
        median, longest = map(float, done.stdout.split())
        return median, longest

    def reboot(self, agent: KeptAgent) -> None:
        """Crash a host, and boot it again."""
        host = next(one for one in self.lab.computes if one.machine is agent.machine)
        host.crash()
        agent.close_mount()
        runs.wait_for(lambda: agent.pid is None, HOST_UP_S, f"the end of {agent.name}", agent.log)
        host.machine.boot()
        self.start_services(agent)

    def start_services(self, agent: KeptAgent) -> None:
        """Start a host's agent, then the compute services that are stopped."""
        agent.start()
        agent.wait_ready(HOST_UP_S)
        self.lab.start_compute_services()

    def upgrade(self, agent: KeptAgent) -> None:
        """Restart an agent with the other version's code; its mount stays."""
        agent.tree = None if agent.tree else self.next_tree
        agent.request_stop()
        runs.wait_for(lambda: agent.pid is None, HOST_UP_S, agent.name, agent.log)
        agent.start()
        agent.wait_ready(HOST_UP_S)

    def kill_worker(self, agent: KeptAgent, worker: int) -> None:
        """Kill an agent's worker; wait until its successor serves."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        successor = f"{agent.name} worker"
        runs.wait_for(
            lambda: agent.processes().get(successor, worker) != worker and agent.is_ready(),
            HOST_UP_S,
            agent.name,
            agent.log,
        )
