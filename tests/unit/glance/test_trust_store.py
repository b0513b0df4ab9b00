# SPDX-License-Identifier: Apache-2.0
"""The listener's sources of trusted keys: files, or the decision service."""

import json
import time

import pytest
from keystoneauth1 import exceptions

from acstor_common import errors
from acstor_common.ring import hash_ring
from acstor_glance.client import glance_client
from acstor_glance.client import trust_store
from tests.fakes import cloud_keys
from tests.fakes import glance_options

KEYS = cloud_keys.CloudKeys()
CA, SIGNERS = KEYS.authority.certificate_pem.decode(), KEYS.signers.decode()


@pytest.fixture
def conf():
    return glance_options.conf()


class Session:
    """Responds as the decision service does."""

    def __init__(self):
        self.answer = {"ca": CA, "signers": SIGNERS, "revoked": {"h1": 5}, "now": "later"}
        self.asked = []
        self.served_at = "https://d.example:9710"

    def request(self, url, method, **options):
        self.asked.append((method, url, options["endpoint_filter"]["service_type"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        content = json.dumps(self.answer).encode()
        return type("Response", (), {"content": content, "url": f"{self.served_at}{url}"})()


@pytest.fixture
def session(monkeypatch):
    made = Session()
    monkeypatch.setattr(glance_client, "session_of", lambda _: made)
    return made


def test_keys_are_read_from_files_without_a_request(conf, session, tmp_path):
    (tmp_path / "ca.pem").write_text(CA)
    conf.set_override("trusted_dir", str(tmp_path), "acstor_glance")
    knows = trust_store.TrustStore(conf)
    knows.refresh()
    assert (knows.trust_anchors().ca, knows.trust_anchors().signers) == (CA.encode(), ())
    (tmp_path / "signers.pem").write_text(SIGNERS)
    knows.refresh()
    assert len(knows.trust_anchors().signers) == 1
    assert session.asked == []
    (tmp_path / "ca.pem").write_text("garbage")
    with pytest.raises(errors.Unusable, match=rf"{tmp_path}.*not X.509 certificates in PEM"):
        knows.refresh()
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(FileNotFoundError):
        knows.refresh()
    assert knows.trust_anchors().ca == CA.encode()


@pytest.mark.expect_log("at http://d.example:9710/v1/authority are in clear text: ")
def test_endpoint_without_tls_is_logged_once(conf, session, watched_log):
    session.served_at = "http://d.example:9710"
    knows = trust_store.TrustStore(conf)
    for _ in range(3):
        knows.refresh()
    assert len(watched_log.messages) == 1


def test_keys_are_fetched_from_the_decision_service(conf, session):
    knows = trust_store.TrustStore(conf)
    assert knows.trust_anchors().ca == b""
    knows.refresh()
    assert session.asked == [("GET", "/v1/authority", "acstor")]
    assert (knows.trust_anchors().ca, knows.trust_anchors().revoked) == (CA.encode(), {"h1": 5})
    assert len(knows.trust_anchors().signers) == 1


def test_endpoint_is_looked_up_again_after_a_failed_request(conf, monkeypatch, session):
    made = []
    monkeypatch.setattr(glance_client, "session_of", lambda _: made.append(1) or session)
    knows = trust_store.TrustStore(conf)
    knows.refresh()
    knows.refresh()
    session.answer = exceptions.ConnectFailure("no route")
    with pytest.raises(errors.ImageServiceUnreachable):
        knows.refresh()
    assert len(made) == 1
    session.answer = {"ca": CA, "signers": SIGNERS}
    knows.refresh()
    assert len(made) == 2


@pytest.mark.parametrize(
    "answer",
    [
        exceptions.ConnectFailure("no route"),
        exceptions.Forbidden("no role"),
        exceptions.NotFound("old"),
        {},
        {"ca": "rubbish", "signers": SIGNERS},
        {"ca": CA, "signers": "rubbish"},
        {"ca": CA, "signers": SIGNERS, "revoked": {"h1": "x"}},
        {"ca": CA, "signers": SIGNERS, "revoked": {f"h{n}": 1 for n in range(5000)}},
    ],
)
def test_invalid_response_keeps_the_known_keys(conf, session, answer):
    knows = trust_store.TrustStore(conf)
    knows.refresh()
    known = knows.trust_anchors()
    session.answer = answer
    with pytest.raises(errors.AcstorError):
        knows.refresh()
    assert knows.trust_anchors() is known


@pytest.mark.expect_log("the trusted keys of the message bus cannot be refreshed: .*no route")
def test_request_is_retried_until_the_service_responds(conf, session, watched_log):
    session.answer = exceptions.ConnectFailure("no route")
    knows = trust_store.TrustStore(conf, retry_s=0.01)
    knows.start()
    deadline_s = time.monotonic() + 10
    while len(session.asked) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    session.answer = {"ca": CA, "signers": SIGNERS}
    while not knows.trust_anchors().ca and time.monotonic() < deadline_s:
        time.sleep(0.01)
    knows.stop()
    assert knows.trust_anchors().ca == CA.encode()
    assert len(watched_log.messages) == 1


def test_maximum_number_of_revoked_hosts_is_accepted(conf, session):
    named = {f"h{number:0254}": 1 << 40 for number in range(hash_ring.MAX_REVOKED)}
    session.answer["revoked"] = named
    knows = trust_store.TrustStore(conf)
    knows.refresh()
    assert knows.trust_anchors().revoked == named
