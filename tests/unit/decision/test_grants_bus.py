# SPDX-License-Identifier: Apache-2.0
"""An agent and the decision service on one bus in memory: grants, refusals, forged responses."""

import time

import msgspec
import pytest
from oslo_config import cfg

from acstor_agent.cloud import bus
from acstor_agent.cloud import grant_client
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants as messages
from acstor_common.wire import signed_messages
from acstor_decision import image_grants
from acstor_decision import nova_client
from acstor_decision import rpc
from tests.fakes import enrolled_hosts

HOST = ids.HostId("h1")
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
WAIT_S = 30.0

pytestmark = pytest.mark.allow_log("is refused a grant for image|^grants: ")


class Nova:
    """A Nova whose servers use IMAGE; it raises ``fault`` if that is set."""

    fault: Exception | None = None

    def is_image_used(self, image_id, _is_member, _requester):
        if self.fault:
            raise self.fault
        return image_id == IMAGE


class Cloud:
    """The service on the bus, and a host with its certificate."""

    def __init__(self, conf, store, folder):
        self.nova = Nova()
        self.hosts = enrolled_hosts.EnrolledHosts(conf, store, time.time)
        self.keeper = self.hosts.keeper
        self.grants = image_grants.ImageGrants(store, self.nova, self.keeper.load_trust_state)
        self.files = self.identity(folder)
        self.service = rpc.AgentBus(cfg.CONF, "one")

    def identity(self, folder):
        key, certificate = self.hosts.identity(HOST)
        trust = self.keeper.load_trust_state()
        held = identity_files.IdentitySet(trust.ca, certificate, key, trust.signers)
        identity_files.write(folder / "identity", held)
        return identity_files.IdentityFiles(HOST, identity_files.files_in(folder / "identity"))


@pytest.fixture
def cloud(configure, store, tmp_path, listens):
    path = tmp_path / "bus.conf"
    path.write_text("[DEFAULT]\ntransport_url = kombu+memory:////\n")
    link = bus.open_bus(HOST, [str(path)])
    made = Cloud(configure(), store, tmp_path)
    made.service.start_server(lambda signed: None, made.grants.rpc_methods())
    assert listens.wait(WAIT_S)
    made.client = grant_client.GrantClient(HOST, link, made.files)
    yield made
    link.stop()
    made.service.stop_server()
    cfg.CONF.reset()


def test_grant_is_received_over_the_bus(cloud):
    given = cloud.client.request(IMAGE)
    target = messages.target_of(f"/v1/images/{IMAGE}/file", "bytes=0-9")
    own = cloud.files.current_credentials()
    headers = messages.headers_of(given, target, own.key, time.time())
    used = messages.verify_use(headers, target, own.signers, {}, time.time())
    assert (used.host, used.image_id) == (HOST, IMAGE)


def test_unused_image_is_refused_and_nova_failure_asks_for_a_retry(cloud):
    with pytest.raises(errors.ChunkRefused, match="no server uses this image"):
        cloud.client.request(OTHER)
    cloud.nova.fault = nova_client.NovaUnreachable("HTTP 503")
    with pytest.raises(errors.SourceUnreachable, match="HTTP 503"):
        cloud.client.request(IMAGE)


def test_revoked_host_is_refused(cloud):
    cloud.keeper.revoke_host(HOST)
    with pytest.raises(errors.SourceUnreachable, match="revoked"):
        cloud.client.request(IMAGE)


def test_replayed_refusal_does_not_withhold_an_image(cloud):
    """Any client of the bus can replay earlier responses of the service."""
    with pytest.raises(errors.ChunkRefused):
        cloud.client.request(OTHER)
    kept = forge(cloud, grant=None, why="no server uses this image", sent_s=time.time() - 60)
    with pytest.raises(errors.SourceUnreachable, match="no server uses this image"):
        asks(cloud, kept)


class Responder:
    """Responds in place of the service."""

    def __init__(self, answer):
        self._answer = answer

    def call_method(self, topic, method, payload, timeout_s):
        said = self._answer(payload)
        if isinstance(said, Exception):
            raise said
        return said


def forge(cloud, **changed):
    """Return a responder with changed responses, signed with the service's key."""
    signer = cloud.keeper.load_trust_state().signer

    def answer(payload):
        said = decision_messages.decode(
            cloud.grants.request_grant(payload), decision_messages.Signed
        )
        response = msgspec.json.decode(said.payload, type=messages.GrantResponse)
        response = msgspec.structs.replace(response, **changed)
        return decision_messages.encode(
            signed_messages.sign_payload(response, signing.IMAGE_GRANT_ANSWER, signer)
        )

    return Responder(answer)


def asks(cloud, responder):
    return grant_client.GrantClient(HOST, responder, cloud.files).request(IMAGE)


def test_response_to_another_request_is_refused(cloud):
    for changed in ({"host": "h2"}, {"sent_s": 5.0}):
        with pytest.raises(errors.SourceUnreachable, match="the response is to another request"):
            asks(cloud, forge(cloud, **changed))


def test_grant_for_another_host_or_image_is_refused(cloud):
    trust = cloud.keeper.load_trust_state()
    grant = messages.ImageGrant(
        image_id=OTHER, host=HOST, host_key="", issued_s=time.time(), expires_s=time.time() + 9
    )
    for wrong in (grant, msgspec.structs.replace(grant, image_id=IMAGE, host="h2")):
        signed = signed_messages.sign_payload(wrong, signing.IMAGE_GRANT, trust.signer)
        with pytest.raises(errors.SourceUnreachable, match="it is for h"):
            asks(cloud, forge(cloud, grant=signed))
    unsigned = signed_messages.sign_payload(grant, signing.IMAGE_GRANT, signing.new_key())
    with pytest.raises(errors.SourceUnreachable, match="none of the trusted keys"):
        asks(cloud, forge(cloud, grant=unsigned))


@pytest.mark.parametrize(
    "said",
    [
        None,
        5,
        {},
        {"payload": "{}", "signature": "A" * 86 + "=="},
        errors.DecisionUnreachable("the message bus", "timed out"),
    ],
)
def test_invalid_response_counts_as_unreachable(cloud, said):
    with pytest.raises(errors.SourceUnreachable, match="a grant for image"):
        asks(cloud, Responder(lambda _payload: said))


def test_host_without_a_certificate_sends_no_request(cloud, tmp_path):
    nobody = identity_files.IdentityFiles(HOST, identity_files.files_in(tmp_path / "nowhere"))
    client = grant_client.GrantClient(HOST, Responder(lambda _payload: None), nobody)
    with pytest.raises(errors.SourceUnreachable, match="it has no certificate"):
        client.request(IMAGE)


def test_request_times_out_without_a_service(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(grant_client, "TIMEOUT_S", 0.5)
    cloud.service.stop_server()
    with pytest.raises(errors.SourceUnreachable, match="the message bus"):
        cloud.client.request(IMAGE)
