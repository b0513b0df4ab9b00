# SPDX-License-Identifier: Apache-2.0
"""Servers boot on hosts whose user may read nothing in Glance: each image is read by grants.

Real Nova, Keystone, Glance, gateway and decision service; two compute hosts with agents.
"""

import contextlib
import pathlib
import time
from collections.abc import Iterator

import pytest
import requests
from oslo_config import cfg

from acstor_agent.cloud import bus
from acstor_agent.cloud import grant_client
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.wire import image_grants
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.functional import test_glance_roles
from tests.lab import runs
from tests.lab.openstack import acstor
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import image_stores

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

RANGE = "bytes=0-99"
TABLE_S = 60.0


class Granted:
    """The services, and two compute hosts that read by grants."""

    def __init__(
        self, lab: cloud.Cloud, parts: acstor.Acstor, gateway: acstor_gateway.Gateway, user: str
    ) -> None:
        self.lab, self.parts, self.gateway, self.user = lab, parts, gateway, user
        found = [
            nova_hosts.Host(host, one.agent)
            for host, one in zip(lab.computes, parts.agents, strict=True)
        ]
        self.images = nova_hosts.Images(lab, lab.folder / "acstor-glance")
        self.cluster = nova_hosts.NovaHosts(lab, found, self.images)

    def token(self) -> str:
        """Return a token of the agents' user."""
        options = api.credentials(self.lab.keystone.auth_url, self.user)
        said = requests.post(
            f"{self.lab.keystone.auth_url}/auth/tokens", json=_password_of(options), timeout=30
        )
        return said.headers["X-Subject-Token"]

    def read(self, image_id: str, headers: dict[str, str]) -> requests.Response:
        """Ask the gateway for a range of an image."""
        url = f"{self.gateway.url}/v1/images/{image_id}/file"
        named = {"X-Auth-Token": self.token(), "Range": RANGE, **headers}
        return requests.get(url, headers=named, timeout=30)

    def identity(self, host: nova_hosts.Host) -> identity_files.IdentityFiles:
        """Return the certificate and key of a host."""
        files = identity_files.files_in(host.agent.identity)
        return identity_files.IdentityFiles(ids.parse_host_id(host.name), files)


def _password_of(options: dict[str, object]) -> dict[str, object]:
    domain = {"id": options["user_domain_id"]}
    user = {"name": options["username"], "password": options["password"], "domain": domain}
    project = {"name": options["project_name"], "domain": domain}
    identity = {"methods": ["password"], "password": {"user": user}}
    return {"auth": {"identity": identity, "scope": {"project": project}}}


@pytest.fixture(scope="module")
def granted(compute_lab: cloud.Cloud) -> Iterator[Granted]:
    lab = compute_lab
    with contextlib.ExitStack() as stack:
        user = stack.enter_context(
            test_glance_roles.user_with(lab, "service", image_grants.HOST_ROLE)
        )
        parts = acstor.Acstor(
            lab, type("HostAgent", (acstor.Agent,), {"user": user, "source": "gateway"})
        )
        parts.api.changes = {"nova": nova_hosts.service_user(lab)}
        gateway = stack.enter_context(acstor_gateway.running(lab))
        gateway.register()
        parts.api.register()
        services = [parts.decision, parts.api, *parts.agents]
        parts.clear()
        for service in services:
            stack.callback(service.stop)
        cloud.start(services)
        cloud.wait_ready(services)
        for one in parts.agents:  # the decision service learns once a round who has enrolled
            agent = one.agent
            runs.wait_for(
                lambda agent=agent: agent.status()["ring"]["is_signed"],
                TABLE_S,
                f"a table on {agent.host.name}",
                parts.decision.log,
            )
        nova_hosts.configure(
            {
                host: nova_hosts.nova_options(one.agent)
                for host, one in zip(lab.computes, parts.agents, strict=True)
            }
        )
        for host in lab.computes:
            host.start()
        for host in lab.computes:
            nova_hosts.wait_started(host)
        nova_hosts.wait_subscribed(lab)
        yield Granted(lab, parts, gateway, user)


