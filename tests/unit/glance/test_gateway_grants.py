# SPDX-License-Identifier: Apache-2.0
"""A host with a grant reads one image and its artefacts through the gateway's own user."""

import http
import time
from typing import Any

import pytest

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.wire import image_grants
from acstor_glance.client import trust_store
from acstor_glance.gateway import app
from acstor_glance.gateway import byte_range
from acstor_glance.gateway import conf as gateway_conf
from acstor_glance.gateway import grant_check
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import range_reader
from acstor_glance.gateway import read_admission
from tests.fakes import cloud_keys
from tests.fakes import glance_options
from tests.fakes import glance_records

KEYS = cloud_keys.CloudKeys()
HOST = KEYS.host("h1")
IMAGE = ids.parse_image_id(glance_records.IMAGE_ID)
OTHER, MAP, SECRET = (
    ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012}") for number in (91, 92, 93)
)
OWN = image_lookup.Caller("own token")
RANGE = "bytes=0-9"
MD5 = "0123456789abcdef0123456789abcdef"
ETAG = f'"{MD5}"'


class Glance:
    """The gateway's lookups, and the data of images."""

    def __init__(self) -> None:
        record = image_record.Image.from_record(glance_records.record())
        made = glance_records.artefact_record(record, artefacts.Kind.CHUNK_MAP, id=MAP)
        secret = artefacts.new_secret(glance_records.SERVICE_PROJECT)
        self.records: dict[str, dict[str, Any]] = {
            IMAGE: {**glance_records.record(), "direct_url": "swift://secret", "locations": [1]},
            OTHER: glance_records.record(id=OTHER),
            MAP: dict(made),
            SECRET: {**secret, "id": SECRET, artefacts.OF_IMAGE: IMAGE},
        }
        self.fault: http_errors.HttpError | None = None
        self.callers: list[image_lookup.Caller] = []
        self.forgotten = self.lookups = self.reads = 0

    def own_caller(self) -> image_lookup.Caller:
        return OWN

    def own_project_id(self) -> str:
        return glance_records.SERVICE_PROJECT

    def forget_own_token(self) -> None:
        self.forgotten += 1

    def fetch_record(self, image_id, caller):
        assert caller == OWN
        self.lookups += 1
        return image_record.Image.from_record(self.records[image_id])

    fetch_public_record = image_lookup.ImageLookup.fetch_public_record

    def _fetch_record(self, image_id, caller, parse):
        self.callers.append(caller)
        return parse(self.records[image_id])

    def find_image(self, image_id, caller):
        self.callers.append(caller)
        if self.fault:
            raise self.fault
        return image_lookup.ReadableImage(image_id, 100, MD5)

    def read_range(self, image, header, caller, if_range):
        assert caller == self.callers[-1]
        self.reads += 1
        return range_reader.ImageRange(b"0123456789", byte_range.ByteRange(0, 10), is_whole=False)


class Trust:
    """Trusted keys, available after the first request."""

    def __init__(self) -> None:
        self.signers: tuple[signing.PublicKey, ...] = signing.read_public_keys(KEYS.signers)
        self.revoked: dict[str, int] = {}
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def trust_anchors(self) -> trust_store.TrustAnchors:
        return trust_store.TrustAnchors(b"", self.signers, self.revoked)


@pytest.fixture
def conf(tmp_path):
    made = glance_options.conf()
    gateway_conf.register_opts(made)
    return made


class Gateway:
    """The application behind a passed token check."""

    def __init__(self, conf):
        self.glance, self.trust = Glance(), Trust()
        checks = grant_check.GrantCheck(conf, self.glance, self.trust)
        made = app.make_plain_app(self.glance, self.glance, None, checks)
        self.client = made.test_client()
        self.client.environ_base[app.TOKEN_INFO] = object()

    def ask(self, image_id=IMAGE, rest="/file", of=IMAGE, roles="acstor-host", **changed):
        wanted = RANGE if rest else ""
        path = f"/v1/images/{image_id}{rest}"
        target = image_grants.target_of(path, wanted)
        headers = image_grants.headers_of(grant(of), target, HOST.key, time.time())
        headers |= {"Range": wanted} if wanted else {}
        headers |= {"X-Auth-Token": "t", "X-Roles": roles, **changed}
        return self.client.get(path, headers=headers)


def grant(image_id, signer=KEYS.signing_key):
    certificate = certificates.read_host_certificate(HOST.certificate, HOST.ca)
    request = image_grants.GrantRequest("h1", image_id, time.time())
    return image_grants.new_grant(request, certificate, signer, time.time())


@pytest.fixture
def gateway(conf):
    return Gateway(conf)


def said(answer, status):
    assert answer.status_code == status, answer.text
    return answer.json["error"]["message"]


def test_host_with_a_grant_reads_its_image_as_the_gateway_user(gateway):
    answer = gateway.ask()
    assert (answer.status_code, answer.data) == (206, b"0123456789")
    assert gateway.glance.callers == [OWN]


def test_host_gets_the_record_without_store_locations(gateway):
    answer = gateway.ask(rest="")
    assert answer.status_code == 200
    assert answer.json["id"] == IMAGE
    assert answer.json.keys().isdisjoint({"direct_url", "locations"})
    assert answer.json.keys() >= {"os_hash_value", "disk_format", "size"}


def test_artefact_of_the_image_is_read_and_looked_up_once(gateway):
    for rest in ("", "/file", "/file"):
        assert gateway.ask(MAP, rest).status_code in (200, 206)
    assert gateway.glance.lookups == 1


