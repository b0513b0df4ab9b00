# SPDX-License-Identifier: Apache-2.0
"""A checkpoint daemon's bus client and a decision service on an in-memory message bus."""

import base64
import threading
import time

import msgspec
import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_checkpoint.schedule import bus_client
from acstor_checkpoint.schedule import nova_intervals
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.identity import sealed_box
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import rpc
from tests.fakes import checkpoint_hosts
from tests.fakes import memory_bus
from tests.lab import identities

HOST, OTHER = ids.HostId("h1"), ids.HostId("h2")
DISK, INSTANCE, IMAGE = checkpoint_hosts.DISK, checkpoint_hosts.SERVER, checkpoint_hosts.IMAGE
RECORD = checkpoint_hosts.record()


class Service:
    """A decision service with given responses; it verifies and records requests."""

    def __init__(self, transport, key):
        self.reported, self.answer, self._key = [], messages.CheckpointResponse(), key
        self.signer = self.key_signer = key
        self.changed = {}
        target = oslo_messaging.Target(topic=decision_messages.TOPIC, server="one")
        endpoint = message_bus.Endpoint({})
        endpoint.register_checkpoint = self.register
        endpoint.kept_checkpoints = self.kept
        endpoint.checkpoint_intervals = self.intervals
        endpoint.checkpoint_service_key = self.service_key
        self.served = message_bus.serve(transport, target, endpoint, threading.Event())

    def register(self, _context, payload):
        signed = decision_messages.decode(payload, decision_messages.Signed)
        ca = identities.authority().certificate_pem
        sender, reported = signed_messages.verify_from_host(
            signed, signing.CHECKPOINT, ca, messages.SealedMessage
        )
        assert RECORD.key not in signed.payload
        raw = sealed_box.decrypt(self._key, base64.b64decode(reported.box), reported.host.encode())
        self.reported.append(
            (sender.host, msgspec.json.decode(raw, type=messages.RegisteredCheckpoint))
        )
        if isinstance(self.answer, Exception):
            raise self.answer
        binding = {"host": reported.host, "sent_s": reported.sent_s, **self.changed}
        answer = msgspec.structs.replace(self.answer, **binding)
        return decision_messages.encode(
            signed_messages.sign_payload(answer, signing.CHECKPOINT_ANSWER, self.signer)
        )

    def kept(self, _context, payload):
        return self.asked(payload, signing.CHECKPOINT_ANSWER)

    def intervals(self, _context, payload):
        return self.asked(payload, signing.CHECKPOINT_INTERVALS)

    def asked(self, payload, purpose):
        signed = decision_messages.decode(payload, decision_messages.Signed)
        ca = identities.authority().certificate_pem
        kind = messages.IntervalRequest
        sender, asked = signed_messages.verify_from_host(signed, signing.CHECKPOINT, ca, kind)
        self.reported.append((sender.host, asked))
        if isinstance(self.answer, Exception):
            raise self.answer
        binding = {"host": asked.host, "sent_s": asked.sent_s, **self.changed}
        answer = msgspec.structs.replace(self.answer, **binding)
        return decision_messages.encode(signed_messages.sign_payload(answer, purpose, self.signer))

    def service_key(self, _context, payload):
        key = messages.ServiceKey(sealed_box.public_key(self._key).hex())
        return decision_messages.encode(
            signed_messages.sign_payload(key, signing.CHECKPOINT_KEY, self.key_signer)
        )


@pytest.fixture
def transport():
    with memory_bus.transport() as made:
        yield made


@pytest.fixture
def key():
    return certificates.new_key()


class FullVault:
    """The health of a full vault."""

    def list_issues(self):
        return ["full"]


@pytest.fixture
def daemon(tmp_path, transport, key):
    signers = signing.public_pem(key)
    identity_files.write(tmp_path / "identity", identities.issue(HOST, signers=signers))
    files = identity_files.IdentityFiles(HOST, identity_files.files_in(tmp_path / "identity"))
    return bus_client.BusClient(HOST, files, transport, FullVault())


@pytest.fixture
def service(transport, key):
    made = Service(transport, key)
    yield made
    made.served.close()


def kept(number, disk=DISK):
    return messages.RetainedCheckpoint(RECORD.checkpoint_id, INSTANCE, disk, f"{number:064x}")


