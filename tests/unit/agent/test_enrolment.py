# SPDX-License-Identifier: Apache-2.0
"""Enrolment of a host at a simulated decision service."""

import json
import logging
import re
import time

import pytest
import trio
from keystoneauth1 import exceptions
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent.cloud import enrolment
from acstor_agent.core.cloud import certificate_renewal
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import signed_messages
from tests.fakes import cloud_keys
from tests.fakes import manual_clock
from tests.fakes import one_host

H1 = ids.HostId("h1")
LIFE_S = 3600


class Response:
    def __init__(self, status_code, body):
        self.status_code = status_code
        self.content = body if isinstance(body, bytes) else json.dumps(body).encode()


class Api:
    """Issues certificates, or responds as the test sets."""

    def __init__(self, clock):
        self.keys = cloud_keys.CloudKeys(clock.time())
        self.clock = clock
        self.asked = []
        self.instead = None
        self.off_s = 0.0
        self.host = H1
        self.endpoint = "https://d.example:9710"

    def get_endpoint(self):
        return self.endpoint

    def post(self, url, json, raise_exc):
        assert (url, raise_exc) == ("/v1/hosts/h1/certificate", False)
        self.asked.append(json)
        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead is not None:
            return Response(*self.instead)
        now_s = self.clock.time() - self.off_s
        certificate = self.keys.authority.issue_certificate(
            json["csr"].encode(), self.host, now_s, LIFE_S
        )
        return Response(
            200,
            {
                "certificate": certificate.decode(),
                "ca": self.keys.authority.certificate_pem.decode(),
                "signers": self.keys.signers.decode(),
                "not_after": now_s + LIFE_S,
                "now": now_s,
            },
        )


NO_TABLE = one_host.OneTable(hash_ring.Ring(0, ()))


class Clock:
    """The wall clock of a host, driven by trio's autojump clock; tests may set it."""

    set_by_s = 0.0

    def __init__(self, trio_clock):
        self._clock, self._began_s = trio_clock, time.time()

    def time(self):
        return self._began_s + self._clock.current_time() + self.set_by_s


@pytest.fixture
def wall(autojump_clock, monkeypatch):
    async def at_once(call, **_):  # a clock that jumps does not wait for threads
        await trio.lowlevel.checkpoint()
        return call()

    monkeypatch.setattr(enrolment.trio.to_thread, "run_sync", at_once)
    return Clock(autojump_clock)


@pytest.fixture
def api(wall):
    return Api(wall)


@pytest.fixture
def files(tmp_path):
    folder = identity_files.files_in(tmp_path / "state" / "identity")
    return identity_files.IdentityFiles(
        H1, folder, clock=manual_clock.FunctionClock(iter(range(0, 10**9, 10)).__next__)
    )


@pytest.fixture
def enrolling(api, files, wall):
    return enrolment.HostEnrolment(H1, files, api, NO_TABLE, wall, lambda: 0.5)


async def test_host_without_a_certificate_requests_one_at_once(
    autojump_clock, enrolling, api, files, nursery
):
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    assert files.current_credentials().certificate.host == "h1"
    assert len(files.signer_keys()) == 1
    assert [set(body) for body in api.asked] == [{"csr", "proof"}]
    assert api.asked[0]["proof"] == ""
    assert enrolling.state._replace(clock_offset_s=0.0) == enrolment.EnrolmentState(enrolled=1)


async def test_certificate_is_renewed_before_two_thirds_of_its_life_with_proof(
    autojump_clock, enrolling, api, files, nursery
):
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    first = files.current_credentials().certificate
    await trio.sleep(LIFE_S * 0.5)
    assert len(api.asked) == 1
    await trio.sleep(LIFE_S * 0.2)
    assert len(api.asked) == 2
    second = files.current_credentials().certificate
    assert second.not_after_s > first.not_after_s
    body = api.asked[1]
    signed_messages.check_signature(
        [first.public_key], signing.RENEWAL, body["csr"].encode(), body["proof"]
    )
    assert certificates.request_key(body["csr"].encode()) == second.public_key


