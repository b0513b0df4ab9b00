# SPDX-License-Identifier: Apache-2.0
"""Registration of checkpoints: authorization, retention and deletion."""

import base64
import threading
import time
import types

import msgspec
import pytest

from acstor_common.identity import replay_filter
from acstor_common.identity import sealed_box
from acstor_common.identity import signing
from acstor_common.model import checkpoint_intervals
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import checkpoint_registry
from acstor_decision import interval_lookup
from acstor_decision import nova_client
from acstor_decision.db import checkpoint_failure_queries as db_failures
from acstor_decision.db import checkpoint_queries
from acstor_decision.db import database
from tests.fakes import checkpoint_hosts
from tests.fakes import decision_databases
from tests.fakes import enrolled_hosts
from tests.fakes import manual_clock

NOW_S, SERVER = checkpoint_hosts.NOW_S, checkpoint_hosts.SERVER
taken, checkpoint_id = checkpoint_hosts.taken, checkpoint_hosts.checkpoint_id


class Hosts:
    """The service and the hosts that register checkpoints with it."""

    def __init__(self, conf, store):
        self.now_s = NOW_S
        self.nova, self.store = checkpoint_hosts.Nova(), store
        self._hosts = enrolled_hosts.EnrolledHosts(conf, store, lambda: self.now_s)
        for host in ("h1", "h2", "h3"):
            self._hosts.identity(host)
        self.keeper = self._hosts.keeper
        self.service = checkpoint_registry.CheckpointRegistry(
            store,
            self.nova,
            self._hosts.keeper.load_trust_state,
            interval_lookup.IntervalLookup(self.nova, 300),
            kept=2,
            kept_after_s=100.0,
            clock=manual_clock.FunctionClock(time.monotonic, lambda: self.now_s),
        )

    def sealed(self, reported, by="", purpose=signing.CHECKPOINT):
        made = signed_messages.sign_payload(
            reported, purpose, *self._hosts.identity(by or reported.host)
        )
        return decision_messages.encode(made)

    def concealed(self, reported, **changed):
        """Return the sealed registration of a checkpoint, as a host sends it."""
        key = self.opened(self.service.service_key({}), signing.CHECKPOINT_KEY, messages.ServiceKey)
        raw = msgspec.json.encode(reported)
        box = sealed_box.encrypt(bytes.fromhex(key.public), raw, reported.host.encode())
        said = {"host": reported.host, "sent_s": reported.sent_s, **changed}
        return messages.SealedMessage(box=base64.b64encode(box).decode(), **said)

    def opened(self, answer, purpose=signing.CHECKPOINT_ANSWER, kind=messages.CheckpointResponse):
        signers = signing.read_public_keys(self._hosts.keeper.signer_keys())
        signed = decision_messages.decode(answer, decision_messages.Signed)
        return signed_messages.verify_from_service(signed, purpose, signers, kind)

    def register(self, reported, **how):
        return self.opened(
            self.service.register_checkpoint(self.sealed(self.concealed(reported), **how))
        )

    def kept(self, host="h1", sent_s=NOW_S, **how):
        asked = self.sealed(messages.RetentionRequest(host=host, sent_s=sent_s), **how)
        return self.opened(self.service.list_kept(asked))

    def reports_its_host(self, host):
        self.store.record_samples({host: (decision_databases.sample(host), 0)})

    def intervals(self, host="h1", sent_s=NOW_S, failing=(), **how):
        reported = messages.IntervalRequest(host=host, sent_s=sent_s, failing=failing)
        asked = self.sealed(reported, **how)
        said = self.service.answer_intervals(asked)
        return self.opened(said, signing.CHECKPOINT_INTERVALS, messages.IntervalResponse)

    def requested_deleted(self, **how):
        self.now_s += 1
        asked = messages.OwnerRequest(host="h2", owners=("h1", "h2", "h3", "h9"), sent_s=self.now_s)
        said = self.service.list_orphaned_owners(self.sealed(asked, **how))
        return self.opened(said, signing.CHECKPOINT_OWNERS, messages.OwnerResponse)

    def gone(self):
        answer = self.requested_deleted()
        assert not answer.why
        return answer.gone

    def ids(self):
        return [row.checkpoint_id for row in self.store.list_checkpoints("", 100, "", "")]


