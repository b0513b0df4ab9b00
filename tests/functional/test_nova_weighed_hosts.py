# SPDX-License-Identifier: Apache-2.0
"""The scheduler prefers the compute host that caches a server's image, if it knows that host.

Real nova-scheduler with the weigher, two compute hosts with agents, and the decision service.

"""

import contextlib
import signal
import time

import pytest

from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.functional import test_nova_weigher
from tests.lab import runs
from tests.lab.openstack import acstor
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import ini

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

STALE_S = 20.0
"""Age from which the weigher ignores a table."""


class Scheduling:
    """Two compute hosts with acstor, the decision service, and a scheduler with the weigher."""

    def __init__(self, lab: cloud.Cloud, parts: acstor.Acstor) -> None:
        self.lab, self.api = lab, parts.api
        found = [
            nova_hosts.Host(host, one.agent)
            for host, one in zip(lab.computes, parts.agents, strict=True)
        ]
        self.images = nova_hosts.Images(lab, lab.folder / "acstor-glance")
        self.cluster = nova_hosts.NovaHosts(lab, found, self.images)
        self._session = lab.session("admin")

    def warm(self, host: nova_hosts.Host) -> str:
        """Return an image that is fully cached on one host, as the service knows."""
        image_id = self.images.new()
        host.agent.ctl("pre-seed", image_id)
        is_known = lambda: self.locality(image_id).get(host.name) == 1.0  # noqa: E731
        runs.wait_for(is_known, 120, f"the locality of image {image_id}", self.api.log)
        return image_id

    def locality(self, image_id: str) -> dict[str, float]:
        """Return the cached share of an image on each host, as an administrator sees it."""
        url = f"{self.api.url}/v1/images/{image_id}/locality"
        found = self._session.get(url).json()["hosts"]
        return {one["host"]: one["image_share"] for one in found}

    @contextlib.contextmanager
    def server(self, image_id: str):
        """Create a server without a host constraint; yield the name of its host."""
        made = self.cluster.client.create_server(
            name="weighed",
            image_id=image_id,
            flavor_id=self.cluster.flavor("tiny"),
            networks="none",
        )
        server = nova_hosts.Server(self.cluster, made.id, image_id)
        try:
            server.wait("ACTIVE")
            yield server.host.name
        finally:
            server.delete()


@pytest.fixture(scope="module")
def scheduling(compute_lab):
    parts = acstor.Acstor(compute_lab)
    services = [parts.decision, parts.api, *parts.agents]
    options = {
        host: ini.merged(compute.acstor_options(one.agent), {"DEFAULT": {"debug": True}})
        for host, one in zip(compute_lab.computes, parts.agents, strict=True)
    }
    own = {
        "filter_scheduler": {"weight_classes": test_nova_weigher.WEIGHERS},
        "acstor": {"decision_url": parts.api.url},
    }
    with contextlib.ExitStack() as stack:
        parts.clear()
        parts.api.register()
        for service in services:
            stack.callback(service.stop)
        cloud.start(services)
        cloud.wait_ready(services)
        nova_hosts.configure(options)
        for host in compute_lab.computes:
            host.start()
        for host in compute_lab.computes:
            nova_hosts.wait_started(host)
        stack.enter_context(compute_lab.nova.scheduler.changed(own))
        nova_hosts.wait_subscribed(compute_lab)
        yield Scheduling(compute_lab, parts)


@pytest.mark.timeout(1200)
def test_server_is_scheduled_to_the_host_that_caches_its_image(scheduling):
    """Even if that host has less free memory: stock Nova would choose the emptier one."""
    for host in scheduling.cluster.hosts:
        image_id = scheduling.warm(host)
        with scheduling.server(image_id):  # the scheduler authenticates first, without a wait
            for _ in range(2):
                with scheduling.server(image_id) as chosen:
                    assert chosen == host.name


@pytest.mark.timeout(1200)
@pytest.mark.nightly
@pytest.mark.parametrize("how", ["frozen", "stopped"])
def test_scheduling_works_as_in_stock_nova_without_the_service(scheduling, how):
    first, second = scheduling.cluster.hosts
    image_id = scheduling.warm(first)
    with scheduling.server(image_id), without(scheduling.api, how):
        time.sleep(STALE_S)
        with scheduling.cluster.server(image_id, first):
            began_s = time.monotonic()
            with scheduling.server(image_id) as chosen:
                took_s = time.monotonic() - began_s
            assert chosen == second.name  # it is emptier
            assert took_s < nova_hosts.DEADLINE_S / 2
    assert "hosts are not weighed by the images" in scheduling.lab.nova.scheduler.log()


@contextlib.contextmanager
def without(api, how):
    """Make the REST API unavailable for a block."""
    if how == "stopped":
        api.stop()
        try:
            yield
        finally:
            api.start()
            api.wait_ready()
        return
    api.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        api.signal(signal.SIGCONT)
        api.wait_ready()