async def test_worker_that_starts_with_a_certificate_requests_none(
    autojump_clock, enrolling, api, files, nursery
):
    folder = files.files.ca.parent
    folder.parent.mkdir()
    identity_files.write(folder, api.keys.host("h1"))
    nursery.start_soon(enrolling.run)
    await trio.sleep(60)
    assert api.asked == []


@pytest.mark.expect_log("no new certificate: .* it is revoked; trying again")
async def test_revoked_host_retries_until_it_is_allowed(autojump_clock, api, files, wall, nursery):
    rings = one_host.OneTable(hash_ring.Ring(0, ()))
    revoked = rings.current_ring().revoked
    nursery.start_soon(enrolment.HostEnrolment(H1, files, api, rings, wall, lambda: 0.5).run)
    await trio.sleep(enrolment.TICK_S)
    first = files.current_credentials().certificate
    assert len(api.asked) == 1
    revoked["h1"] = first.not_before_s + 1
    api.instead = (403, {"error": {"message": "it is revoked"}})
    await trio.sleep(enrolment.TICK_S + 1)
    assert len(api.asked) > 1
    assert files.current_credentials().certificate == first
    api.instead = None
    await trio.sleep(certificate_renewal.RETRY_LONGEST_S)
    second = files.current_credentials().certificate
    assert not certificates.is_revoked(second, revoked)
    asked = len(api.asked)
    await trio.sleep(10 * enrolment.TICK_S)
    assert len(api.asked) == asked


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ((403, {"error": {"code": 403, "message": "no policy"}}), r"refuses \(403\): no policy"),
        ((404, b"<html>"), r"refuses \(404\): it gives no reason"),
        ((500, {"error": 7}), r"refuses \(500\): it gives no reason"),
        ((409, {"error": {"message": "\x1b[31m" + "x" * 999}}), r"refuses \(409\): \?\[31mx{295}"),
        ((200, b"{}"), "invalid answer"),
        ((200, b"\xff"), "invalid answer"),
        (exceptions.ConnectFailure("no route"), "unreachable: no route"),
        (exceptions.ServiceUnavailable("later"), "unreachable: later"),
        (
            exceptions.Unauthorized("wrong password"),
            "Keystone refuses the credentials: wrong password",
        ),
        (RuntimeError("odd"), r"is invalid: RuntimeError\('odd'\)"),
        (exceptions.EndpointNotFound("no acstor"), "Keystone refuses the credentials: no acstor"),
    ],
)
@pytest.mark.expect_log("no new certificate: .*; trying again")
async def test_failure_is_logged_once_and_retried(
    autojump_clock, enrolling, api, files, nursery, watched_log, instead, said
):
    api.instead = instead
    nursery.start_soon(enrolling.run)
    await trio.sleep(100)
    assert 3 < len(api.asked) < 12
    assert len(watched_log.messages) == 1
    assert enrolling.state.failures == len(api.asked)
    assert re.search(said, enrolling.state.error)
    assert files.current_credentials().certificate is None
    api.instead = None
    await trio.sleep(certificate_renewal.RETRY_LONGEST_S * 1.25)
    assert files.current_credentials().certificate is not None
    assert (enrolling.state.failures, enrolling.state.error) == (0, "")


@pytest.mark.expect_log("no new certificate: .*allow h1 --fingerprint KEY")
async def test_waiting_host_shows_its_key_in_the_log_once_and_in_the_status(
    autojump_clock, enrolling, api, nursery, caplog
):
    caplog.set_level(logging.INFO)
    api.instead = (409, {"error": {"message": "openstack acstor host allow h1 --fingerprint KEY"}})
    nursery.start_soon(enrolling.run)
    await trio.sleep(100)
    assert len(api.asked) > 3
    key = certificates.fingerprint(certificates.request_key(api.asked[0]["csr"].encode()))
    assert enrolling.state.fingerprint == key
    assert caplog.text.count(f"host h1 requests a certificate for the key {key}") == 1
    api.instead = None
    await trio.sleep(certificate_renewal.RETRY_LONGEST_S * 1.25)
    assert enrolling.state.fingerprint == ""


