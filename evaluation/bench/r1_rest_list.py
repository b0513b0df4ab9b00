# SPDX-License-Identifier: Apache-2.0
"""R1: the time of the REST API to list 1,000 hosts from SQLite.

Comparisons from the same database: the table in force, the last collection's traffic, 100 images (a
page) with ten reported by each host, and one image on all 1,000 hosts.  Glance's time for names is
excluded.  The first request of each, which reads the table, is included.
"""

import http
import statistics
import tempfile
import time

from flask import testing
from matplotlib import figure
from oslo_config import cfg

from acstor_common.wire import decision_messages
from acstor_decision import conf as decision_conf
from acstor_decision.api import app
from acstor_decision.api import conf as api_conf
from acstor_decision.db import database
from evaluation.bench import harness
from tests.unit.decision.api import conftest

HOSTS = 1000
REQUESTS = 30
IMAGE_IDS = tuple(f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(100))
EVERYWHERE = IMAGE_IDS[0]
IMAGES_OF_HOST = 10
PATHS = ("/v1/hosts", "/v1/ring", "/v1/traffic", "/v1/images", f"/v1/images/{EVERYWHERE}/hosts")


@harness.measures("R1")
def run(say: harness.Say) -> harness.Result:
    """Request each list several times."""
    with tempfile.TemporaryDirectory(prefix="acstor-r1-") as folder:
        client = make_client(f"sqlite:///{folder}/decision.sqlite")
        found = {path: times_ms(client, path) for path in PATHS}
    for path, times in found.items():
        say(f"{path}: median {statistics.median(times):.1f} ms, slowest {max(times):.1f} ms")
    median = statistics.median(found["/v1/hosts"])
    details = {"hosts": HOSTS, "requests": REQUESTS, "times_ms": found}
    return harness.Result({"R1": median}, details, lambda picture: draw(picture, found))


def make_client(connection: str) -> testing.FlaskClient:
    """Return a client of an API whose database has all hosts and one table."""
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    api_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", connection, "database")
    conf.set_override(
        "dead_after_samples", 100, "acstor_decision"
    )  # a host heard once counts as up until the end
    store = database.Database(conf)
    store.upgrade()
    now_s = time.time()
    samples = (conftest.sample(n, sent_s=now_s, images=images_of(n)) for n in range(HOSTS))
    conftest.note(store, *samples)
    conftest.publish(store, 1, HOSTS, vnodes=100)
    return app.make_plain_app(conf, store).test_client()


def images_of(number: int) -> dict[str, decision_messages.HeldImage]:
    """Return a host's report of its images."""
    others = IMAGE_IDS[1:]
    first = number * (IMAGES_OF_HOST - 1)
    names = [EVERYWHERE, *(others[(first + n) % len(others)] for n in range(IMAGES_OF_HOST - 1))]
    reported = decision_messages.HeldImage(
        size_bytes=1 << 31,
        cached_bytes=1 << (20 + number % 12),
        missing_bytes=(1 << 31) - (1 << (20 + number % 12)),
        boot_image="ready",
        read=decision_messages.ReadBytes(local=number, peer=number),
    )
    return dict.fromkeys(names, reported)


def times_ms(client: testing.FlaskClient, path: str) -> list[float]:
    """Return the time of each request."""
    took = []
    for _ in range(REQUESTS):
        began_s = time.perf_counter()
        answer = client.get(path, headers=conftest.ADMIN)
        took.append(1e3 * (time.perf_counter() - began_s))
        assert answer.status_code == http.HTTPStatus.OK
    return took


def draw(picture: figure.Figure, found: dict[str, list[float]]) -> None:
    """Draw the spread of each list's times."""
    axes = picture.subplots()
    labels = [path.replace(EVERYWHERE, "…") for path in found]
    axes.boxplot(list(found.values()), tick_labels=labels)
    axes.axhline(*harness.bounds("R1"), color="tab:red", linestyle="--", label="target")
    axes.set(title=f"{HOSTS} hosts, SQLite", ylabel="ms", ylim=(0, None))
    axes.legend()
