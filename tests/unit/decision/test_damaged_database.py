# SPDX-License-Identifier: Apache-2.0
"""A damaged row of the database stops no round, and makes no table that hosts refuse."""

import pytest
import sqlalchemy as sa

from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from tests.unit.decision import test_service as rounds

TABLE = r"rings.ring_table of \d+ is damaged"
COLUMN = r"^database: \w+\.\w+ .* is damaged and counts as absent: "
FAR = ("UPDATE rings SET epoch = 10000001 WHERE epoch = 2",)
LAST = ("UPDATE rings SET epoch = 9223372036854775807 WHERE epoch = 2",)
OF_H9 = "UPDATE enrolments SET {} WHERE host = 'h9'"
KEY = "UPDATE authority_keys SET {0} = replace({0}, 'M', '*') WHERE kind = '{1}' AND number = {2}"


@pytest.fixture
def cloud(configure, store):
    """Return a cloud with two tables, a revoked host, and two keys of each kind."""
    one = rounds.Instance(configure(), store, name="one")
    cloud = rounds.Cloud(one)
    cloud.collect(2)
    for kind in ("ca", "signer"):
        one.enrolled.keeper.renew_key(kind, at_once=False)
    one.enrolled.enrol("h9")
    store.set_drained("h1", True)
    cloud.collect()
    store.set_drained("h1", False)
    assert one.epochs() == [1, 2]
    return cloud


def lead_on(cloud, configure, store, *statements):
    """Damage the database, and let another instance lead for two rounds."""
    two = rounds.Instance(configure(), store, name="two")
    two.enrolled = cloud.instances[0].enrolled
    with store.engine().begin() as link:
        for statement in statements:
            assert link.execute(sa.text(statement)).rowcount == 1
    cloud.instances = [two]
    cloud.collect(3, epoch=2)
    assert two.service.leads and two.service.metrics.has_database and not two.lead.stepped_down
    return two


def last_table(instance):
    sent = instance.published[-1]
    signers = signing.read_public_keys(instance.service.trust_state().signers)
    rounds.signed_messages.check_signature(
        signers, signing.TABLE, sent.table.encode(), sent.signature
    )
    return hash_ring.decode(sent.table.encode(), "the last table")


@pytest.mark.parametrize("damage", [FAR, LAST], ids=["far", "last"])
@pytest.mark.expect_log(TABLE)
def test_damaged_row_of_a_far_epoch_does_not_raise_the_epochs(cloud, configure, store, damage):
    two = lead_on(cloud, configure, store, *damage)
    assert two.epochs() == [3] and two.service.current.epoch == 3
    standby = rounds.Instance(configure(), store, leads=False, name="three")
    standby.service.run_round()
    store.set_drained("h2", True)
    cloud.collect()
    standby.service.run_round()
    assert standby.service.current.epoch == 4, "it notices tables below the damaged row"


@pytest.mark.expect_log("rings.ring_table of 2 is damaged")
def test_table_of_invalid_utf8_counts_as_damaged(cloud, configure, store):
    statement = "UPDATE rings SET ring_table = CAST(x'7bff' AS TEXT) WHERE epoch = 2"
    assert lead_on(cloud, configure, store, statement).epochs() == [3]


def test_revocation_in_the_far_future_leaves_tables_readable(cloud, configure, store):
    far = OF_H9.format(f"state = 'revoked', revoked_before_s = {1 << 60}")
    table = last_table(lead_on(cloud, configure, store, far))
    assert table.revoked == {"h9": hash_ring.MAX_EPOCH}


@pytest.mark.expect_log(COLUMN)
def test_revocation_of_an_impossible_name_is_omitted(cloud, configure, store):
    bad = OF_H9.format("host = CAST(x'68ff' AS TEXT), state = 'revoked', revoked_before_s = 1000")
    assert last_table(lead_on(cloud, configure, store, bad)).revoked == {}


@pytest.mark.parametrize(
    ("column", "kind", "number"),
    [("secret_key", "signer", 1), ("secret_key", "signer", 2), ("certificate", "ca", 2)],
)
@pytest.mark.expect_log(COLUMN)
def test_damaged_key_is_absent_while_another_is_trusted(
    cloud, configure, store, column, kind, number
):
    two = lead_on(cloud, configure, store, KEY.format(column, kind, number))
    assert last_table(two).epoch == 3
    trust = two.service.trust_state()
    counts = len(signing.read_public_keys(trust.signers)), trust.ca.count(b"BEGIN CERTIFICATE")
    assert counts == ((1, 2) if kind == "signer" else (2, 1))


@pytest.mark.expect_log("a round failed")
@pytest.mark.expect_log(COLUMN)
def test_stolen_key_does_not_replace_a_damaged_one(cloud, configure, store):
    keeper = cloud.instances[0].enrolled.keeper
    keeper.renew_key("signer", at_once=True)
    with store.engine().begin() as link:
        link.execute(sa.text(KEY.format("secret_key", "signer", 3)))
    with pytest.raises(rounds.errors.NotAuthenticated):
        keeper.load_trust_state()
    cloud.collect()
    assert cloud.instances[0].epochs() == [1, 2] and not cloud.instances[0].service.leads
