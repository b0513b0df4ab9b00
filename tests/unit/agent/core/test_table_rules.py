# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core.cloud import table_rules
from acstor_common.model import ids
from acstor_common.ring import hash_ring

H1, H2, H3 = (ids.HostId(name) for name in ("h1", "h2", "h3"))
LEAP = hash_ring.MAX_LEAP


def table(epoch, *names, revoked=None):
    hosts = tuple(hash_ring.RingHost(n, f"10.0.0.{n[1]}:7201", 1) for n in names)
    return hash_ring.Ring(epoch, hosts, revoked=revoked or {})


@pytest.mark.parametrize(
    ("epoch", "current", "is_signed", "is_current_signed", "why"),
    [
        (1, 0, False, False, ""),
        (1, 0, True, False, ""),
        (6, 5, True, True, ""),
        (6, 5, False, False, ""),
        (5, 5, True, True, "not higher"),
        (5, 5, False, False, "not higher"),
        (4, 5, True, True, "not higher"),
        (1, 10**15, True, False, ""),  # epochs of an operator's table do not bind the service
        (6, 5, False, True, "signed"),
        (5 + LEAP, 5, True, True, ""),
        (6 + LEAP, 5, True, True, "is too high"),
        (6 + LEAP, 5, False, False, ""),  # the operator's own
        ((1 << 53) - 1, 0, True, False, ""),  # the first may be any
        (1 << 53, 0, True, False, "out of range"),
        (1 << 53, 0, False, False, "out of range"),
        (1 << 63, 5, True, True, "out of range"),
    ],
)
def test_rules_decide_whether_a_table_replaces_the_current_one(
    epoch, current, is_signed, is_current_signed, why
):
    found = table_rules.rejection_reason(
        epoch, current, is_signed=is_signed, is_current_signed=is_current_signed
    )
    assert why in found
    assert bool(found) == bool(why)


def test_table_without_signature_does_not_replace_a_signed_one():
    found = table_rules.rejection_reason(6, 5, is_signed=False, is_current_signed=True)
    assert found == "the table in force is signed by the decision service, this one is not"


def test_hosts_of_the_current_and_the_former_table_are_admitted():
    now, before = table(2, "h1"), table(1, "h2")
    assert table_rules.admission_error(H1, 100.0, now, before) == ""
    assert table_rules.admission_error(H2, 100.0, now, before) == ""
    why = "it is neither in the current v-node table nor in the previous one"
    assert table_rules.admission_error(H3, 100.0, now, before) == why
    assert table_rules.admission_error(H2, 100.0, now, None) == why
    assert table_rules.admission_error(H1, 100.0, table(0), None)


def test_certificate_issued_before_a_revocation_is_refused():
    now, before = table(2, "h1", revoked={"h1": 100, "h2": 100}), table(1, "h2")
    for host in (H1, H2):
        why = table_rules.admission_error(host, 99.0, now, before)
        assert why == "its certificate was revoked"
        assert table_rules.admission_error(host, 100.0, now, before) == ""


def test_revocation_of_the_former_table_no_longer_counts():
    assert table_rules.admission_error(H1, 0.0, table(2, "h1"), table(1, revoked={"h1": 100})) == ""