def test_checkpoint_is_registered_completely_and_kept_ones_returned(daemon, service):
    service.answer = messages.CheckpointResponse(kept=(kept(1), kept(2), kept(3, disk=IMAGE)))
    assert daemon.register_checkpoint(RECORD) == {f"{1:064x}", f"{2:064x}"}
    [(host, reported)] = service.reported
    assert (host, reported.host, reported.consistency, reported.interval_s) == (
        HOST,
        HOST,
        "filesystem",
        600,
    )
    assert (reported.key, reported.manifest_name) == (RECORD.key, RECORD.manifest_name)
    assert reported.holders == (messages.RegisteredHolder(OTHER, "10.0.0.2:7202"),)


def test_registration_is_retried_when_the_service_is_busy(daemon, service, monkeypatch):
    service.answer, pauses_s = messages.CheckpointResponse("too many wait", is_transient=True), []

    def wait(pause_s):
        pauses_s.append(pause_s)
        if len(pauses_s) == 3:
            service.answer = messages.CheckpointResponse(kept=(kept(1),))
        return False

    monkeypatch.setattr(daemon._stopping, "wait", wait)
    assert daemon.register_checkpoint(RECORD) == {f"{1:064x}"}
    assert len(pauses_s) == 3 and 2.0 <= pauses_s[2] <= 6.0


def test_kept_checkpoints_of_all_disks_are_listed(daemon, service):
    service.answer = messages.CheckpointResponse(kept=(kept(1), kept(2), kept(3, disk=IMAGE)))
    assert daemon.list_retained() == {DISK: {f"{1:064x}", f"{2:064x}"}, IMAGE: {f"{3:064x}"}}
    [(host, reported)] = service.reported
    assert (host, reported.host) == (HOST, HOST)


def test_intervals_are_fetched_and_bounded(daemon, service):
    service.answer = messages.IntervalResponse(
        of_host=600, of_servers=(messages.ServerInterval(INSTANCE, 0),)
    )
    assert daemon.fetch_intervals() == nova_intervals.Intervals(600, {INSTANCE: 0})
    service.answer = messages.IntervalResponse("Nova is away", is_transient=True)
    with pytest.raises(errors.DecisionUnreachable, match="Nova is away"):
        daemon.fetch_intervals()
    service.answer = messages.IntervalResponse(
        of_servers=(messages.ServerInterval(INSTANCE, 600),) * (messages.MAX_INTERVALS + 1)
    )
    with pytest.raises(errors.RemoteProtocolError, match="length"):
        daemon.fetch_intervals()


def test_failures_are_reported_vault_first_and_limited(daemon, service):
    service.answer = messages.IntervalResponse()
    failing = [messages.Failing(INSTANCE, "holder", OTHER)] * messages.MAX_FAILING
    daemon.fetch_intervals(failing)
    [(_, asked)] = service.reported
    assert asked.failing == (messages.Failing("", "full"), *failing[1:])


def test_response_for_another_purpose_is_refused(daemon, service):
    asked = service.asked
    service.asked = lambda payload, _purpose: asked(payload, signing.CHECKPOINT_ANSWER)
    with pytest.raises(errors.NotAuthenticated):
        daemon.fetch_intervals()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (messages.CheckpointResponse("it has not enrolled here"), "not enrolled"),
        (
            messages.CheckpointResponse("the database is unreachable", is_transient=True),
            "unreachable",
        ),
        (
            messages.CheckpointResponse(kept=(kept(1),), is_complete=False),
            "more checkpoints than it lists",
        ),
    ],
)
def test_incomplete_kept_list_is_an_error(daemon, service, answer, why):
    service.answer = answer
    with pytest.raises(errors.DecisionUnreachable, match=why):
        daemon.list_retained()


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (messages.CheckpointResponse("Nova says no"), errors.Unusable, "refuses it: Nova says no"),
        (
            messages.CheckpointResponse("Nova is away", is_transient=True),
            errors.DecisionUnreachable,
            "is away",
        ),
        (RuntimeError("a fault"), errors.DecisionUnreachable, "a fault"),
    ],
)
def test_refused_or_failed_registration_is_an_error(daemon, service, answer, error, why):
    daemon._limits = bus_client.BusLimits(pauses_s=(0.01, 0.01))
    service.answer = answer
    with pytest.raises(error, match=why):
        daemon.register_checkpoint(RECORD)


def test_kept_list_for_another_request_is_refused(daemon, service):
    service.changed = {"sent_s": 5.0}
    with pytest.raises(errors.NotAuthenticated, match="it answers another request"):
        daemon.list_retained()


@pytest.mark.parametrize("changed", [{"host": OTHER}, {"sent_s": 5.0}])
def test_registration_response_for_another_request_is_refused(daemon, service, changed):
    service.changed = changed
    with pytest.raises(errors.NotAuthenticated, match="it answers another request"):
        daemon.register_checkpoint(RECORD)


