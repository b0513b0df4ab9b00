# SPDX-License-Identifier: Apache-2.0
"""Glance, Keystone and RabbitMQ hang or refuse connections under a real agent.

The agent reports each fault with host, user and option until it ends. Guests read cached data, and
the agent responds.

"""

import concurrent.futures
import contextlib
import os
import pathlib
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_decision import conf as decision_conf
from acstor_decision import nova_client
from tests.fakes import faulty_proxy
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import decision
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import uploads

pytestmark = hosts.needs_fuse

WAIT_S = 60.0
TIMEOUT_S = 1.0
FAULTS = ("hang", "refuse")


class Rig(NamedTuple):
    """An agent whose services are behind proxies, and images that it can read."""

    agent: agents.Agent
    keystone: faulty_proxy.FaultyProxy
    glance: faulty_proxy.FaultyProxy
    rabbitmq: faulty_proxy.FaultyProxy
    lab: cloud.Cloud
    data: bytes
    images: list[str]
    unread: Iterator[int]
    """Unread chunks of the first image."""

    def chunk(self, chunk_no: int) -> bytes:
        """Return a chunk of the images."""
        return self.data[chunk_no * uploads.CHUNK :][: uploads.CHUNK]

    def trouble(self, *words: str) -> bool:
        """Return whether one reported fault contains all the words."""
        reported = self.agent.status()["faults"]
        texts = [f"{what}: {one['why']}" for what, one in reported.items()]
        return any(all(word in text for word in words) for text in texts)

    def wait_trouble(self, *words: str) -> None:
        """Wait for a reported fault that contains all the words, and no password."""
        runs.wait_for(lambda: self.trouble(*words), WAIT_S, f"a trouble {words}", self.agent.log)
        assert "pass" not in str(self.agent.status()["faults"])

    def wait_no_trouble(self) -> None:
        """Wait until no fault is reported."""
        runs.wait_for(
            lambda: not self.agent.status()["faults"], WAIT_S, "no trouble", self.agent.log
        )

    def check_cached(self) -> None:
        """Check that guests read cached data at once."""
        began_s = time.monotonic()
        assert read(self.agent.image_path(self.images[0]), 0) == self.data[: uploads.CHUNK]
        assert time.monotonic() - began_s < TIMEOUT_S


def read(path: pathlib.Path, chunk_no: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, uploads.CHUNK, chunk_no * uploads.CHUNK)
    finally:
        os.close(fd)


def port_of(url: str) -> int:
    return urllib.parse.urlsplit(url).port or 80