@pytest.fixture
def hosts(configure, store):
    return Hosts(configure(), store)


def test_newest_checkpoints_of_a_server_are_kept(hosts):
    for number in (1, 2, 3):
        hosts.now_s += 1
        answer = hosts.register(taken(number))
    assert not answer.why
    assert [one.checkpoint_id for one in answer.kept] == [checkpoint_id(3), checkpoint_id(2)]
    assert hosts.ids() == [checkpoint_id(3), checkpoint_id(2)]
    assert hosts.service.registered == 3


def test_checkpoint_under_recovery_is_kept_until_its_new_host_registers(hosts):
    hosts.register(taken(1))
    hosts.store.record_recovery(checkpoint_id(1), hosts.now_s)
    for number in (2, 3, 4):  # the old host still runs, and Nova still lists the server there
        hosts.now_s += 1
        answer = hosts.register(taken(number))
    kept = [checkpoint_id(4), checkpoint_id(3), checkpoint_id(1)]
    assert [one.checkpoint_id for one in answer.kept] == hosts.ids() == kept
    hosts.nova.servers[checkpoint_hosts.SERVER] = nova_client.Server("h2", checkpoint_hosts.PROJECT)
    hosts.now_s += 1
    its_own = {"host": "h2", "vault_disk": checkpoint_hosts.OTHER_SERVER}
    its_own["holders"] = (messages.RegisteredHolder("h3", "10.0.0.3:1"),)
    assert not hosts.register(taken(5, **its_own)).why
    assert hosts.ids() == [checkpoint_id(5), checkpoint_id(4)]


def test_checkpoint_under_recovery_is_dropped_after_the_time_limit(hosts):
    hosts.register(taken(1))
    hosts.store.record_recovery(checkpoint_id(1), hosts.now_s)
    hosts.now_s += checkpoint_queries.PROTECTION_S
    for number in (2, 3):
        hosts.now_s += 1
        hosts.register(taken(number, sent_s=hosts.now_s))
    assert hosts.ids() == [checkpoint_id(3), checkpoint_id(2)]


def test_checkpoints_are_ordered_by_registration_not_by_host_clock(hosts):
    hosts.register(taken(1, taken_ms=1 << 60))
    hosts.now_s += 1
    hosts.register(taken(2, taken_ms=0))
    assert hosts.ids() == [checkpoint_id(2), checkpoint_id(1)]


def test_repeated_registration_is_stored_once(hosts):
    hosts.register(taken(1))
    answer = hosts.register(taken(1, sent_s=NOW_S + 5))
    assert not answer.why and [one.checkpoint_id for one in answer.kept] == [checkpoint_id(1)]
    assert hosts.ids() == [checkpoint_id(1)]


@pytest.mark.parametrize(
    ("second", "is_taken"),
    [
        (taken(1, checkpoint_id=checkpoint_id(9), sent_s=NOW_S + 7), False),
        (taken(2, checkpoint_id=checkpoint_id(1)), False),
        (taken(1, checkpoint_id=checkpoint_id(9), vault_disk=SERVER, sent_s=NOW_S + 7), True),
    ],
    ids=["an older one of the disk", "another of that id", "of a disk that began anew"],
)
def test_stale_registration_is_refused(hosts, second, is_taken):
    hosts.register(taken(1))
    assert (not hosts.register(second).why) is is_taken
    assert hosts.service.refused["stale"] == (not is_taken)


