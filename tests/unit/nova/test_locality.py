# SPDX-License-Identifier: Apache-2.0
"""Weights of hosts by cached images: the formula, the table cache and the REST client."""

import json
import math
import threading
import time

import pytest
from keystoneauth1 import loading
from oslo_config import cfg

from acstor_common import errors
from acstor_common.wire import decision_messages
from acstor_nova import conf as nova_conf
from acstor_nova.locality import host_weight
from acstor_nova.locality import locality_cache
from acstor_nova.locality import locality_client
from tests.fakes import dripping_server
from tests.fakes import http_server
from tests.fakes import manual_clock
from tests.fakes import silent_server

IMAGE, OTHER = (f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in (1, 2))
FULL = host_weight.CachedImage(1.0, 0.0)
SOON = locality_cache.Timings(wait_s=10.0, first_retry_s=0.01, longest_retry_s=0.01)


def locality(image_id=IMAGE, **shares):
    return decision_messages.ImageLocality(
        image_id,
        [decision_messages.HostLocality(host, *given) for host, given in shares.items()],
    )


# The weight


def test_boot_set_weighs_more_than_the_image():
    table = host_weight.make_table(
        locality(
            all=(1.0, 1.0, 0.0),
            boot_set=(1.0, 0.1, 0.0),
            image=(0.0, 0.9, 0.0),
            unknown=(None, 0.9, 0.0),
            little=(0.0, 0.1, 0.0),
        )
    )
    weights = {host: host_weight.weight_of(table.get(host), 0) for host in [*table, "nothing"]}
    assert weights["all"] == 1.0 and weights["nothing"] == 0.0
    assert sorted(weights, key=weights.get) == [
        *("nothing", "little", "image", "boot_set", "unknown", "all")
    ]


def test_weight_falls_with_builds_and_link_load():
    by_builds = [host_weight.weight_of(FULL, builds) for builds in range(20)]
    by_load = [host_weight.weight_of(FULL._replace(link_load=n / 10), 0) for n in range(11)]
    for weights in (by_builds, by_load):
        assert weights == sorted(weights, reverse=True) and len({*weights}) == len(weights)
    assert by_builds[host_weight.MANY_BUILDS] == by_load[-1] == 0.5


def test_weights_are_finite_and_between_0_and_1():
    for share in (0.0, 1e-300, 0.5, 1.0):
        for load in (0.0, 1.0):
            for builds in (-5, 0, 1, 10**9):
                weight = host_weight.weight_of(host_weight.CachedImage(share, load), builds)
                assert math.isfinite(weight) and 0 <= weight <= 1


# The cache


class Service:
    """A service that returns tables, and blocks or fails on request."""

    def __init__(self):
        self.asked, self.failure = [], None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.found = locality(h1=(1.0, 1.0, 0.0))

    def fetch(self, image_id):
        self.asked.append(image_id)
        assert self.may_answer.wait(30)
        if self.failure:
            raise self.failure
        return self.found


@pytest.fixture
def service():
    made = Service()
    yield made
    made.may_answer.set()


@pytest.fixture
def make_cache(service):
    made = []

    def make(**more):
        made.append(locality_cache.LocalityCache(service.fetch, **more))
        return made[-1]

    yield make
    for cache in made:
        cache.stop()


def until(condition):
    ends_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.005)


def test_first_lookup_of_an_image_waits_for_its_table(service, make_cache):
    assert make_cache(timings=SOON).lookup(IMAGE) == {"h1": FULL}
    assert service.asked == [IMAGE]


def test_fresh_table_is_used_without_another_request(service, make_cache):
    cache = make_cache(timings=SOON)
    for _ in range(100):
        cache.lookup(IMAGE)
    assert service.asked == [IMAGE]


