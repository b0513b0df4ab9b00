# SPDX-License-Identifier: Apache-2.0
"""Hosts that were revoked, or that the v-node table does not have, are not answered."""

import time

from acstor_checkpoint import belonging
from acstor_common import certificates
from acstor_common import errors
from acstor_common import ids
from acstor_common import ring as ring_
from tests.lab import identities


def certificate_of(name: str, age_s: float = 0.0) -> certificates.HostCertificate:
    files = identities.issue(name, age_s=age_s)
    return certificates.read_host_certificate(files.certificate, files.ca)


def ring_of(*hosts: str, revoked: dict[str, int] | None = None) -> ring_.Ring:
    listed = (ring_.RingHost(h, f"10.0.0.{n}:7201", 100) for n, h in enumerate(hosts, 1))
    return ring_.Ring(7, tuple(listed), revoked=revoked or {})


def test_a_host_of_the_table_may_speak() -> None:
    assert belonging.fault(lambda: ring_of("h1", "h2"), certificate_of("h1")) == ""


def test_a_host_that_the_table_does_not_have_may_not() -> None:
    assert "table 7" in belonging.fault(lambda: ring_of("h2"), certificate_of("h1"))


def test_a_revoked_certificate_is_refused_and_the_next_one_taken() -> None:
    before_s = certificates.refused_before(time.time() - 100)
    ring = ring_of("h1", "h2", revoked={"h1": before_s})
    assert "revoked" in belonging.fault(lambda: ring, certificate_of("h1", age_s=500))
    assert belonging.fault(lambda: ring, certificate_of("h1")) == ""
    assert ids.HostId("h1") in ring


def test_without_a_table_nobody_may() -> None:
    def none() -> ring_.Ring:
        raise errors.Unusable("ring_file", "it is not there")

    assert "not there" in belonging.fault(none, certificate_of("h1"))
