# SPDX-License-Identifier: Apache-2.0
"""A Glance that accepts connections and never answers takes neither the API nor its threads."""

import time
from concurrent import futures

import pytest
from keystoneauth1 import noauth
from oslo_config import cfg

from acstor_decision.api import app
from acstor_decision.api import image_service
from tests.fakes import silent_server
from tests.unit.decision.api import conftest as api

THREADS = 16
"""Of the documented WSGI server (rest_api.rst)."""
pytestmark = pytest.mark.allow_log("Glance is silent for longer than")


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


def test_every_request_to_another_service_has_a_deadline_by_default(api_configuration):
    assert api_configuration.glance.timeout == image_service.TIMEOUT_S
    assert api_configuration.nova.timeout > 0


def test_status_says_that_glance_is_silent_and_the_rest_answers_at_once(client, glance):
    with futures.ThreadPoolExecutor(THREADS) as pool:
        asking = [pool.submit(client.get, "/v1/status") for _ in range(3 * THREADS)]
        time.sleep(1.3)  # those that found no place have given up
        began_s = time.monotonic()
        assert pool.submit(client.get, "/healthz").result(30).status_code == 200
        assert pool.submit(client.get, "/v1/hosts").result(30).status_code == 200
        assert time.monotonic() - began_s < 2.0
        answers = [one.result(30).json for one in asking]
    assert glance.connections <= 2 * image_service.CALLERS
    away = [
        " ".join(one["subjects"])
        for answer in answers
        for one in answer["findings"]
        if one["code"] == "glance-away"
    ]
    assert len(away) == len(answers)
    named = "no answer within 2 s ([glance] timeout): Request to " + glance.url
    assert any(one.startswith(named) for one in away)