@pytest.fixture(scope="module")
def prepared(image_services: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Images with chunk maps; the module deletes them."""
    tester = uploads.Images(image_services)
    folder = tmp_path_factory.mktemp("listener")
    own = {tuned.NOTIFICATION_POOL: f"test-{folder.name}"}
    listener = acstor_glance.Listener("listener", image_services, folder, constants=own)
    data = uploads.some_bytes(seed=71)
    try:
        images = [tester.upload(data) for _ in range(2)]
        listener.start()
        for image_id in images:
            tester.wait_state(image_id)
        listener.stop()
        yield tester, data, images
    finally:
        listener.stop()
        tester.clean_up()


@pytest.fixture(scope="module")
def running(prepared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One agent for all tests of the module; each test leaves it without faults."""
    tmp_path = tmp_path_factory.mktemp("agent")
    tester, data, images = prepared
    lab = tester.lab
    ports = (port_of(lab.keystone.auth_url), port_of(lab.glance.url), lab.rabbitmq.port)
    with contextlib.ExitStack() as stack:
        keystone, glance, rabbitmq = [
            stack.enter_context(faulty_proxy.before(port)) for port in ports
        ]
        user = api.credentials(f"{keystone.url}/v3", "acstor")
        of_glance = {**user, "endpoint_override": glance.url, "timeout_s": TIMEOUT_S}
        sections = {
            "DEFAULT": {"transport_url": f"rabbit://guest:guest@{rabbitmq.address}/"},
            "oslo_messaging_rabbit": {"heartbeat_timeout_threshold": 2},
            "source_glance": of_glance,
        }
        starting = local.agent(
            tmp_path / "host",
            local.ImageFolder(tmp_path / "nothing"),
            sources="glance",
            sections=sections,
            constants={tuned.SOURCE_TIMEOUT_S: 2 * TIMEOUT_S, tuned.COLLECTION_S: 0.5},
            security="secure",  # samples are signed
            variants="no-read-ahead",
        )
        agent = stack.enter_context(starting)
        agent.wait_ready()
        unread = iter(range(9, len(data) // uploads.CHUNK))
        found = Rig(agent, keystone, glance, rabbitmq, lab, data, images, unread)
        agents.request(agent.control_socket, "attach-image", image_id=images[0])
        found.check_cached()
        yield found


@pytest.fixture
def rig(running: Rig) -> Iterator[Rig]:
    yield running
    for proxy in (running.keystone, running.glance, running.rabbitmq):
        proxy.pass_on()


def check_waits(
    rig: Rig, waiting: concurrent.futures.Future[bytes], proxy: faulty_proxy.FaultyProxy
) -> None:
    """Check that a read waits for a reported service and other reads do not; end the fault."""
    rig.wait_trouble(proxy.url, "[source_glance], as acstor")
    rig.check_cached()
    assert not waiting.done()
    proxy.pass_on()


@pytest.mark.parametrize("fault", FAULTS)
def test_hung_or_refusing_glance_is_reported_and_reads_wait(rig: Rig, fault: str) -> None:
    path, chunk_no = rig.agent.image_path(rig.images[0]), next(rig.unread)
    with concurrent.futures.ThreadPoolExecutor(1) as guest:
        getattr(rig.glance, fault)()
        waiting = guest.submit(read, path, chunk_no)
        check_waits(rig, waiting, rig.glance)
        assert waiting.result(WAIT_S) == rig.chunk(chunk_no)
    rig.wait_no_trouble()


@pytest.mark.parametrize("fault", FAULTS)
def test_hung_or_refusing_keystone_is_reported_and_reads_wait(rig: Rig, fault: str) -> None:
    agent, chunk_no = rig.agent, next(rig.unread)
    agent.stop()
    getattr(rig.keystone, fault)()
    agent.start()  # it authenticates again
    agent.wait_ready()
    with concurrent.futures.ThreadPoolExecutor(1) as guest:
        waiting = guest.submit(read, agent.image_path(rig.images[0]), chunk_no)
        check_waits(rig, waiting, rig.keystone)
        assert waiting.result(WAIT_S) == rig.chunk(chunk_no)
    rig.wait_no_trouble()


def test_keystone_that_refuses_the_user_is_reported(rig: Rig) -> None:
    agent, admin = rig.agent, accounts.connect(rig.lab.keystone.auth_url).identity
    agent.stop()
    user = admin.find_user("acstor", ignore_missing=False)
    admin.update_user(user, enabled=False)
    try:
        agent.start()
        agent.wait_ready()
        with pytest.raises(errors.Unusable, match="refuses the credentials"):
            agents.request(agent.control_socket, "attach-image", image_id=rig.images[1])
        rig.wait_trouble("HTTP 401", f"[source_glance], as acstor at {rig.keystone.url}")
        rig.check_cached()
    finally:
        admin.update_user(user, enabled=True)
    time.sleep(1.0)  # Keystone also revokes tokens that it issues in the same second
    agents.request(agent.control_socket, "attach-image", image_id=rig.images[1])
    chunk_no = next(rig.unread)
    assert read(agent.image_path(rig.images[0]), chunk_no) == rig.chunk(chunk_no)
    rig.wait_no_trouble()


@pytest.mark.parametrize("fault", FAULTS)
def test_hung_or_refusing_rabbitmq_is_reported(rig: Rig, fault: str) -> None:
    getattr(rig.rabbitmq, fault)()
    rig.wait_trouble(f"{rig.rabbitmq.address} as guest", "[DEFAULT] transport_url")
    rig.check_cached()
    rig.rabbitmq.pass_on()
    rig.wait_no_trouble()  # a sample was sent


@pytest.mark.expect_log("Nova does not answer: ")
@pytest.mark.allow_log("Nova does not answer: ")
def test_decision_service_reports_a_hung_or_refusing_nova_or_keystone(
    image_services: cloud.Cloud, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        http_server.serve({"os-aggregates": b'{"aggregates": []}'}) as web,
        faulty_proxy.before(port_of(web.url)) as asked,
        faulty_proxy.before(port_of(image_services.keystone.auth_url)) as keystone,
    ):
        own = {**api.credentials(f"{keystone.url}/v3", "acstor"), "timeout": 1}
        own["endpoint_override"] = asked.url
        path = decision.configure(tmp_path / "decision.conf", {"nova": own})
        conf = cfg.ConfigOpts()
        decision_conf.register_opts(conf)
        conf(["--config-file", str(path)], project="acstor", default_config_dirs=[])

        def fails(client: nova_client.NovaClient, address: str) -> None:
            caplog.clear()
            began_s = time.monotonic()
            with pytest.raises(nova_client.NovaUnreachable):
                client.list_aggregates()
            assert time.monotonic() - began_s < 10 * TIMEOUT_S
            assert address in caplog.text and api.PASSWORD not in caplog.text
            assert f"([nova], as acstor at {keystone.url}/v3)" in caplog.text

        def answers(client: nova_client.NovaClient) -> bool:
            with contextlib.suppress(nova_client.NovaUnreachable):  # Keystone may be busy
                return client.list_aggregates() == []
            return False

        def wait_answer(client: nova_client.NovaClient) -> None:
            runs.wait_for(lambda: answers(client), WAIT_S, "an answer", image_services.keystone.log)

        client = nova_client.NovaClient(conf)
        for fault in FAULTS:
            wait_answer(client)
            getattr(asked, fault)()
            fails(client, asked.url)
            asked.pass_on()
        wait_answer(client)
        client = nova_client.NovaClient(conf)  # it has no token yet
        for fault in FAULTS:
            getattr(keystone, fault)()
            fails(client, keystone.url)
        keystone.pass_on()
        wait_answer(client)


def test_listener_reports_a_hung_or_refusing_glance_or_keystone(
    image_services: cloud.Cloud, tmp_path: pathlib.Path
) -> None:
    lab, tester = image_services, uploads.Images(image_services)
    with (
        faulty_proxy.before(port_of(lab.glance.url)) as glance,
        faulty_proxy.before(port_of(lab.keystone.auth_url)) as keystone,
    ):
        listener = acstor_glance.Listener(
            "listener",
            lab,
            tmp_path,
            constants={
                tuned.NOTIFICATION_POOL: f"test-{tmp_path.name}",
                tuned.RECONCILE_INTERVAL_S: 1,
                tuned.RECONCILE_RETRY_S: 1,
            },
            auth_url=f"{keystone.url}/v3",
            endpoint_override=glance.url,
            timeout=2,
        )

        def says(address: str) -> None:
            reported = f"([acstor_glance], as acstor at {keystone.url}/v3)"
            before = len(listener.log())
            runs.wait_for(
                lambda: any(
                    address in line and reported in line
                    for line in listener.log()[before:].splitlines()
                ),
                WAIT_S,
                f"a warning of {address}",
                listener.log,
            )
            assert api.PASSWORD not in listener.log()
            assert uploads.metric(listener, 'acstor_glance_reconciles_total{result="failed"}')

        try:
            keystone.hang()  # it has no token yet
            listener.start()
            says(keystone.url)
            keystone.refuse()
            says(keystone.url)
            keystone.pass_on()
            data = uploads.some_bytes(seed=72)
            tester.wait_state(tester.upload(data))
            for fault in (glance.hang, glance.refuse):
                fault()
                image_id = tester.upload(data)
                says(glance.url)
                glance.pass_on()
                tester.wait_state(image_id)
        finally:
            glance.pass_on()
            listener.stop()
            tester.clean_up()