@pytest.mark.expect_log("at http://d.example:9710 are in clear text: .*over TLS and set https://")
async def test_endpoint_without_tls_is_logged_once(
    autojump_clock, enrolling, api, files, nursery, watched_log
):
    api.endpoint = "http://d.example:9710"
    nursery.start_soon(enrolling.run)
    await trio.sleep(LIFE_S * 3)
    assert len(api.asked) > 3
    assert len(watched_log.messages) == 1


@pytest.mark.parametrize("endpoint", ["http://localhost:9710", "http://[::1]:9710", None])
async def test_loopback_endpoint_needs_no_tls(
    autojump_clock, enrolling, api, files, nursery, endpoint
):
    api.endpoint = endpoint
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    assert files.current_credentials().certificate.host == "h1"


@pytest.mark.expect_log("no new certificate: .*lost")
async def test_request_after_a_lost_response_uses_the_same_key(
    autojump_clock, enrolling, api, files, nursery, wall
):
    api.instead = exceptions.ConnectFailure("lost")
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    api.instead = None
    nursery.start_soon(
        enrolment.HostEnrolment(H1, files, api, NO_TABLE, wall, lambda: 0.5).run
    )  # a new worker
    await trio.sleep(1)
    first, second = (certificates.request_key(body["csr"].encode()) for body in api.asked)
    assert first == second == files.current_credentials().certificate.public_key
    assert not enrolment.pending_key(files.files.ca.parent).exists()


@pytest.mark.expect_log("no new certificate: the certificate of h2 is rejected: this host is h1")
async def test_certificate_of_another_host_is_not_written(
    autojump_clock, enrolling, api, files, nursery
):
    api.host = ids.HostId("h2")
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    assert not files.files.certificate.exists()


@pytest.mark.expect_log("no new certificate: .*No space left")
async def test_full_disk_is_logged_and_the_old_certificate_stays(
    autojump_clock, enrolling, api, files, nursery, monkeypatch
):
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    first = files.current_credentials()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(identity_files, "write", fail)
    await trio.sleep(LIFE_S * 0.7)
    assert files.current_credentials() is first
    assert enrolling.state.failures


@pytest.mark.parametrize("off_s", [86_400.0, -86_400.0])
@pytest.mark.expect_log("this host's clock is 86400 s (ahead of|behind) that of the decision")
async def test_wrong_clock_is_logged_and_renewal_follows_the_services_clock(
    autojump_clock, enrolling, api, nursery, off_s
):
    api.off_s = off_s
    nursery.start_soon(enrolling.run)
    await trio.sleep(1)
    assert enrolling.state.clock_offset_s == pytest.approx(off_s, abs=2)
    assert "86400 s" in enrolling.state.error
    await trio.sleep(LIFE_S * 0.5)
    assert len(api.asked) == 1
    await trio.sleep(LIFE_S * 0.2)
    assert len(api.asked) == 2


@pytest.mark.parametrize("off_s", [86_400.0, -86_400.0])
@pytest.mark.expect_log("this host's clock is 86400 s (ahead of|behind) that of the decision")
async def test_corrected_clock_clears_the_fault_and_does_not_move_renewal(
    autojump_clock, enrolling, api, nursery, wall, off_s
):
    wall.set_by_s = off_s
    api.clock = manual_clock.FunctionClock(lambda: wall.time() - wall.set_by_s)
    nursery.start_soon(enrolling.run)
    await trio.sleep(LIFE_S * 0.1)
    assert enrolling.state.clock_offset_s == pytest.approx(off_s, abs=2)
    wall.set_by_s = 0.0
    await trio.sleep(2 * enrolment.TICK_S)
    assert enrolling.state.error == "" and abs(enrolling.state.clock_offset_s) < 2
    await trio.sleep(LIFE_S * 0.4)
    assert len(api.asked) == 1
    await trio.sleep(LIFE_S * 0.2)
    assert len(api.asked) == 2


# Configuration


def configured(tmp_path, text):
    conf = cfg.ConfigOpts()
    agent_conf.register_opts(conf)
    file = tmp_path / "acstor.conf"
    file.write_text(text)
    conf(["--config-file", str(file)], project="acstor")
    return conf


SOURCE = """
[source_glance]
auth_url = http://keystone.invalid/v3
username = acstor
password = secret
project_name = service
user_domain_id = default
project_domain_id = default
ca_file = /etc/ssl/own.pem
"""


