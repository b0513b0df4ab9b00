# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.identity import handshake_rate_limit
from acstor_common.util import token_buckets
from tests.fakes import admission

NOBODY = admission.Admission()


def test_thousand_restarting_hosts_are_admitted_at_once():
    hosts = {f"10.0.{n >> 8}.{n & 255}": 1 for n in range(1000)}
    made = handshake_rate_limit.HandshakeRateLimit(admission.Admission(hosts=hosts))
    for _ in range(8):  # two connections of each class, all twice
        assert all(made.admit_handshake(ip, 0.0) for ip in hosts)
    assert made.refused == 0


def test_each_host_at_an_address_has_its_own_allowance():
    made = handshake_rate_limit.HandshakeRateLimit(admission.Admission(hosts={"10.0.0.1": 16}))
    assert sum(made.admit_handshake("10.0.0.1", 0.0) for _ in range(1000)) == 16 * 32


def test_flooding_host_does_not_lock_out_others():
    made = handshake_rate_limit.HandshakeRateLimit(
        admission.Admission(hosts={"10.0.0.1": 1, "10.0.0.2": 1})
    )
    assert sum(made.admit_handshake("10.0.0.1", 0.0) for _ in range(1000)) == 32
    assert made.admit_handshake("10.0.0.2", 0.0) and made.admit_handshake("192.0.2.1", 0.0)
    assert sum(made.admit_handshake("10.0.0.1", 10.0) for _ in range(1000)) == 32


def test_unknown_address_leaves_capacity_for_others():
    made = handshake_rate_limit.HandshakeRateLimit(NOBODY)
    assert sum(made.admit_handshake("192.0.2.1", 0.0) for _ in range(1000)) == 10
    assert made.admit_handshake("192.0.2.2", 0.0)


def test_admit_connection_takes_no_tokens_and_counts_refusals():
    made = handshake_rate_limit.HandshakeRateLimit(NOBODY)
    assert all(made.admit_connection("192.0.2.1", 0.0) for _ in range(1000))
    for _ in range(10):
        made.admit_handshake("192.0.2.1", 0.0)
    assert not made.admit_connection("192.0.2.1", 0.0)
    assert made.refused == 1


def test_remembered_addresses_are_bounded():
    made = handshake_rate_limit.HandshakeRateLimit(NOBODY)
    for n in range(3 * handshake_rate_limit.ADDRESSES):
        made.admit_handshake(f"fd00::{n:x}", n / 50)
    assert len(made._others) == handshake_rate_limit.ADDRESSES


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5), st.integers(-1, 8)), max_size=80))
def test_bucket_never_exceeds_its_rate_plus_one_burst(takings):
    buckets = token_buckets.TokenBuckets(token_buckets.Rate(2.0, 5.0), limit=100)
    had, now = dict.fromkeys(range(6), 0.0), 0.0
    for pause, who, amount in takings:
        now += pause
        if amount >= 0:
            had[who] += amount if buckets.try_take(who, amount, now) else 0
        else:
            buckets.charge_tokens(who, 100.0, now)  # a penalty
            assert buckets.tokens_left(who, now) >= -5.0
    assert all(count <= 5.0 + 2.0 * now for count in had.values())


def test_least_recently_charged_bucket_is_forgotten():
    buckets = token_buckets.TokenBuckets(token_buckets.Rate(1.0, 1.0), 2)
    for who in ("a", "b", "a", "c"):
        buckets.charge_tokens(who, 0.25, 0.0)
    levels = [buckets.tokens_left(who, 0.0) for who in "abc"]
    assert levels == [0.5, 1.0, 0.75] and len(buckets) == 2