def test_older_table_is_used_while_it_is_refreshed(service, make_cache):
    now = [0.0]
    cache = make_cache(timings=SOON, clock=manual_clock.FunctionClock(lambda: now[0]))
    cache.lookup(IMAGE)
    service.may_answer.clear()
    now[0] = SOON.fresh_s + 1
    service.found = locality(h2=(1.0, 1.0, 0.0))
    assert list(cache.lookup(IMAGE)) == ["h1"]
    service.may_answer.set()
    until(lambda: list(cache.lookup(IMAGE)) == ["h2"])
    assert service.asked == 2 * [IMAGE]


@pytest.mark.expect_log("not weighed by the images that they have: .* refused")
def test_stale_table_is_not_used(service, make_cache):
    now = [0.0]
    cache = make_cache(timings=SOON, clock=manual_clock.FunctionClock(lambda: now[0]))
    cache.lookup(IMAGE)
    service.failure = errors.DecisionUnreachable("http://d", "refused")
    now[0] = SOON.stale_s - 1
    assert cache.lookup(IMAGE)
    until(lambda: len(service.asked) == 2)
    now[0] = SOON.stale_s
    assert cache.lookup(IMAGE) is None


def test_hanging_service_delays_only_one_lookup(service, make_cache):
    service.may_answer.clear()
    cache = make_cache()
    waited_s = []
    for image_id in 50 * [IMAGE, OTHER]:
        began_s = time.perf_counter()
        assert cache.lookup(image_id) is None
        waited_s.append(time.perf_counter() - began_s)
    assert locality_cache.DEFAULT_TIMINGS.wait_s <= waited_s[0]
    assert sum(waited_s[1:]) < waited_s[0]
    service.may_answer.set()
    until(lambda: cache.lookup(IMAGE) and cache.lookup(OTHER))


@pytest.mark.expect_log("not weighed by the images that they have: .* refused")
def test_failing_service_is_retried_in_the_background(service, make_cache, caplog):
    service.failure = errors.DecisionUnreachable("http://d", "refused")
    cache = make_cache(timings=SOON)
    began_s = time.monotonic()
    assert cache.lookup(IMAGE) is None
    assert time.monotonic() - began_s < SOON.wait_s
    until(lambda: cache.lookup(IMAGE) is None and len(service.asked) > 5)
    assert caplog.text.count("not weighed") == 1
    service.failure = None
    until(lambda: cache.lookup(IMAGE))


@pytest.mark.expect_log("image-locality failed; restarting it")
def test_unexpected_exception_does_not_end_the_fetch_thread(service, make_cache):
    service.failure = ZeroDivisionError("a defect")
    cache = make_cache(timings=SOON._replace(wait_s=0.01))
    assert cache.lookup(IMAGE) is None
    until(lambda: service.asked)
    service.failure = None
    until(lambda: cache.lookup(IMAGE))