@pytest.mark.parametrize("what", ["signer", "key_signer"])
def test_forged_service_is_refused_and_gets_no_checkpoint(daemon, service, what):
    setattr(service, what, certificates.new_key())
    with pytest.raises(errors.NotAuthenticated):
        daemon.register_checkpoint(RECORD)
    assert len(service.reported) == (what == "signer")


def test_registration_times_out(daemon):
    daemon._limits = bus_client.BusLimits(answer_s=1.0)
    with pytest.raises(errors.DecisionUnreachable):
        daemon.register_checkpoint(RECORD)


def test_host_without_a_certificate_sends_no_registration(tmp_path, transport, service):
    files = identity_files.IdentityFiles(HOST, identity_files.files_in(tmp_path / "none"))
    lone = bus_client.BusClient(HOST, files, transport)
    with pytest.raises(errors.NotAuthenticated, match="no certificate"):
        lone.register_checkpoint(RECORD)
    assert service.reported == []


def wanted(key, purpose=signing.CHECKPOINT_WANTED, **changed):
    reported = {
        "request": 7,
        "instance_id": INSTANCE,
        "host": HOST,
        "given_s": time.time(),
        **changed,
    }
    return decision_messages.encode(
        signed_messages.sign_payload(messages.CheckpointRequest(**reported), purpose, key)
    )


def test_requested_checkpoint_is_scheduled_and_acknowledged(daemon, key):
    asked = []
    reply = opened(
        daemon.request_checkpoint(wanted(key), lambda instance: asked.append(instance) or 5)
    )
    assert asked == [INSTANCE]
    assert reply == messages.CheckpointReply(request=7, host=HOST, number=5)


def opened(said):
    """Return a host's verified reply."""
    signed = decision_messages.decode(said, decision_messages.Signed)
    ca = identities.authority().certificate_pem
    sender, reply = signed_messages.verify_from_host(
        signed, signing.CHECKPOINT_HEARD, ca, messages.CheckpointReply
    )
    assert sender.host == HOST
    return reply


def test_refused_checkpoint_request_returns_the_reason(daemon, key):
    def refuse(instance):
        raise errors.Unusable(f"server {instance}", "it has no interval " + "x" * 2000)

    reply = opened(daemon.request_checkpoint(wanted(key), refuse))
    assert "it has no interval" in reply.why and reply.number == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"host": OTHER},
        {"given_s": time.time() - 3600},
        {"given_s": time.time() + 3600},
        {"purpose": signing.TASK},
    ],
)
def test_misdirected_or_untimely_request_is_refused(daemon, key, changed):
    with pytest.raises(errors.NotAuthenticated):
        daemon.request_checkpoint(wanted(key, **changed), lambda instance: 5)


def test_request_not_signed_by_the_service_is_refused(daemon):
    with pytest.raises(errors.NotAuthenticated):
        daemon.request_checkpoint(wanted(certificates.new_key()), lambda instance: 5)


def test_replayed_request_is_refused(daemon, key):
    message = wanted(key)
    daemon.request_checkpoint(message, lambda instance: 5)
    with pytest.raises(errors.NotAuthenticated, match="accepted before"):
        daemon.request_checkpoint(message, lambda instance: 5)


@pytest.fixture
def asks(transport, key):
    """Return a function that sends requests like the service, optionally with another key."""

    def ask(request, key=key, timeout_s=3):
        caster = rpc.TaskSender(
            cfg.CONF,
            lambda what, purpose: signed_messages.sign_payload(what, purpose, key),
            call_timeout_s=timeout_s,
        )
        caster._transport = transport
        return caster.request_checkpoint(INSTANCE, HOST, request)

    return ask


def answered(asks, count=20):
    """Return the first reply after the daemon listens."""
    return next(said for request in range(1, count) if (said := asks(request)) is not None)


def test_request_over_the_bus_is_answered(daemon, asks):
    daemon.listen_for_requests(lambda instance: 5)
    reply = opened(decision_messages.encode(answered(asks)))
    assert (reply.host, reply.number) == (HOST, 5)
    daemon.stop()


@pytest.mark.expect_log("is ignored")
def test_forged_request_over_the_bus_gets_no_reply(daemon, asks):
    asked = []
    daemon.listen_for_requests(lambda instance: asked.append(instance) or 5)
    answered(asks)
    assert asks(99, certificates.new_key()) is None and len(asked) == 1
    daemon.stop()


def test_request_to_a_host_without_daemon_times_out(asks):
    assert asks(1, timeout_s=1) is None