def test_host_cannot_block_anothers_registration_by_its_disk_name(hosts):
    other, its_holders = (
        checkpoint_hosts.OTHER_SERVER,
        (messages.RegisteredHolder("h3", "10.0.0.3:1"),),
    )
    hosts.nova.servers[other] = nova_client.Server("h2", checkpoint_hosts.PROJECT)
    last = decision_messages.MAX_NUMBER
    evil = taken(
        last,
        host="h2",
        instance_id=other,
        checkpoint_id=checkpoint_id(9),
        holders=its_holders,
        taken_ms=0,
        sent_s=NOW_S,
    )
    assert not hosts.register(evil).why
    assert not hosts.register(taken(1)).why


def test_disk_key_is_encrypted_in_transit(hosts):
    reported = taken(1)
    sent = msgspec.json.encode(hosts.sealed(hosts.concealed(reported)))
    assert reported.key.encode() not in sent and reported.manifest_name.encode() not in sent
    answer = hosts.opened(
        hosts.service.register_checkpoint(hosts.sealed(hosts.concealed(reported)))
    )
    assert (answer.why, answer.host, answer.sent_s) == ("", reported.host, reported.sent_s)
    assert hosts.store.get_checkpoint(reported.checkpoint_id).disk_key == reported.key


@pytest.mark.expect_log("checkpoints:")
def test_registration_sealed_for_or_by_another_host_is_refused(hosts):
    for changed in ({"host": "h2"}, {"sent_s": NOW_S + 3}):
        sent = hosts.sealed(hosts.concealed(taken(1), **changed))
        assert hosts.opened(hosts.service.register_checkpoint(sent)).why
    box = sealed_box.encrypt(sealed_box.public_key(signing.new_key()), b"{}", b"h1")
    for raw in (base64.b64encode(box).decode(), "no base64", ""):
        sent = hosts.sealed(messages.SealedMessage(host="h1", box=raw, sent_s=NOW_S + len(raw)))
        assert hosts.opened(hosts.service.register_checkpoint(sent)).why
    assert hosts.ids() == []


REFUSED = {
    "of a server that nova does not know": ({}, "there is no server"),
    "of a server on another host": (
        {SERVER: nova_client.Server("h2", checkpoint_hosts.PROJECT)},
        "h2",
    ),
    "of a server on no host": (
        {SERVER: nova_client.Server("", checkpoint_hosts.PROJECT)},
        "on no host",
    ),
    "of another project": ({SERVER: nova_client.Server("h1", "another")}, "of project another"),
}


@pytest.mark.parametrize(("servers", "why"), REFUSED.values(), ids=list(REFUSED))
@pytest.mark.expect_log("is refused")
def test_host_registers_only_for_servers_on_it(hosts, servers, why):
    hosts.nova.servers = servers
    answer = hosts.register(taken(1))
    assert why in answer.why and not answer.is_transient
    assert hosts.ids() == [] and hosts.service.refused["not_its_own"] == 1


AT_H2 = {
    "host": "h2",
    "checkpoint_id": checkpoint_id(3),
    "vault_disk": checkpoint_hosts.OTHER_SERVER,
    "holders": (messages.RegisteredHolder("h1", "10.0.0.1:7205"),),
}


@pytest.mark.expect_log("is refused")
def test_former_host_may_not_register_after_the_server_moved(hosts):
    assert not hosts.register(taken(1)).why
    hosts.nova.servers[SERVER] = nova_client.Server("h2", checkpoint_hosts.PROJECT)
    assert "is on h2" in hosts.register(taken(2)).why
    hosts.now_s += 1
    assert not hosts.register(taken(1, **AT_H2)).why
    assert hosts.ids() == [checkpoint_id(3), checkpoint_id(1)]


@pytest.mark.expect_log("is refused")
def test_holders_must_be_enrolled_hosts_at_their_own_addresses(hosts):
    def registers(number, **where):
        holders = tuple(messages.RegisteredHolder(host, at) for host, at in where.items())
        return hosts.register(taken(number, holders=holders)).why

    assert "h9 at 10.0.0.9:7202 has not enrolled" in registers(1, h9="10.0.0.9:7202")
    hosts.reports_its_host("h1")
    assert "would be h1 itself" in registers(2, h2="127.0.0.1:22")
    assert "would be h1 itself" in registers(3, h2="[::1]:22")
    hosts.reports_its_host("h2")
    assert "reports the address 10.0.0.2:7201" in registers(4, h2="10.0.0.7:7202")
    assert hosts.service.refused["not_its_own"] == 4
    assert not registers(5, h2="10.0.0.2:7202", h3="10.0.0.3:7202")