def test_pending_images_and_tables_are_bounded(service, make_cache):
    service.may_answer.clear()
    cache = make_cache(timings=SOON._replace(wait_s=0.0, stale_s=1e9, fresh_s=1e9))
    cache.lookup(OTHER)
    until(lambda: service.asked)
    for n in range(10 * locality_cache.MAX_WANTED):
        cache.lookup(f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}")
    assert len(cache._wanted) == locality_cache.MAX_WANTED
    service.may_answer.set()
    until(lambda: len(service.asked) == 1 + locality_cache.MAX_WANTED)
    for n in range(3 * locality_cache.MAX_TABLES):
        until(lambda n=n: cache.lookup(f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}"))
    assert len(cache._tables) == locality_cache.MAX_TABLES


# The client


def conf_at(url, **service_user):
    conf = cfg.ConfigOpts()
    nova_conf.register_opts(conf)
    for register in (
        loading.register_session_conf_options,
        loading.register_auth_conf_options,
    ):
        register(conf, locality_client.GROUP)
    conf([], project="nova", default_config_files=[], default_config_dirs=[])
    conf.set_override("decision_url", url, "acstor")
    given = {"auth_type": "admin_token", "token": "secret", "endpoint": url, **service_user}
    conf.set_override("auth_type", given.pop("auth_type"), locality_client.GROUP)
    if conf[locality_client.GROUP].auth_type:
        loading.load_auth_from_conf_options(
            conf, locality_client.GROUP
        )  # registers the plug-in's options
        for name, value in given.items():
            conf.set_override(name, value, locality_client.GROUP)
    return conf


def ask(url, image_id=IMAGE, within_s=2.0, **service_user):
    client = locality_client.LocalityClient(conf_at(url, **service_user), within_s)
    return client.get_locality(image_id)


PATH = f"v1/images/{IMAGE}/locality"


def answer(body):
    return http_server.serve({PATH: body})


def test_client_asks_as_novas_service_user():
    body = json.dumps(decision_messages.encode(locality(h1=(None, 0.5, 0.25)))).encode()
    with answer(body) as server:
        assert ask(server.url) == locality(h1=(None, 0.5, 0.25))
        assert server.asked[0]["x-auth-token"] == "secret"


ROW = {"host": "h1", "boot_set_share": 1.0, "image_share": 1.0, "link_load": 0.0}


def table(**changes):
    return json.dumps({"image_id": IMAGE, "hosts": [{**ROW, **changes}]}).encode()


FOREIGN = json.dumps({"image_id": OTHER, "hosts": [ROW]}).encode()
HOSTILE = {
    "not JSON": b"<html>",
    "another image": FOREIGN,
    "nothing": b"",
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "NaN": table(image_share=math.nan),
    "infinite": b'{"image_id": "%s", "hosts": [{"host": "h1", "boot_set_share": 1e999, '
    b'"image_share": 1.0, "link_load": 0.0}]}' % IMAGE.encode(),
    "above one": table(image_share=1.0001),
    "below zero": table(link_load=-1),
    "text": table(image_share="1"),
    "null": table(image_share=None),
    "true": table(link_load=True),
    "a number for a host": table(host=7),
    "no host's name": table(host="a b\n"),
    "a long name": table(host="h" * 256),
    "no hosts": json.dumps({"image_id": IMAGE}).encode(),
    "too many hosts": json.dumps(
        {"image_id": IMAGE, "hosts": [ROW] * (decision_messages.MAX_LOCALITY_HOSTS + 1)}
    ).encode(),
    "too long": b" " * (5 << 20) + table(),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_invalid_table_is_an_error(body):
    with answer(body) as server, pytest.raises(errors.DecisionUnreachable, match=PATH):
        ask(server.url)


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_refusal_is_an_error_with_its_status(status):
    with answer(b"") as server:
        server.always = http_server.status(status)
        with pytest.raises(errors.DecisionUnreachable, match=f"HTTP {status}"):
            ask(server.url)


def test_redirection_is_not_followed():
    with answer(table()) as elsewhere, answer(b"") as server:
        server.always = http_server.redirect(f"{elsewhere.url}{PATH}")
        with pytest.raises(errors.DecisionUnreachable):
            ask(server.url)
        assert not elsewhere.asked


def test_invalid_image_id_is_not_requested():
    with answer(table()) as server:
        with pytest.raises(errors.DecisionUnreachable):
            ask(server.url, "../hosts")
        assert not server.asked


def test_missing_service_user_is_named_by_its_option():
    with pytest.raises(errors.DecisionUnreachable, match=r"\[service_user\] auth_type"):
        ask("http://127.0.0.1:1", auth_type=None)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("piece", [b"", OK + b"X-Name: ", OK + b"Content-Length: 9999\r\n\r\n"])
def test_trickled_response_has_a_deadline(piece):
    began_s = time.monotonic()
    with dripping_server.serve(dripping_server.drip(piece), 0.1) as server:
        with pytest.raises(errors.DecisionUnreachable):
            ask(f"http://{server.address}", within_s=1.0)
    assert time.monotonic() - began_s < 5


def test_hanging_service_has_a_deadline():
    began_s = time.monotonic()
    with silent_server.serve() as server, pytest.raises(errors.DecisionUnreachable):
        ask(f"http://{server.address}", within_s=1.0)
    assert time.monotonic() - began_s < 5