@pytest.mark.timeout(1200)
def test_server_boots_by_grants_on_a_host_without_image_permissions(granted):
    image_id = granted.images.new()
    first, second = granted.cluster.hosts
    for path in (f"/v2/images/{image_id}", f"/v2/images/{image_id}/file"):
        url = f"{granted.lab.glance.url}{path}"
        answer = requests.get(url, headers={"X-Auth-Token": granted.token()}, timeout=30)
        assert answer.status_code in (403, 404)
    for host in (first, second):
        with granted.cluster.server(image_id, host) as server:
            assert host.fallbacks() == {}, nova_hosts.acstor_lines(host.compute.log())
            assert server.lies_on_mirror()
    assert nova_hosts.given(granted.gateway.log(), image_id, 206)
    assert granted.images.range_bytes(image_id) == 0  # all through the gateway


@pytest.mark.timeout(1200)
def test_unused_image_is_readable_only_after_an_operator_pre_seeds_it(granted):
    image_id = granted.images.new()
    first, _ = granted.cluster.hosts
    with pytest.raises(errors.Unusable) as refused:
        first.agent.ctl("pre-seed", image_id)
    assert "no server uses this image" in f"{refused.value} {granted.parts.decision.log()}"
    assert nova_hosts.given(granted.gateway.log(), image_id, 206) == []
    words = ("image", "pre-seed", image_id, "--host", first.name)

    def is_asked() -> bool:
        return acstor_decision.openstack(granted.lab, "admin", *words).returncode == 0

    runs.wait_for(is_asked, 120, "a host that sends samples", granted.parts.decision.log)

    def is_there() -> bool:
        read = sum(nova_hosts.given(granted.gateway.log(), image_id, 206))
        return read >= nova_hosts.IMAGE_BYTES

    def logs() -> str:
        return "\n".join(
            one.log()[-1000:] for one in (granted.parts.decision, granted.parts.agents[0])
        )

    runs.wait_for(is_there, 120, f"image {image_id}", logs)


@pytest.mark.timeout(1200)
@pytest.mark.nightly
def test_shelved_server_is_unshelved_by_a_grant_for_its_snapshot(granted):
    image_id, images = granted.images.new(), granted.images
    first, _ = granted.cluster.hosts
    with granted.cluster.server(image_id, first) as server:
        server.client.shelve_server(server.id)
        server.wait("SHELVED_OFFLOADED")
        [shelved] = [image for image in images.client.images() if image.name.endswith("-shelved")]
        images.map(shelved.id)
        server.client.unshelve_server(server.id)
        server.wait("ACTIVE")
        assert server.host.fallbacks() == {}
        assert nova_hosts.given(granted.gateway.log(), shelved.id, 206)
        assert images.downloads(shelved.id) == 0


@pytest.mark.timeout(1200)
def test_grant_is_valid_for_one_image_and_one_host(granted, tmp_path):
    used, unused = granted.images.new(), granted.images.new()
    first, second = granted.cluster.hosts
    with granted.cluster.server(used, first), linked(granted, first, tmp_path) as client:
        grant = client.request(ids.parse_image_id(used))
        with pytest.raises(errors.ChunkRefused, match="no server uses this image"):
            client.request(ids.parse_image_id(unused))
        own, other = (granted.identity(host).current_credentials().key for host in (first, second))

        def ask(image_id: str, key: bytes, about: str = "") -> requests.Response:
            path = f"/v1/images/{about or image_id}/file"
            target = image_grants.target_of(path, RANGE)
            headers = image_grants.headers_of(grant, target, key, time.time())
            return granted.read(image_id, headers)

        assert ask(used, own).content == granted.images.stored(used).read_bytes()[:100]
        assert "none of the trusted keys" in image_stores.said(ask(used, other), 403)
        assert "is not its artefact" in image_stores.said(ask(unused, own), 403)
        assert "none of the trusted keys" in image_stores.said(ask(used, own, unused), 403)
        without = granted.read(used, {})
        assert without.status_code in (403, 404)


@contextlib.contextmanager
def linked(
    granted: Granted, host: nova_hosts.Host, folder: pathlib.Path
) -> Iterator[grant_client.GrantClient]:
    """Yield what requests grants as a compromised host can: with its key, for any image."""
    conf = folder / "bus.conf"
    conf.write_text(f"[DEFAULT]\ntransport_url = {granted.lab.rabbitmq.url}\n")
    link = bus.open_bus("a-test", [str(conf)])
    try:
        yield grant_client.GrantClient(ids.parse_host_id(host.name), link, granted.identity(host))
    finally:
        link.stop()
        cfg.CONF.reset()
