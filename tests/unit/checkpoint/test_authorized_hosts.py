# SPDX-License-Identifier: Apache-2.0
"""A vault refuses requests of hosts that are revoked or not in the v-node table."""

import time
import types
from collections.abc import Callable
from typing import Any

from acstor_checkpoint.vault import authorized_hosts
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.ring import hash_ring
from tests.fakes import manual_clock
from tests.lab import identities


def certificate_of(name: str, age_s: float = 0.0) -> certificates.HostCertificate:
    files = identities.issue(name, age_s=age_s)
    return certificates.read_host_certificate(files.certificate, files.ca)


def ring_of(*hosts: str, revoked: dict[str, int] | None = None) -> hash_ring.Ring:
    listed = (hash_ring.RingHost(h, f"10.0.0.{n}:7201", 100) for n, h in enumerate(hosts, 1))
    return hash_ring.Ring(7, tuple(listed), revoked=revoked or {})


def files_with(read_ring: Callable[[], hash_ring.Ring]) -> Any:
    """Return an agent's files with a v-node table."""
    return types.SimpleNamespace(read_ring=read_ring)


def fault(ring: hash_ring.Ring, certificate: certificates.HostCertificate) -> str:
    return authorized_hosts.AuthorizedHosts(files_with(lambda: ring)).why_refused(certificate)


def test_host_in_the_table_is_authorized() -> None:
    assert fault(ring_of("h1", "h2"), certificate_of("h1")) == ""


def test_host_outside_the_table_is_refused() -> None:
    assert "table 7" in fault(ring_of("h2"), certificate_of("h1"))


def test_revoked_certificate_is_refused_and_a_new_one_accepted() -> None:
    before_s = certificates.refused_before(time.time() - 100)
    ring = ring_of("h1", "h2", revoked={"h1": before_s})
    assert "revoked" in fault(ring, certificate_of("h1", age_s=500))
    assert fault(ring, certificate_of("h1")) == ""


def test_new_table_is_followed_and_the_last_one_is_kept() -> None:
    tables = [ring_of("h1"), ring_of("h2")]

    def ring() -> hash_ring.Ring:
        if not tables:
            raise errors.Unusable("ring_file", "it is not there")
        return tables.pop(0)

    clock = manual_clock.ManualClock()
    here, one = authorized_hosts.AuthorizedHosts(files_with(ring), clock), certificate_of("h1")
    assert here.why_refused(one) == here.why_refused(one) == ""
    clock.now_s += authorized_hosts.CHECK_INTERVAL_S
    assert "table 7" in here.why_refused(one)
    clock.now_s += authorized_hosts.CHECK_INTERVAL_S
    assert "table 7" in here.why_refused(one) and here.why_refused(certificate_of("h2")) == ""


def test_every_host_is_refused_without_a_table() -> None:
    def none() -> hash_ring.Ring:
        raise errors.Unusable("ring_file", "it is not there")

    here = authorized_hosts.AuthorizedHosts(files_with(none))
    assert "not there" in here.why_refused(certificate_of("h1"))


def test_addresses_of_hosts_come_from_the_last_table() -> None:
    tables: list[hash_ring.Ring] = []

    def ring() -> hash_ring.Ring:
        if not tables:
            raise errors.Unusable("ring_file", "it is not there")
        return tables[0]

    clock = manual_clock.ManualClock()
    here, ip = authorized_hosts.AuthorizedHosts(files_with(ring), clock), "10.0.0.1"
    assert here.hosts_at(ip) == 0
    tables.append(ring_of("h1"))
    assert here.hosts_at(ip) == 0  # the file is checked every ten seconds
    clock.now_s += authorized_hosts.CHECK_INTERVAL_S
    assert here.hosts_at(ip) == tables[0].hosts_at(ip) == 1
