# SPDX-License-Identifier: Apache-2.0
"""A hanging Keystone occupies few threads, each for a limited time."""

import time
from concurrent import futures

import pytest
import webob
import webob.exc
from keystoneauth1 import loading
from keystonemiddleware.auth_token import _opts
from oslo_config import cfg

from acstor_common.identity import token_validation
from tests.fakes import silent_server

THREADS = 16
ANSWERED_S = 2.0


def configured(url: str) -> cfg.ConfigOpts:
    token_validation.set_defaults()
    conf = cfg.ConfigOpts()
    for group, options in _opts.list_opts():
        conf.register_opts(options, group=group)
    conf.register_opts(loading.get_auth_plugin_conf_options("password"), "keystone_authtoken")
    given = {"auth_type": "password", "auth_url": f"{url}/v3", "www_authenticate_uri": url}
    given |= {"username": "u", "password": "p", "user_domain_id": "default"}
    for name, value in given.items():
        conf.set_override(name, value, "keystone_authtoken")
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def unavailable(message: str) -> webob.exc.HTTPServiceUnavailable:
    return webob.exc.HTTPServiceUnavailable(body=message.encode())


def test_requests_to_keystone_have_a_timeout_by_default() -> None:
    own = configured("http://127.0.0.1:1").keystone_authtoken
    assert own.http_connect_timeout == token_validation.TIMEOUT_S
    assert own.http_request_max_retries == token_validation.RETRIES


@pytest.mark.filterwarnings("ignore")
def test_hanging_keystone_occupies_few_threads_and_is_reported() -> None:
    with silent_server.serve() as keystone, futures.ThreadPoolExecutor(THREADS) as pool:
        conf = configured(keystone.url)
        conf.set_override("http_connect_timeout", 1, "keystone_authtoken")
        check = token_validation.TokenCheck(webob.Response(), conf, unavailable, "Keystone is gone")

        def ask(number: int) -> webob.Response:
            request = webob.Request.blank("/", headers={"X-Auth-Token": f"token-{number}"})
            return request.get_response(check)

        asking = [pool.submit(ask, number) for number in range(2 * THREADS)]
        time.sleep(1.3)  # requests without a slot have given up
        began_s = time.monotonic()
        pool.submit(int).result(30)
        assert time.monotonic() - began_s < ANSWERED_S
        answers = [one.result(60) for one in asking]
        assert {(one.status_code, one.text) for one in answers} == {(503, "Keystone is gone")}
        assert 0 < keystone.connections <= 8 * token_validation.CALLERS