@pytest.mark.parametrize("image_id", [OTHER, SECRET])
@pytest.mark.parametrize("rest", ["", "/file"])
def test_other_images_and_the_secret_of_scopes_are_refused(gateway, image_id, rest):
    assert "is not its artefact" in said(gateway.ask(image_id, rest), 403)
    assert gateway.glance.callers == []


def test_artefact_not_made_by_acstor_is_refused(gateway):
    gateway.glance.records[MAP]["owner"] = "a tenant"
    assert "is not its artefact" in said(gateway.ask(MAP), 403)


def test_artefact_of_another_image_is_refused(gateway):
    assert "is not its artefact" in said(gateway.ask(MAP, of=OTHER), 403)


@pytest.mark.parametrize("roles", ["", "admin", "acstor-hosts", "acstor-reader,service"])
def test_token_without_the_role_cannot_use_a_grant(gateway, roles):
    assert "role acstor-host" in said(gateway.ask(roles=roles), 403)
    assert (gateway.trust.starts, gateway.glance.callers) == (0, [])


def test_token_is_needed_beside_the_grant(gateway):
    assert said(gateway.ask(**{"X-Auth-Token": ""}), 401)
    del gateway.client.environ_base[app.TOKEN_INFO]
    assert said(gateway.ask(), 401)
    assert gateway.glance.callers == []


@pytest.mark.parametrize("name", [image_grants.GRANT_HEADER, image_grants.PROOF_HEADER])
@pytest.mark.parametrize("text", ["x", "A" * 9000])
def test_malformed_headers_are_refused(gateway, name, text):
    assert said(gateway.ask(**{name: text}), 403)
    assert gateway.glance.callers == []


def test_other_range_than_the_host_signed_is_refused(gateway):
    assert "none of the trusted keys" in said(gateway.ask(Range="bytes=0-99"), 403)


def test_revoked_host_is_refused(gateway):
    assert gateway.ask().status_code == 206
    gateway.trust.revoked["h1"] = certificates.refused_before(time.time())
    assert "revoked" in said(gateway.ask(), 403)


def test_hosts_get_503_until_the_keys_are_loaded(gateway):
    gateway.trust.signers, known = (), gateway.trust.signers
    waits = gateway.ask()
    assert "no keys" in said(waits, 503)
    assert waits.headers["Retry-After"] == "1"
    gateway.trust.signers = known
    assert gateway.ask().status_code == 206
    assert gateway.trust.starts == 1


def test_keys_of_another_cloud_are_refused(gateway):
    gateway.trust.signers = signing.read_public_keys(cloud_keys.CloudKeys().signers)
    assert "none of the trusted keys" in said(gateway.ask(), 403)


@pytest.mark.parametrize("status", [http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN])
def test_refusal_of_the_gateway_user_returns_502(gateway, status):
    gateway.glance.fault = http_errors.HttpError(status, "Glance answers that")
    assert "the gateway's user is refused" in said(gateway.ask(), 502)
    assert gateway.glance.forgotten == 1


@pytest.mark.parametrize(
    ("roles", "project", "charged"),
    [
        ("acstor-host", "p", "p"),
        ("member,reader", "p", "p"),
        ("member", "", "no project"),
        ("acstor-reader,reader", "p", read_admission.SERVICE),
    ],
)
def test_request_without_a_grant_uses_the_permissions_of_the_caller(
    gateway, roles, project, charged
):
    path = f"/v1/images/{IMAGE}"
    headers = {"X-Auth-Token": "t", "X-Roles": roles, "X-Project-Id": project, "Range": RANGE}
    assert gateway.client.get(f"{path}/file", headers=headers).status_code == 206
    assert gateway.glance.callers == [image_lookup.Caller("t", project_id=charged)]
    assert "request the record from Glance" in said(gateway.client.get(path, headers=headers), 403)


def test_keys_are_read_from_files_without_a_decision_service(conf, tmp_path):
    (tmp_path / trust_store.CA_FILE).write_bytes(KEYS.authority.certificate_pem)
    (tmp_path / trust_store.SIGNERS_FILE).write_bytes(KEYS.signers)
    conf.set_override("trusted_dir", str(tmp_path), "acstor_glance")
    trust = trust_store.TrustStore(conf)
    checks = grant_check.GrantCheck(conf, Glance(), trust)
    target = image_grants.target_of(f"/v1/images/{IMAGE}", "")
    headers = image_grants.headers_of(grant(IMAGE), target, HOST.key, time.time())
    request = grant_check.Request(IMAGE, target, {**headers, "X-Roles": "acstor-host"})
    try:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                with checks.permit(request) as caller:
                    assert caller == OWN
            except http_errors.HttpError as error:
                assert error.status == http.HTTPStatus.SERVICE_UNAVAILABLE
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            else:
                return
    finally:
        trust.stop()


@pytest.mark.parametrize(
    ("name", "refused", "status", "met"),
    [
        ("If-None-Match", ETAG, http.HTTPStatus.NOT_MODIFIED, '"other"'),
        ("If-Match", '"other"', http.HTTPStatus.PRECONDITION_FAILED, ETAG),
    ],
)
def test_failed_condition_reads_no_data(gateway, name, refused, status, met):
    answer = gateway.ask(**{name: refused})
    assert (answer.status_code, answer.data, gateway.glance.reads) == (status, b"", 0)
    assert gateway.ask(**{name: met}).data == b"0123456789"
