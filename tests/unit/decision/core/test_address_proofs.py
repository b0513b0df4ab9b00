# SPDX-License-Identifier: Apache-2.0
"""A host enters the ring table only at an address where it proved its identity."""

import pytest

from acstor_common.model import ids
from acstor_decision.core.membership import address_book
from acstor_decision.core.membership import address_proofs
from acstor_decision.core.membership import members
from tests.unit.decision.core import test_members as known

R = members.Refusal


def at(host: str) -> address_book.Address:
    return address_book.parse(f"10.0.0.{host[1:]}:7201")


@pytest.fixture
def cloud() -> known.Cloud:
    return known.Cloud(verify_addresses=True, dead_after_samples=3)


def due(cloud: known.Cloud) -> list[address_book.Address]:
    return cloud.members.take_addresses((), cloud.now_s)


def prove(cloud: known.Cloud, *hosts: str) -> None:
    for host in hosts:
        cloud.members.record_proof(at(host), host, cloud.now_s)


def test_host_becomes_a_member_after_it_proves_its_address(cloud):
    cloud.collect("h1", "h2", times=3)
    assert cloud.living() == []
    assert due(cloud) == [at("h1"), at("h2")]
    prove(cloud, "h1")
    assert cloud.living() == ["h1"]
    assert due(cloud) == [at("h2")]


def test_address_goes_to_the_host_that_proves_it(cloud):
    assert cloud.accept(known.sample("h9", address="10.0.0.1:7201")) is None
    assert (
        cloud.accept(known.sample("h1")) is None
    )  # h9 claimed the address first and did not prove it
    cloud.round = 1
    prove(cloud, "h1")
    assert cloud.accept(known.sample("h9", 2, address="10.0.0.1:7201")) is R.TAKEN_ADDRESS
    assert cloud.accept(known.sample("h1", 2)) is None
    assert cloud.living() == ["h1"]


def test_silent_host_leaves_after_a_failed_address_check(cloud):
    cloud.collect("h1", "h2", "h3", times=2)
    prove(cloud, "h1", "h2", "h3")
    cloud.collect("h1", "h2", times=4)
    assert cloud.living() == ["h1", "h2", "h3"]
    assert due(cloud) == [at("h3")]
    prove(cloud, "h3")
    assert cloud.living() == ["h1", "h2", "h3"]
    cloud.collect("h1", "h2", times=2)
    cloud.members.record_proof(at("h3"), "", cloud.now_s)
    assert cloud.living() == ["h1", "h2"]


def test_address_of_a_silent_host_needs_a_proof_by_its_new_owner(cloud):
    cloud.collect("h1", "h2", "h3", times=2)
    prove(cloud, "h1", "h2", "h3")
    cloud.round += 10
    cloud.collect("h9", times=2, address="10.0.0.1:7201")
    assert cloud.living() == ["h1", "h2", "h3"]
    prove(cloud, "h1")
    assert cloud.living() == ["h1", "h2", "h3"]
    cloud.members.record_proof(at("h1"), "h9", cloud.now_s)  # h1 was reinstalled as h9
    assert cloud.living() == ["h2", "h3", "h9"]


def test_restored_members_need_no_new_proof(cloud):
    cloud.members.restore_member("h1", "10.0.0.1:7201", "", cloud.now_s)
    assert cloud.living() == ["h1"] and due(cloud) == []


def test_failing_addresses_are_retried_with_backoff_after_new_ones():
    proofs = address_proofs.AddressProofs()
    claims = [
        (ids.HostId(f"h{port}"), address_book.Address("10.0.0.1", port)) for port in range(1, 201)
    ]
    tried = []
    for now_s in range(4000):
        for address in proofs.take_addresses(claims[:1], (), float(now_s)):
            proofs.record_attempt(address, "", float(now_s), has_failed=True)
            tried.append(now_s)
    assert tried[:4] == [0, 5, 15, 35]
    assert tried[-1] - tried[-2] == address_proofs.LONGEST_PAUSE_S
    taken = proofs.take_addresses(claims, (), 10_000.0)
    assert taken == [address for _, address in claims[1 : 1 + address_proofs.AT_A_TIME]]


def test_names_with_new_addresses_neither_keep_a_new_host_out_nor_fill_the_queue(cloud):
    """Each sample of 64 names claims another unreachable address; each delays a thread for 3 s."""
    names, attempts_a_round = [f"a{n}" for n in range(address_proofs.AT_A_TIME)], 26
    in_flight: list[address_book.Address] = []
    while "h1" not in cloud.living():
        cloud.round += 1
        assert cloud.round < 16
        for n, name in enumerate(names):
            claimed = {"address": f"10.{cloud.round}.0.{n + 1}:7201"}
            assert cloud.accept(known.sample(name, cloud.round, **claimed)) is None
        if cloud.round > 10:
            assert cloud.accept(known.sample("h1", cloud.round)) is None
        in_flight += cloud.members.take_addresses(in_flight, cloud.now_s)
        assert len(set(in_flight)) == len(in_flight) <= address_proofs.AT_A_TIME
        for address in in_flight[:attempts_a_round]:
            found = "h1" if address == at("h1") else ""
            cloud.members.record_proof(address, found, cloud.now_s)
        del in_flight[:attempts_a_round]
        cloud.members.forget_dead(cloud.now_s)


def test_name_that_left_and_returns_does_not_come_first():
    proofs = address_proofs.AddressProofs()
    proofs.take_addresses([(known.H1, at("h1"))], (), 0.0)
    proofs.remove_host(known.H1)
    proofs.forget_attempts((), (), 30.0)
    assert proofs.take_addresses([(known.H1, at("h9")), (known.H2, at("h2"))], (), 30.0) == [
        at("h2"),
        at("h9"),
    ]