def test_host_without_credentials_does_not_enrol(tmp_path, files):
    conf = configured(tmp_path, SOURCE)
    assert not enrolment.is_configured(conf)
    assert enrolment.from_conf(conf, H1, files, NO_TABLE) is None


def test_auth_section_may_name_the_glance_source(tmp_path, files):
    conf = configured(tmp_path, SOURCE + "[enrolment]\nauth_section = source_glance\n")
    assert enrolment.is_configured(conf)
    made = enrolment.from_conf(conf, H1, files, NO_TABLE)
    session = made._api.session
    assert session.auth.auth_url == "http://keystone.invalid/v3"
    assert (session.verify, session.timeout) == ("/etc/ssl/own.pem", 30.0)
    assert made._api.service_type == "acstor"


def test_own_credentials_section_is_read(tmp_path, files):
    text = "[enrolment]\nauth_type = v3applicationcredential\nauth_url = http://k.invalid/v3\n"
    text += "application_credential_id = 1\napplication_credential_secret = 2\n"
    made = enrolment.from_conf(configured(tmp_path, text), H1, files, NO_TABLE)
    assert made._api.session.auth.auth_url == "http://k.invalid/v3"


def test_endpoint_override_sets_the_endpoint(tmp_path, files):
    text = SOURCE + "[enrolment]\nauth_section = source_glance\nendpoint_override = http://d/\n"
    assert (
        enrolment.from_conf(configured(tmp_path, text), H1, files, NO_TABLE)._api.get_endpoint()
        == "http://d/"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[enrolment]\nauth_type = nonsense\n",
        "[enrolment]\nauth_section = source_glance\n",
        "[enrolment]\nauth_section = nowhere\n",
    ],
)
def test_invalid_credentials_section_is_refused_by_name(tmp_path, files, text):
    with pytest.raises(errors.Unusable, match=r"enrolment|source_glance"):
        enrolment.from_conf(configured(tmp_path, text), H1, files, NO_TABLE)


def test_enrolment_with_an_identity_dir_is_refused(tmp_path, files):
    own = f"[acstor_agent]\nidentity_dir = {tmp_path}\n"
    conf = configured(tmp_path, own + SOURCE + "[enrolment]\nauth_section = source_glance\n")
    with pytest.raises(errors.Unusable, match="identity_dir would be replaced"):
        enrolment.from_conf(conf, H1, files, NO_TABLE)


@pytest.mark.expect_log("no new certificate: no answer within 300 s; trying again")
async def test_request_without_a_response_times_out_and_is_retried(
    autojump_clock, enrolling, files, nursery, monkeypatch
):
    at_once = trio.to_thread.run_sync

    async def never(_call, **_):
        await trio.sleep_forever()

    monkeypatch.setattr(enrolment.trio.to_thread, "run_sync", never)
    nursery.start_soon(enrolling.run)
    await trio.sleep(enrolment.ATTEMPT_S + 1)
    assert enrolling.state.error == "no answer within 300 s"
    monkeypatch.setattr(enrolment.trio.to_thread, "run_sync", at_once)
    await trio.sleep(certificate_renewal.RETRY_FIRST_S + 1)
    assert files.current_credentials().certificate.host == "h1"


@pytest.mark.expect_log("no new certificate: no answer within 300 s; trying again")
async def test_late_response_of_an_abandoned_attempt_replaces_no_certificate(
    autojump_clock, enrolling, api, files, nursery, monkeypatch
):
    at_once, hanging = trio.to_thread.run_sync, []

    async def hang(call, **_):
        hanging.append(call)
        await trio.sleep_forever()

    monkeypatch.setattr(enrolment.trio.to_thread, "run_sync", hang)
    nursery.start_soon(enrolling.run)
    await trio.sleep(enrolment.ATTEMPT_S + 1)
    monkeypatch.setattr(enrolment.trio.to_thread, "run_sync", at_once)
    await trio.sleep(certificate_renewal.RETRY_FIRST_S + 1)
    current = files.current_credentials()
    with pytest.raises(errors.NotEnrolled, match="too late"):
        hanging[0]()
    assert len(api.asked) == 2
    files.invalidate()
    assert files.current_credentials().certificate == current.certificate
