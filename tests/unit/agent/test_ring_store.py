# SPDX-License-Identifier: Apache-2.0
import json
import os
import types

import msgspec
import pytest
import trio

from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_store
from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.fakes import cloud_keys
from tests.fakes import manual_clock


def table(epoch, *names):
    hosts = [
        {"host": name, "address": f"10.0.0.{n}:7201", "vnodes": 10} for n, name in enumerate(names)
    ]
    return json.dumps({"version": 1, "epoch": epoch, "hosts": hosts}).encode()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "ring-file.json"


@pytest.fixture
def keep(tmp_path, file):
    return lambda: ring_store.RingStore(tmp_path / "ring.json", file)


def replace(file, data):
    """Write a new file in the old one's place, as tools do."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, file)


def test_without_a_table_the_ring_is_empty(tmp_path):
    keeper = ring_store.RingStore(tmp_path / "ring.json", None)
    assert (keeper.current_ring().epoch, keeper.current_ring().hosts) == (0, ())


def test_file_is_read_at_the_start(keep, file):
    file.write_bytes(table(3, "h1", "h2"))
    assert keep().current_ring().epoch == 3


def test_operator_table_survives_a_restart(keep, file):
    assert keep().set_operator_table(table(4, "h1")).epoch == 4
    assert [host.host for host in keep().current_ring().hosts] == ["h1"]


def test_newer_of_file_and_operator_table_wins(keep, file):
    keep().set_operator_table(table(4, "sent"))
    file.write_bytes(table(5, "written"))
    assert keep().current_ring().hosts[0].host == "written"


@pytest.mark.expect_log("has epoch 3, older than 4 in use; not accepted")
def test_older_file_does_not_replace_an_operator_table(keep, file):
    keep().set_operator_table(table(4, "sent"))
    file.write_bytes(table(3, "written"))
    assert keep().current_ring().hosts[0].host == "sent"


def test_operator_table_must_have_a_higher_epoch(keep, file):
    keeper = keep()
    keeper.set_operator_table(table(4, "h1"))
    for epoch in (3, 4):
        with pytest.raises(ValueError, match=f"epoch {epoch} is not higher than 4"):
            keeper.set_operator_table(table(epoch, "h2"))
    assert keeper.current_ring().hosts[0].host == "h1"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":2}', b"\xff" * 100])
def test_invalid_operator_table_is_refused_and_not_stored(keep, tmp_path, data):
    keeper = keep()
    with pytest.raises(errors.RingFormatError):
        keeper.set_operator_table(data)
    assert not (tmp_path / "ring.json").exists()


@pytest.mark.expect_log("dropping the stored table: .*ring.json")
def test_corrupt_stored_table_does_not_prevent_the_start(keep, tmp_path, file):
    (tmp_path / "ring.json").write_bytes(b"{")
    file.write_bytes(table(1, "h1"))
    assert keep().current_ring().epoch == 1


@pytest.mark.expect_log("ring.json'; it is not used")
def test_unreadable_stored_table_does_not_prevent_the_start(keep, tmp_path):
    (tmp_path / "ring.json").mkdir()
    assert keep().current_ring().epoch == 0


async def test_changed_ring_file_is_reloaded(keep, file, nursery, autojump_clock):
    file.write_bytes(table(1, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch_file)
    replace(file, table(2, "h1", "h2"))
    await trio.sleep(1.1)
    assert keeper.current_ring().epoch == 2
    file.unlink()


@pytest.mark.expect_log("keeping the last table")
async def test_corrupt_or_removed_ring_file_keeps_the_table_and_is_logged_once(
    keep, file, nursery, autojump_clock, watched_log
):
    file.write_bytes(table(2, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch_file)
    for change in (lambda: replace(file, b"{"), file.unlink):
        said = len(watched_log.messages)
        change()
        await trio.sleep(5)
        assert keeper.current_ring().epoch == 2
        assert len(watched_log.messages) == said + 1
    replace(file, table(3, "h1"))
    await trio.sleep(1.1)
    assert keeper.current_ring().epoch == 3


@pytest.mark.expect_log("keeping the last table")
async def test_ring_file_with_unchanged_size_and_mtime_is_reloaded(
    keep, file, nursery, autojump_clock
):
    good = table(2, "h1")
    file.write_bytes(b"{" * len(good))
    before = file.stat()
    keeper = keep()
    nursery.start_soon(keeper.watch_file)
    file.write_bytes(good)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_ino == before.st_ino
    await trio.sleep(1.1)
    assert keeper.current_ring().epoch == 2


@pytest.mark.expect_log("but differs from the table of this epoch in use; not accepted")
async def test_changed_ring_file_of_the_same_epoch_is_rejected_and_logged(
    keep, file, nursery, autojump_clock
):
    file.write_bytes(table(2, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch_file)
    replace(file, table(2, "h9"))
    await trio.sleep(1.1)
    assert keeper.current_ring().hosts[0].host == "h1"


def test_former_table_is_remembered_for_a_limited_time(tmp_path):
    now = [100.0]
    keeper = ring_store.RingStore(
        tmp_path / "ring.json", None, 60.0, manual_clock.FunctionClock(lambda: now[0])
    )
    keeper.set_operator_table(table(1, "h1"))
    assert keeper.former_ring() is None  # there was none before
    keeper.set_operator_table(table(2, "h2"))
    assert keeper.former_ring().epoch == 1
    keeper.set_operator_table(table(3, "h3"))
    assert keeper.former_ring().epoch == 2  # one former table, the last
    now[0] += 59.9
    assert keeper.former_ring().epoch == 2
    now[0] += 0.1
    assert keeper.former_ring() is None


def test_refused_table_leaves_no_former_table(tmp_path):
    keeper = ring_store.RingStore(tmp_path / "ring.json", None, 60.0)
    keeper.set_operator_table(table(2, "h2"))
    with pytest.raises(ValueError, match="not higher"):
        keeper.set_operator_table(table(1, "h1"))
    assert keeper.former_ring() is None


def test_former_table_can_be_disabled(tmp_path):
    keeper = ring_store.RingStore(tmp_path / "ring.json", None, 0.0)
    keeper.set_operator_table(table(1, "h1"))
    keeper.set_operator_table(table(2, "h2"))
    assert keeper.former_ring() is None


# Signed tables

KEYS = cloud_keys.CloudKeys()
SIGNERS = signing.read_public_keys(KEYS.signers)
IDENTITY = types.SimpleNamespace(signer_keys=lambda: SIGNERS)


def signed(epoch, *names, keys=KEYS, reported=None, revoked=None):
    hosts = tuple(hash_ring.RingHost(n, f"10.0.0.{n[1]}:7201", 1) for n in names)
    return keys.table(hash_ring.Ring(epoch, hosts, revoked=revoked or {}), reported)


@pytest.fixture
def joined(tmp_path, file):
    """Return a function that opens the store with the keys of the service, as each start does."""
    return lambda: ring_store.RingStore(
        tmp_path / "ring.json",
        file,
        60.0,
        manual_clock.FunctionClock(lambda: 0.0),
        identity=IDENTITY,
    )


def take(keeper, sent):
    keeper.accept_table(message_signing.verify_table(sent, SIGNERS), sent)


def test_signed_table_survives_a_restart(joined, tmp_path):
    take(joined(), signed(9, "h1", "h2"))
    keeper = joined()
    assert (keeper.current_ring().epoch, keeper.is_signed, keeper.reported_epoch()) == (9, True, 9)
    assert (tmp_path / "ring.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (signed(9, "h1", keys=cloud_keys.CloudKeys()), "none of the trusted keys made it"),
        (msgspec.structs.replace(signed(9, "h1"), signature=""), "none of the trusted keys"),
        (
            msgspec.structs.replace(signed(9, "h1"), table=signed(9, "h2").table),
            "none of the trusted keys",
        ),
        (signed(9, "h1", reported=10), "the signature is for epoch 9"),
    ],
)
def test_table_without_a_valid_signature_is_rejected(sent, why):
    with pytest.raises(errors.NotAuthenticated, match=why):
        message_signing.verify_table(sent, SIGNERS)


def test_signature_for_another_purpose_is_rejected():
    sent = signed(9, "h1")
    key = KEYS.signing_key
    for purpose in (signing.TASK, signing.SAMPLE, "", "tabl"):
        signature = message_signing.signed_messages.signature_of(purpose, sent.table.encode(), key)
        with pytest.raises(errors.NotAuthenticated):
            message_signing.verify_table(
                msgspec.structs.replace(sent, signature=signature), SIGNERS
            )


def test_table_is_rejected_without_signer_keys():
    with pytest.raises(errors.NotAuthenticated, match="has no keys to verify signatures"):
        message_signing.verify_table(signed(9, "h1"), ())


def test_signed_table_needs_a_higher_epoch_within_the_allowed_step(joined):
    keeper = joined()
    take(keeper, signed(1 << 52, "h1"))  # the first may have any epoch
    for epoch in (1 << 52, 1, (1 << 52) + 1_000_001):
        with pytest.raises(ValueError, match=r"not higher|too high"):
            take(keeper, signed(epoch, "h2"))
    take(keeper, signed((1 << 52) + 1_000_000, "h3"))
    assert keeper.current_ring().hosts[0].host == "h3"
    assert keeper.former_ring().epoch == 1 << 52


def test_signed_table_replaces_an_operator_table_of_any_epoch(joined, file):
    file.write_bytes(table(70, "h1"))
    keeper = joined()
    assert (keeper.current_ring().epoch, keeper.reported_epoch()) == (70, 0)
    take(keeper, signed(3, "h2"))
    assert (keeper.current_ring().epoch, keeper.reported_epoch(), keeper.former_ring().epoch) == (
        3,
        3,
        70,
    )
    with pytest.raises(ValueError, match="the table in force is signed"):
        keeper.set_operator_table(table(71, "h1"))


@pytest.mark.expect_log("is not accepted: the table in force is signed by the decision service")
async def test_ring_file_is_rejected_once_a_signed_table_is_in_force(
    joined, file, nursery, autojump_clock
):
    keeper = joined()
    take(keeper, signed(3, "h2"))
    nursery.start_soon(keeper.watch_file)
    replace(file, table(70, "h1"))
    await trio.sleep(1.1)
    assert keeper.current_ring().epoch == 3


def poisons():
    sent = signed(9, "h1")
    leap = json.loads(table(1, "h1")) | {"epoch": (1 << 63) - 1}
    return {
        "nothing": b"",
        "no UTF-8": b'{"epoch":1,"table":"\xff"}',
        "garbage": os.urandom(1000),
        "a bare table, as it was kept before": table(9, "h1"),
        "a bare table with a huge epoch": json.dumps(leap).encode(),
        "unsigned": msgspec.json.encode(msgspec.structs.replace(sent, signature="")),
        "of another authority": msgspec.json.encode(signed(9, "h1", keys=cloud_keys.CloudKeys())),
        "another table": msgspec.json.encode(
            msgspec.structs.replace(sent, table=signed(9, "h2").table)
        ),
        "another epoch": msgspec.json.encode(signed(9, "h1", reported=8)),
        "unsigned and huge": msgspec.json.encode(
            {"epoch": (1 << 63) - 1, "table": json.dumps(leap), "signature": ""}
        ),
        "long": b" " * (ring_store.MAX_STORED_BYTES + 1),
    }


@pytest.mark.expect_log("dropping the stored table: .*ring.json")
@pytest.mark.parametrize("poison", poisons().items(), ids=lambda item: item[0])
def test_invalid_stored_table_is_dropped_and_the_next_one_accepted(joined, tmp_path, poison):
    (tmp_path / "ring.json").write_bytes(poison[1])
    keeper = joined()
    assert (keeper.current_ring().epoch, keeper.reported_epoch()) == (
        0,
        0,
    )  # so its samples ask for one
    assert not (tmp_path / "ring.json").exists()
    take(keeper, signed(3, "h1"))
    assert joined().current_ring().epoch == 3


@pytest.mark.expect_log(
    "the v-node table in .*ring.json: this host has no keys to verify signatures"
)
def test_stored_signed_table_is_kept_where_it_cannot_be_verified(joined, keep):
    take(joined(), signed(9, "h1"))
    assert keep().current_ring().epoch == 0
    assert joined().current_ring().epoch == 9


@pytest.mark.expect_log("ring epoch 9 cannot be stored for the next start: .*No such file")
def test_table_takes_effect_although_it_cannot_be_stored(tmp_path):
    keeper = ring_store.RingStore(tmp_path / "gone" / "ring.json", None, identity=IDENTITY)
    take(keeper, signed(9, "h1"))
    assert keeper.current_ring().epoch == 9


def test_hosts_of_current_and_former_table_are_admitted_unless_revoked(joined):
    keeper = joined()
    h1, h2, h3 = (ids.HostId(name) for name in ("h1", "h2", "h3"))
    assert keeper.admission_error(h1, 100.0)
    take(keeper, signed(1, "h1", "h2"))
    assert not keeper.admission_error(h1, 100.0)
    take(keeper, signed(2, "h1", revoked={"h1": 101}))
    assert "revoked" in keeper.admission_error(h1, 100.0)
    assert not keeper.admission_error(h1, 101.0)
    assert not keeper.admission_error(h2, 100.0)  # of the former table
    assert "neither in the current v-node table" in keeper.admission_error(h3, 100.0)


def test_hosts_at_address_counts_hosts_of_current_and_former_table(tmp_path):
    now = [0.0]
    keeper = ring_store.RingStore(
        tmp_path / "ring.json", None, 60.0, manual_clock.FunctionClock(lambda: now[0])
    )
    keeper.set_operator_table(table(1, "h1", "h2"))
    keeper.set_operator_table(table(2, "h1"))
    assert [keeper.hosts_at(f"10.0.0.{n}") for n in range(3)] == [1, 1, 0]
    now[0] = 60.0
    assert keeper.hosts_at("10.0.0.1") == 0
