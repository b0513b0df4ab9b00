# SPDX-License-Identifier: Apache-2.0
"""A Glance or a broker that never answers occupies few of the API's threads."""

import time
from concurrent import futures

import oslo_messaging
import pytest
from keystoneauth1 import noauth
from oslo_config import cfg

from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_decision import rpc
from acstor_decision.api import app
from acstor_decision.api import glance_client
from tests.fakes import silent_server
from tests.unit.decision.api import conftest as api

THREADS = 16
"""Threads of the documented WSGI server (rest_api.rst)."""
pytestmark = pytest.mark.allow_log("Glance did not answer within")


@pytest.fixture
def glance():
    with silent_server.serve() as serving:
        yield serving


@pytest.fixture
def client(api_configuration: cfg.ConfigOpts, store, bus, glance):
    api_configuration.set_override("endpoint_override", glance.url, "glance")
    api_configuration.set_override("timeout", 2, "glance")
    made = app.make_plain_app(api_configuration, store, None, bus).test_client()
    for header, value in api.ADMIN.items():
        made.environ_base[f"HTTP_{header.upper().replace('-', '_')}"] = value
    made.environ_base["keystone.token_auth"] = noauth.NoAuth()
    return made


def test_every_request_to_another_service_has_a_timeout_by_default(api_configuration):
    assert api_configuration.glance.timeout == glance_client.TIMEOUT_S
    assert api_configuration.nova.timeout > 0


@pytest.mark.timed
def test_status_reports_a_hanging_glance_and_other_requests_are_served(client, glance):
    with futures.ThreadPoolExecutor(THREADS) as pool:
        asking = [pool.submit(client.get, "/v1/status") for _ in range(3 * THREADS)]
        time.sleep(1.3)  # requests without a slot have given up
        began_s = time.monotonic()
        assert pool.submit(client.get, "/healthz").result(30).status_code == 200
        assert pool.submit(client.get, "/v1/hosts").result(30).status_code == 200
        assert time.monotonic() - began_s < 2.0
        answers = [one.result(30).json for one in asking]
    assert glance.connections <= 2 * glance_client.CALLERS
    away = [
        " ".join(one["subjects"])
        for answer in answers
        for one in answer["findings"]
        if one["code"] == "glance-unreachable"
    ]
    assert len(away) == len(answers)
    named = "no answer within 2 s ([glance] timeout): Request to " + glance.url
    assert any(one.startswith(named) for one in away)


@pytest.mark.timed
def test_requests_to_a_hanging_broker_occupy_few_threads(monkeypatch):
    cfg.CONF([], project="acstor", default_config_files=[])
    wanted = decision_messages.ImageWanted("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11", False)
    with futures.ThreadPoolExecutor(THREADS) as pool:
        with silent_server.serve() as broker:
            url = f"rabbit://u:p@{broker.address}/"
            bus = rpc.TaskSender(
                cfg.CONF, lambda payload, _: decision_messages.Signed("{}", "", ""), retries=0
            )
            transport = message_bus.open_transport(
                cfg.CONF, lambda conf: oslo_messaging.get_rpc_transport(conf, url)
            )
            monkeypatch.setattr(bus, "_transport", transport)
            asking = [
                pool.submit(bus.request_preparation, wanted, number) for number in range(THREADS)
            ]
            refused = futures.wait(asking, 3.0).done  # requests without a slot
            said = {str(one.exception()).partition(": ")[2] for one in refused}
            assert broker.connections <= 2 * rpc.CALLERS
        assert f"{rpc.CALLERS} others wait for the message bus" in said
        assert len(refused) >= THREADS - 2 * rpc.CALLERS
        for one in asking:
            assert isinstance(one.exception(60), rpc.BusUnreachable)
    cfg.CONF.reset()