@pytest.mark.parametrize(
    "failure",
    [nova_client.NovaUnreachable("HTTP 503"), database.DatabaseError("sqlite://", "gone")],
)
@pytest.mark.expect_log("must retry")
def test_registration_without_nova_or_database_asks_for_a_retry(hosts, failure):
    hosts.nova.failure = failure
    assert hosts.register(taken(1)).is_transient and hosts.ids() == []
    hosts.nova.failure = None
    assert not hosts.register(taken(1, sent_s=NOW_S + 2)).why


@pytest.mark.expect_log("is rejected")
def test_message_signed_by_another_host_is_refused(hosts):
    assert "it is signed by h2" in hosts.register(taken(1), by="h2").why
    assert "it is signed by h2" in hosts.kept(by="h2").why
    assert hosts.ids() == [] and hosts.service.refused["not_authentic"] == 2


@pytest.mark.expect_log("is rejected")
def test_signature_for_another_purpose_is_refused(hosts):
    assert "none of the trusted keys" in hosts.register(taken(1), purpose=signing.SAMPLE).why


@pytest.mark.expect_log("is rejected")
@pytest.mark.parametrize(
    "sent_s", [NOW_S - replay_filter.AGE_S - 1, NOW_S + replay_filter.FUTURE_S + 1]
)
def test_message_with_an_implausible_time_is_refused(hosts, sent_s):
    assert "host's clock" in hosts.register(taken(1, sent_s=sent_s)).why or hosts.ids() == []
    assert hosts.ids() == []


@pytest.mark.expect_log("is rejected")
def test_forged_messages_do_not_fill_the_log(hosts, watched_log):
    forged = {"payload": "{}", "signature": "A" * 86 + "=="}
    for _ in range(2 * message_bus.WARNINGS):
        hosts.opened(hosts.service.list_kept(forged))
    assert len(watched_log.messages) == message_bus.WARNINGS


@pytest.mark.expect_log("it was accepted before")
def test_replayed_message_is_refused(hosts):
    message = hosts.sealed(hosts.concealed(taken(1)))
    hosts.service.register_checkpoint(message)
    hosts.store.delete_checkpoint(checkpoint_id(1))
    hosts.service.register_checkpoint(message)
    assert hosts.ids() == []


@pytest.mark.expect_log("others were sent")
def test_busy_host_does_not_block_other_hosts(hosts):
    hosts.service._freshness["h2"] = replay_filter.ReplayFilter(limit=3)
    answers = [hosts.kept("h2", NOW_S + n) for n in range(4)]
    assert not answers[2].why and answers[3].why
    assert not hosts.register(taken(1)).why


@pytest.mark.parametrize(
    "payload", [None, {}, {"payload": "{}", "signature": "x"}, [1], "x" * 100, {"payload": 1}]
)
def test_malformed_message_is_refused(hosts, payload):
    assert hosts.opened(hosts.service.register_checkpoint(payload)).why
    assert hosts.service.refused["not_authentic"] == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"key": "xy"},
        {"holders": []},
        {"holders": [{"host": "h1", "address": "10.0.0.1:1"}]},
        {"holders": [{"host": "h2", "address": "example.org:80"}]},
        {"holders": [{"host": "h2", "address": "169.254.169.254:80"}]},
        {"holders": [{"host": "h2", "address": "[::ffff:169.254.169.254]:80"}]},
        {"holders": [{"host": "h2", "address": "0.0.0.0:7202"}]},
        {"holders": [{"host": "h2", "address": "[ff02::1]:7202"}]},
        {"checkpoint_id": checkpoint_id(1).upper().replace("0B", "0B")},
        {"manifest_name": "ab"},
        {"number": 0},
        {"taken_ms": 1 << 64},
        {"consistency": "perhaps"},
        {"host": "../h1"},
    ],
)
def test_invalid_registration_fields_are_refused(changed):
    reported = msgspec.to_builtins(taken(1)) | changed
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(reported, messages.RegisteredCheckpoint)


