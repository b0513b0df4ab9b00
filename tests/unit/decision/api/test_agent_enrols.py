# SPDX-License-Identifier: Apache-2.0
"""The agent's enrolment client against the API: both sides agree on the protocol."""

import threading

import pytest

from acstor_agent.cloud import enrolment
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_decision.api import app
from acstor_decision.core import enrolment_rules
from tests.fakes import one_host
from tests.unit.decision.api import conftest

H1 = ids.HostId("h1")
ALLOW = r"refuses \(409\).*openstack acstor host allow h1"
AGENT = {"X-Roles": "acstor-reader", "X-User-Id": "agent-of-h1", "X-Project-Id": "acstor"}


class Adapter:
    """Calls the API's application in place of a keystoneauth adapter."""

    def __init__(self, client):
        self._client = client

    def get_endpoint(self):
        return "https://d.example:9710"

    def post(self, url, json, raise_exc):
        assert not raise_exc
        answer = self._client.post(url, json=json, headers=AGENT)
        return type("Response", (), {"status_code": answer.status_code, "content": answer.data})()


@pytest.fixture
def enrolment_limits():
    return enrolment_rules.EnrolmentLimits(least_interval_s=0.0)


@pytest.fixture
def files(tmp_path):
    return identity_files.IdentityFiles(H1, identity_files.files_in(tmp_path / "identity"))


def enrolling(client, files):
    return enrolment.HostEnrolment(
        H1, files, Adapter(client), one_host.OneTable(hash_ring.Ring(0, ()))
    )


def test_host_gets_a_new_key_with_each_certificate(client, files):
    host = enrolling(client, files)
    answer = host._enrol(threading.Event())
    first = files.current_credentials()
    assert (first.certificate.host, len(first.signers)) == ("h1", 1)
    assert first.certificate.not_after_s == int(answer.not_after)
    host._enrol(threading.Event())
    assert files.current_credentials().certificate.public_key != first.certificate.public_key


@pytest.mark.expect_log("host h1: no certificate for user agent-of-h1 .*its key did not sign")
def test_host_without_its_state_directory_is_refused_with_the_remedy(client, files, tmp_path):
    enrolling(client, files)._enrol(threading.Event())
    anew = identity_files.IdentityFiles(H1, identity_files.files_in(tmp_path / "new" / "identity"))
    with pytest.raises(errors.NotEnrolled, match=ALLOW):
        enrolling(client, anew)._enrol(threading.Event())
    client.post("/v1/hosts/h1/allow")
    enrolling(client, anew)._enrol(threading.Event())
    assert anew.current_credentials().certificate.host == "h1"


@pytest.mark.expect_log("no certificate for user agent-of-h1.*it is revoked")
def test_revoked_host_is_refused_and_keeps_its_files(client, files):
    host = enrolling(client, files)
    host._enrol(threading.Event())
    before = files.current_credentials()
    client.post("/v1/hosts/h1/revoke")
    with pytest.raises(errors.NotEnrolled, match=r"refuses \(403\).*revoked"):
        host._enrol(threading.Event())
    files.invalidate()
    assert files.current_credentials() is before


@pytest.mark.expect_log("no certificate for user agent-of-h1.*operator has to allow it")
def test_host_waiting_for_approval_retries_with_the_same_key(
    api_configuration, store, glance, bus, files
):
    api_configuration.set_override("enrolment", "approved", "acstor_decision")
    client = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    host = enrolling(client, files)
    with pytest.raises(errors.NotEnrolled, match=ALLOW):
        host._enrol(threading.Event())
    client.post("/v1/hosts/h1/allow", headers=conftest.ADMIN)
    host._enrol(threading.Event())  # only the first key may take the name
    assert files.current_credentials().certificate.host == "h1"
