# SPDX-License-Identifier: Apache-2.0
"""The API over a real SQLite database, without an HTTP server; tests set Keystone's headers."""

import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from flask import testing
from oslo_config import cfg

from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import location_policies
from acstor_common.ring import vnode
from acstor_common.wire import decision_messages
from acstor_decision.api import app
from acstor_decision.api import conf as api_conf
from acstor_decision.api import glance_client
from acstor_decision.core import enrolment_rules
from acstor_decision.db import database
from acstor_decision.db import ring_queries
from acstor_decision.identity import certificate_authority
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts

NOW_S = 1_800_000_000.0
ADMIN = {"X-Roles": "admin,member,reader", "X-User-Id": "u", "X-Project-Id": "p"}
READER = {"X-Roles": "reader", "X-User-Id": "u", "OpenStack-System-Scope": "all"}
OF_DOMAIN = {"X-Roles": "admin", "X-User-Id": "u", "X-Domain-Id": "d"}
TENANT = {"X-Roles": "member,reader", "X-User-Id": "u", "X-Project-Id": "p"}


@pytest.fixture
def api_configuration(configure: Callable[..., cfg.ConfigOpts]) -> cfg.ConfigOpts:
    conf = configure()
    api_conf.register_opts(conf)
    return conf


class Glance:
    """A Glance with the images that a test adds; it raises ``failure`` if that is set."""

    def __init__(self) -> None:
        self.shown: glance_client.Records = {}
        self.failure: Exception | None = None

    def add(self, image_id: str, **properties: Any) -> None:
        """Add a prepared image; ``properties`` override its fields."""
        record = {
            "id": image_id,
            "name": "debian",
            "status": "active",
            "size": 1 << 20,
            "disk_format": "raw",
            "container_format": "bare",
            "os_hash_algo": "sha256",
            "os_hash_value": "00" * 32,
            "updated_at": "2026-11-20T00:00:00Z",
            "acstor_state": "ready",
            "acstor_state_of": image_id,
            "acstor_chunk_map": "7d2c1f9e-5d6b-4a5c-9c61-000000000001",
            **properties,
        }
        self.shown[image_id] = image_record.Image.from_record(record)

    def get_images(self, wanted: Sequence[str], auth: object) -> glance_client.Records:
        if self.failure:
            raise self.failure
        return {one: self.shown[one] for one in wanted if one in self.shown}

    def list_images(self, auth: object) -> glance_client.ImageListing:
        if self.failure:
            raise self.failure
        return glance_client.ImageListing(list(self.shown.values()), True)


class Bus:
    """Records the messages sent; the fake daemons answer."""

    def __init__(self, daemons: checkpoint_hosts.Daemons) -> None:
        self.request_checkpoint = daemons.request_checkpoint
        self.tasks: list[tuple[decision_messages.ImageTask, list[str] | None]] = []
        self.wanted: list[decision_messages.ImageWanted] = []
        self.failure: Exception | None = None
        self.on_task: Callable[[], object] = lambda: None

    def send_task(self, task: decision_messages.ImageTask, hosts: list[str] | None) -> None:
        if self.failure:
            raise self.failure
        self.on_task()
        self.tasks.append((task, hosts))

    def request_preparation(self, wanted: decision_messages.ImageWanted, request: int) -> None:
        if self.failure:
            raise self.failure
        self.wanted.append(wanted)


@pytest.fixture
def glance() -> Glance:
    return Glance()


@pytest.fixture
def bus(api_configuration: cfg.ConfigOpts, store: database.Database) -> Bus:
    hosts = enrolled_hosts.EnrolledHosts(api_configuration, store, time.time)
    return Bus(checkpoint_hosts.Daemons(hosts))


@pytest.fixture
def enrolment_limits() -> enrolment_rules.EnrolmentLimits:
    return enrolment_rules.EnrolmentLimits()


@pytest.fixture
def authority(
    api_configuration: cfg.ConfigOpts,
    store: database.Database,
    enrolment_limits: enrolment_rules.EnrolmentLimits,
) -> certificate_authority.CertificateAuthority:
    return certificate_authority.CertificateAuthority(
        api_configuration.acstor_decision, store, limits=enrolment_limits
    )


@pytest.fixture
def client(
    api_configuration: cfg.ConfigOpts,
    store: database.Database,
    glance: Glance,
    bus: Bus,
    authority: certificate_authority.CertificateAuthority,
) -> testing.FlaskClient:
    nova = checkpoint_hosts.Nova()
    made = app.make_plain_app(api_configuration, store, glance, bus, nova, authority).test_client()
    made.environ_base["keystone.token_auth"] = object()  # the requester's
    made.environ_base.update({f"HTTP_{k.upper().replace('-', '_')}": v for k, v in ADMIN.items()})
    return made


def sample(number: int, **fields: Any) -> decision_messages.Sample:
    """Return the last sample of host ``h<number>``."""
    given = {
        "host": f"h{number:04}",
        "address": f"10.0.{number // 256}.{number % 256}:7201",
        "location": f"pod1/rack{number % 3}",
        "session": 1,
        "started_s": NOW_S,
        "number": 1,
        "sent_s": NOW_S,
        "interval_s": 5.0,
        "link_bytes_s": 125_000_000,
        "total": decision_messages.TrafficBytes(5000, 10_000),
        "chunks": decision_messages.TrafficBytes(500, 1000),
        "cache_bytes": 1 << 20,
        "cache_limit_bytes": 1 << 30,
        "ring_epoch": 1,
        **fields,
    }
    return decision_messages.Sample(**given)


def note(store: database.Database, *samples: decision_messages.Sample, overloaded: int = 0) -> None:
    store.record_samples({one.host: (one, overloaded) for one in samples})


def publish(
    store: database.Database,
    epoch: int,
    hosts: int,
    vnodes: int = 3,
    thresholds: tuple[int | None, int | None] = (None, None),
    places: Mapping[str, location_policies.LocationPolicy] = MappingProxyType({}),
) -> None:
    """Publish a table of hosts h0000, h0001 and so on."""
    given = [sample(number) for number in range(hosts)]
    table = hash_ring.Ring(
        epoch,
        tuple(
            hash_ring.named_host(
                ids.HostId(one.host),
                one.address,
                frozenset(vnode.VNode(ids.HostId(one.host), k) for k in range(vnodes)),
                one.location,
            )
            for one in given
        ),
        *thresholds,
        policies=places,
    )
    store.store_ring(
        ring_queries.Publication(
            epoch=epoch,
            published_s=NOW_S + epoch,
            reason="members",
            overloaded=("h0000",),
            moved=2,
            vnodes=hosts * vnodes,
            hosts=hosts,
            instance="one",
            table=hash_ring.encode(table).decode(),
        ),
        kept=10,
    )