def test_kept_list_has_only_the_hosts_own_checkpoints(hosts):
    hosts.register(taken(1))
    hosts.nova.servers[checkpoint_hosts.OTHER_SERVER] = nova_client.Server(
        "h2", checkpoint_hosts.PROJECT
    )
    holders = (messages.RegisteredHolder("h1", "10.0.0.1:7205"),)
    other = taken(
        2, host="h2", instance_id=checkpoint_hosts.OTHER_SERVER, vault_disk=SERVER, holders=holders
    )
    hosts.register(other)
    answer = hosts.kept()
    assert [one.checkpoint_id for one in answer.kept] == [checkpoint_id(1)] and answer.is_complete


def test_intervals_are_those_of_the_hosts_own_servers(hosts):
    said = {checkpoint_intervals.NAME: "600"}
    hosts.nova.groups = [nova_client.Aggregate({"h1"}, said)]
    hosts.nova.metadata = {"h1": {SERVER: said}, "h2": {checkpoint_hosts.OTHER_SERVER: said}}
    answer = hosts.intervals()
    assert (answer.why, answer.of_host, answer.host, answer.sent_s) == ("", 600, "h1", NOW_S)
    assert answer.of_servers == (messages.ServerInterval(SERVER, 600),)


@pytest.mark.expect_log("it is signed by h2")
@pytest.mark.expect_log("HTTP 403")
def test_intervals_are_refused_to_other_hosts_and_without_nova(hosts):
    assert "it is signed by h2" in hosts.intervals(by="h2").why
    hosts.nova.failure = nova_client.NovaUnreachable("HTTP 403")
    assert hosts.intervals().is_transient


def test_server_on_no_host_has_no_checkpoint_due(hosts):
    """A shelved server has no host; its last checkpoint stays."""
    hosts.register(taken(1))
    for host, instances in (("", []), ("h1", [SERVER]), ("", [])):
        hosts.nova.servers[SERVER] = nova_client.Server(host, checkpoint_hosts.PROJECT)
        hosts.service.sweep_servers(threading.Event())
        assert [one.instance_id for one in hosts.store.newest_checkpoints()] == instances
        assert hosts.ids() == [checkpoint_id(1)]
    hosts.nova.servers[SERVER] = nova_client.Server("h1", checkpoint_hosts.PROJECT)
    hosts.now_s += 1
    hosts.register(taken(2))
    assert len(hosts.store.newest_checkpoints()) == 1


def test_host_has_one_interval_request_in_flight(hosts):
    """Otherwise one host could block all threads of the message bus in calls to Nova."""
    reported = []

    def slowly(host):
        reported.append(hosts.intervals(host, sent_s=NOW_S + 1))
        reported.append(hosts.intervals("h2"))
        return messages.IntervalResponse()

    hosts.service._intervals = types.SimpleNamespace(
        intervals_of_host=lambda host: next(asks)(host)
    )
    asks = iter([slowly, lambda _host: messages.IntervalResponse()])
    assert not hosts.intervals().why
    again, of_another = reported
    assert again.is_transient and "another request of h1 is in progress" in again.why
    assert not of_another.why


def test_revoked_or_deleted_owner_without_checkpoints_is_orphaned(hosts):
    assert not hosts.register(taken(1)).why
    assert hosts.gone() == ()
    hosts.keeper.revoke_host("h1")
    hosts.keeper.delete_host("h3")
    assert hosts.gone() == ("h3",)  # h1 has a checkpoint; h9 was never a host of this cloud
    hosts.store.delete_checkpoint(checkpoint_id(1))
    assert hosts.gone() == ("h1", "h3")
    hosts.keeper.allow_host("h1")
    assert hosts.gone() == ("h3",)


@pytest.mark.expect_log("it is signed by h1")
def test_owner_request_signed_by_another_host_is_refused(hosts):
    assert "it is signed by h1" in hosts.requested_deleted(by="h1").why


def test_checkpoints_are_deleted_some_time_after_their_server(hosts):
    hosts.register(taken(1))
    hosts.nova.servers = {}
    for later_s, left in ((0, 1), (99, 1), (2, 0)):
        hosts.now_s += later_s
        hosts.service.sweep_servers(threading.Event())
        assert len(hosts.ids()) == left


def test_server_that_reappears_keeps_its_checkpoints(hosts):
    hosts.register(taken(1))
    servers, hosts.nova.servers = hosts.nova.servers, {}
    hosts.service.sweep_servers(threading.Event())
    assert hosts.store.newest_checkpoints() == []
    hosts.nova.servers = servers
    hosts.service.sweep_servers(threading.Event())
    hosts.nova.servers = {}
    hosts.now_s += 150
    hosts.service.sweep_servers(threading.Event())
    assert len(hosts.ids()) == 1


def test_sweep_deletes_nothing_while_nova_is_away(hosts):
    hosts.register(taken(1))
    hosts.nova.failure = nova_client.NovaUnreachable("HTTP 503")
    hosts.now_s += 10_000
    with pytest.raises(nova_client.NovaUnreachable):
        hosts.service.sweep_servers(threading.Event())
    assert len(hosts.ids()) == 1


def test_newest_checkpoint_of_each_server_is_listed(hosts):
    hosts.register(taken(1))
    hosts.now_s += 1
    hosts.register(taken(2))
    [newest] = hosts.store.newest_checkpoints()
    assert newest == (SERVER, NOW_S + 0.002, 600, 1 << 20)


def test_failures_are_recorded_until_the_host_stops_reporting_them(hosts, monkeypatch):
    clock = manual_clock.FunctionClock(lambda: hosts.now_s)
    monkeypatch.setattr(hosts.service, "_clock", clock)
    failing = (messages.Failing(SERVER, "holder", "h2"), messages.Failing("", "full"))
    hosts.intervals(failing=failing)
    assert hosts.store.checkpoint_failures(hosts.now_s) == {"h1": failing}
    hosts.intervals(sent_s=NOW_S + 1)  # too soon
    assert hosts.store.checkpoint_failures(hosts.now_s) == {"h1": failing}
    hosts.now_s += checkpoint_registry.NOTE_EVERY_S
    hosts.intervals(sent_s=hosts.now_s, failing=failing[:1])
    hosts.intervals("h2", sent_s=hosts.now_s, failing=failing[1:])
    noted = hosts.store.checkpoint_failures(hosts.now_s)
    assert noted == {"h1": failing[:1], "h2": failing[1:]}
    hosts.now_s += checkpoint_registry.NOTE_EVERY_S
    hosts.intervals(sent_s=hosts.now_s)
    assert hosts.store.checkpoint_failures(hosts.now_s) == {"h2": failing[1:]}
    hosts.now_s += db_failures.KEPT_S
    assert hosts.store.checkpoint_failures(hosts.now_s) == {}


@pytest.mark.expect_log("it is signed by h1")
def test_failure_reports_are_limited_to_the_hosts_own_and_in_number(hosts):
    one = messages.Failing("", "full")
    assert "it is signed by h1" in hosts.intervals("h2", failing=(one,), by="h1").why
    too_many = (one,) * (messages.MAX_FAILING + 1)
    assert "length" in hosts.intervals(failing=too_many).why
    assert hosts.store.checkpoint_failures(hosts.now_s) == {}


@pytest.mark.parametrize(
    "odd", [{"reason": "<b>"}, {"reason": "x" * 33}, {"holder": "no host"}, {"instance_id": "x"}]
)
def test_invalid_failure_report_is_refused(odd):
    with pytest.raises(ValueError):
        raw = {"instance_id": SERVER, "reason": "holder", "holder": "h2", **odd}
        msgspec.convert(raw, messages.Failing)
