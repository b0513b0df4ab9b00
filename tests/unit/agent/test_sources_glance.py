# SPDX-License-Identifier: Apache-2.0
"""The source glance, mostly with invalid answers of Glance or Keystone."""

import contextlib
import hashlib
import itertools
import json
import time

import pytest
import trio
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import gateway
from acstor_agent.sources import glance
from acstor_agent.sources import keystone_auth
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.service import bounded_responses
from acstor_common.util import lru_table
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server

IMAGE, RECORD = fake_glance.IMAGE, fake_glance.RECORD
CHUNK_MAP, BOOT_IMAGE = fake_glance.CHUNK_MAP, fake_glance.BOOT_IMAGE
BLOBS = {
    IMAGE.file_name: glance_records.BYTES,
    CHUNK_MAP.file_name: b"map" * 100,
    BOOT_IMAGE.file_name: b"boot",
}


@pytest.fixture
def server():
    with fake_glance.serving(BLOBS) as running:
        yield running


@pytest.fixture
async def source(server):
    async with contextlib.aclosing(glance.GlanceSource(fake_glance.session(server.url))) as made:
        yield made


def change(server, path=RECORD, **properties):
    server.files[path] = json.dumps({**json.loads(server.files[path]), **properties}).encode()


def artefact_path(server, kind=artefacts.Kind.CHUNK_MAP):
    return f"v2/images/{json.loads(server.files[RECORD])[kind.pointer]}"


async def test_artefacts_are_found_through_the_image(source):
    assert await source.size_bytes(CHUNK_MAP) == 300
    assert await source.read(CHUNK_MAP, 3, 3) == b"map"
    assert await source.read(BOOT_IMAGE, 0, 4) == b"boot"


@pytest.mark.parametrize("path", glance_records.CATALOG_PATHS)
async def test_glance_is_found_below_any_form_of_its_url(server, path):
    server.files |= {f"image/{name}": data for name, data in server.files.items()}
    source = glance.GlanceSource(fake_glance.session(server.url.rstrip("/") + path))
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
    await source.aclose()


class AnyToken(fake_glance.ServiceUser):
    """A service user whose token has characters that URLs quote."""

    def get_token(self, session, **_):
        return "a+b/c=%2B"


async def test_token_is_sent_unquoted(server):
    session = keystone_session.Session(auth=AnyToken(server.url))
    source = glance.GlanceSource(session)
    await source.read(IMAGE, 0, 4)
    assert {request["x-auth-token"] for request in server.asked} == {"a+b/c=%2B"}
    await source.aclose()


async def test_rejected_token_is_replaced_once(server, source):
    server.behaviours = [http_server.fine, http_server.status(401)]
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
    tokens = [request["x-auth-token"] for request in server.asked]
    assert tokens == ["token-1", "token-1", "token-2"]


class InterruptedUser(fake_glance.ServiceUser):
    """Other threads run between its answer with a token and the use of the token."""

    def get_token(self, session, **more):
        token = super().get_token(session, **more)
        time.sleep(next(self.pauses_s))
        return token

    pauses_s = itertools.count(0.0, 0.02)


async def test_reads_rejected_at_the_same_time_renew_the_token_once(server):
    user = InterruptedUser(server.url)
    source = glance.GlanceSource(keystone_session.Session(auth=user))
    await source.size_bytes(IMAGE)
    user.pauses_s = itertools.chain([0.0] * 12, itertools.count(0.0, 0.02))

    def reject_old_token(handler, asked):
        is_old = asked.headers["x-auth-token"] == "token-1"
        (http_server.status(401) if is_old else http_server.fine)(handler, asked)

    server.always = reject_old_token
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(source.read, IMAGE, 0, 4)
    assert user.sign_ins == 2
    await source.aclose()


async def test_user_rejected_by_glance_is_reported_after_two_requests(server, source):
    server.always = http_server.status(401)
    with pytest.raises(errors.ChunkMissing, match="refuses our credentials"):
        await source.read(IMAGE, 0, 4)
    assert len(server.asked) == 2


@pytest.mark.parametrize("behaviour", [http_server.whole_file, http_server.status(400)])
async def test_error_for_a_store_without_ranges_names_the_remedy(server, source, behaviour):
    server.behaviours = [http_server.fine, behaviour]
    with pytest.raises(errors.ChunkMissing, match=r"only file and cinder stores do.*copy-image"):
        await source.size_bytes(IMAGE)


async def test_hash_of_a_blob_is_known_only_while_glance_serves_ranges(server, source):
    assert source.os_hash(CHUNK_MAP) == chunk_map.UNKNOWN_OS_HASH
    await source.size_bytes(CHUNK_MAP)
    known = source.os_hash(CHUNK_MAP)
    assert known == chunk_map.OsHash("sha512", hashlib.sha512(BLOBS[CHUNK_MAP.file_name]).digest())
    server.behaviours = [http_server.fine, http_server.fine, http_server.whole_file]
    with pytest.raises(errors.ChunkMissing):
        await source.size_bytes(CHUNK_MAP)
    assert source.os_hash(CHUNK_MAP) == chunk_map.UNKNOWN_OS_HASH


@pytest.mark.parametrize("status", ["queued", "saving", "deactivated", "pending_delete"])
async def test_image_that_is_not_active_is_refused(server, source, status):
    change(server, status=status)
    for blob in (IMAGE, CHUNK_MAP):
        with pytest.raises(errors.ChunkMissing, match=f"status is {status}, not active"):
            await source.size_bytes(blob)


async def test_image_in_another_format_is_refused(server, source):
    change(server, disk_format="vmdk")
    with pytest.raises(errors.ChunkMissing, match="is vmdk, and only raw and qcow2 images are"):
        await source.size_bytes(IMAGE)


async def test_stored_file_of_a_qcow2_image_is_read(server, source):
    change(server, disk_format="qcow2")
    stored = base.Blob(IMAGE.image_id, base.BlobKind.QCOW2)
    assert await source.size_bytes(stored) == len(glance_records.BYTES)
    assert await source.read(stored, 4, 4) == glance_records.BYTES[4:8]


async def test_image_in_use_stays_readable_after_deactivation(server, source):
    assert await source.size_bytes(IMAGE) == len(glance_records.BYTES)
    change(server, status="deactivated")
    assert await source.read(IMAGE, 4, 4) == glance_records.BYTES[4:8]
    with pytest.raises(errors.ChunkMissing, match="deactivated"):
        await source.size_bytes(IMAGE)


async def test_deactivated_image_in_use_is_readable_by_the_next_worker(server, source):
    change(server, status="deactivated")
    assert await source.read(IMAGE, 4, 4) == glance_records.BYTES[4:8]
    change(server, status="queued")
    with pytest.raises(errors.ChunkMissing, match="queued"):
        await source.find_blob(IMAGE)
    with pytest.raises(errors.ChunkMissing, match="queued"):
        await source.read(IMAGE, 4, 4)


@pytest.mark.expect_log("chunk_map .* is ignored")
@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"owner": glance_records.TENANT}, "it does not belong to acstor's service project"),
        ({artefacts.OF_IMAGE: glance_records.ARTEFACT_ID}, "it is for image"),
        ({artefacts.OS_HASH_VALUE: "00" * 64}, "it is for other bytes"),
        ({artefacts.KIND: "boot_image"}, "not a chunk_map"),
        ({artefacts.FORMAT: "99"}, "format version 99 is not known"),
    ],
)
async def test_forged_pointer_is_ignored(server, source, forged, why):
    change(server, artefact_path(server), **forged)
    with pytest.raises(errors.ChunkMissing, match=why):
        await source.size_bytes(CHUNK_MAP)


async def test_error_for_an_image_without_artefact_names_its_state(server, source):
    change(server, acstor_chunk_map=None, acstor_state="hashed", acstor_state_of=IMAGE.image_id)
    with pytest.raises(errors.ChunkMissing, match=r"no chunk_map yet \(its state: hashed\)"):
        await source.size_bytes(CHUNK_MAP)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"x" * 2_000_000])
async def test_invalid_image_record_is_a_transient_failure(server, source, body):
    server.files[RECORD] = body
    with pytest.raises(errors.SourceUnreachable):
        await source.size_bytes(IMAGE)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (exceptions.ConnectFailure("no route"), errors.SourceUnreachable),
        (exceptions.ServiceUnavailable(), errors.SourceUnreachable),
        (exceptions.Unauthorized("wrong password"), errors.ChunkMissing),
    ],
)
async def test_keystone_failure_is_raised_as_the_matching_error(
    server, monkeypatch, failure, expected
):
    def fail(*_args, **_options):
        raise failure

    monkeypatch.setattr(fake_glance.ServiceUser, "get_token", fail)
    source = glance.GlanceSource(fake_glance.session(server.url))
    with pytest.raises(expected, match=r"Keystone (is unreachable|refuses the credentials)"):
        await source.read(IMAGE, 0, 4)
    assert server.asked == []


def configured(kind=glance.GlanceSource, **values):
    conf = cfg.ConfigOpts()
    for one in (glance.GlanceSource, gateway.GatewaySource):
        conf.register_opts(one.options(), group=one.group_name)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in values.items():
        conf.set_override(name, value, kind.group_name)
    return conf[kind.group_name]


def test_configuration_without_keystone_names_the_option():
    with pytest.raises(errors.Unusable, match=r"\[source_glance\] auth_url: it is not set"):
        glance.GlanceSource.from_conf(configured())


async def test_configuration_accepts_password_or_application_credential():
    keystone = {"auth_url": "http://192.0.2.1:5000/v3"}
    user = {"username": "acstor", "password": "p", "project_name": "service"}
    credential = {"application_credential_id": "i", "application_credential_secret": "s"}
    for auth_type, options in [("password", user), ("v3applicationcredential", credential)]:
        group = configured(auth_type=auth_type, **keystone, **options)
        source = glance.GlanceSource.from_conf(group)
        assert source.location == "Glance"
        await source.aclose()


@pytest.mark.allow_log("Failed to discover available identity versions")
@pytest.mark.parametrize("kind", [glance.GlanceSource, gateway.GatewaySource])
async def test_endless_body_of_keystone_is_abandoned(kind):
    with http_server.serve({"v3/auth/tokens": b""}) as keystone:
        keystone.always = http_server.endless
        user = {"username": "acstor", "password": "p", "project_name": "service"}
        source = kind.from_conf(configured(kind, auth_url=f"{keystone.url}v3", **user))
        with pytest.raises(errors.SourceUnreachable, match="takes more than 4194304 bytes"):
            await source.read(IMAGE, 0, 4)
        assert keystone.body_bytes < 8 * bounded_responses.MAX_BYTES
        await source.aclose()


async def test_stamp_changes_when_the_image_points_to_another_artefact(server, source):
    before = await source.find_blob(CHUNK_MAP), await source.find_blob(IMAGE)
    assert (await source.find_blob(CHUNK_MAP), await source.find_blob(IMAGE)) == before
    fake_glance.fill(server.files, BLOBS, "again")
    assert (await source.find_blob(CHUNK_MAP)).stamp != before[0].stamp
    assert await source.find_blob(IMAGE) == before[1]


@pytest.mark.parametrize("blob", [IMAGE, CHUNK_MAP, BOOT_IMAGE])
async def test_find_blob_accepts_a_deactivated_image_but_no_unfinished_one(server, source, blob):
    shown = await source.find_blob(blob)
    change(server, status="deactivated")
    assert await source.find_blob(blob) == shown
    for status in ("queued", "saving", "pending_delete"):
        change(server, status=status)
        with pytest.raises(errors.ChunkRefused, match=f"status is {status}, not active"):
            await source.find_blob(blob)
    del server.files[RECORD]
    with pytest.raises(errors.ChunkMissing, match="no such image"):
        await source.find_blob(blob)


async def test_replaced_artefact_is_found_after_one_failed_read(server, source):
    assert await source.read(CHUNK_MAP, 0, 3) == b"map"
    server.files.clear()
    fake_glance.fill(server.files, BLOBS | {CHUNK_MAP.file_name: b"new" * 100}, "again")
    with pytest.raises(errors.ChunkMissing):  # a reader of several parts must not mix both
        await source.read(CHUNK_MAP, 0, 3)
    assert await source.read(CHUNK_MAP, 0, 3) == b"new"
    server.asked.clear()
    assert await source.read(CHUNK_MAP, 3, 3) == b"new"
    assert len(server.asked) == 1  # its location is cached now


async def test_location_of_an_image_being_read_is_not_evicted(server, source):
    source._locations = lru_table.LruTable(2)
    for blob in (CHUNK_MAP, BOOT_IMAGE, CHUNK_MAP, BOOT_IMAGE):
        assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
        await source.size_bytes(blob)
    change(server, status="deactivated")
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]


QCOW2 = IMAGE._replace(kind=base.BlobKind.QCOW2)
CONVERTED_ID = "3c1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d33"
CONVERTED = b"what the image was converted to"


def convert(server, **changed):
    """Let Glance have the image as vmdk, with its conversion."""
    change(server, disk_format="vmdk", acstor_converted=CONVERTED_ID)
    record = glance_records.artefact_record(
        image_record.Image.from_record(json.loads(server.files[RECORD])),
        artefacts.Kind.CONVERTED,
        **{"id": CONVERTED_ID, "size": len(CONVERTED), **changed},
    )
    fake_glance.put(server.files, record, CONVERTED)


async def test_image_of_another_format_is_read_from_its_conversion(server, source):
    convert(server)
    assert await source.size_bytes(QCOW2) == len(CONVERTED)
    assert await source.read(QCOW2, 5, 3) == CONVERTED[5:8]
    assert await source.find_blob(QCOW2) == (len(CONVERTED), CONVERTED_ID)
    assert await source.size_bytes(CHUNK_MAP) == 300


@pytest.mark.parametrize(
    "forged",
    [
        {"owner": glance_records.TENANT},
        {"acstor_image_id": CONVERTED_ID},
        {"acstor_os_hash_value": "00" * 64},
        {"acstor_kind": "chunk_map"},
        {"acstor_format": "2"},
        {"status": "deactivated"},
    ],
)
@pytest.mark.expect_log("converted .* is ignored")
async def test_forged_conversion_is_not_read(server, source, forged):
    convert(server, **forged)
    with pytest.raises(errors.ChunkMissing):
        await source.size_bytes(QCOW2)


async def test_unconverted_image_of_another_format_is_refused_with_a_remedy(server, source):
    change(server, disk_format="vmdk")
    with pytest.raises(errors.ChunkRefused, match=r"disk format is vmdk.*convert_formats"):
        await source.size_bytes(QCOW2)


async def test_deleted_conversion_is_looked_up_again(server, source):
    convert(server)
    assert await source.read(QCOW2, 0, 4) == CONVERTED[:4]
    served = server.files.pop(f"v2/images/{CONVERTED_ID}/file")
    with pytest.raises(errors.ChunkMissing):
        await source.read(QCOW2, 0, 4)
    server.files[f"v2/images/{CONVERTED_ID}/file"] = served
    server.asked.clear()
    assert await source.read(QCOW2, 0, 4) == CONVERTED[:4]
    assert len(server.asked) > 1  # its location was requested


class PublicUrls(fake_glance.ServiceUser):
    """A user whose catalog has only public URLs, as DevStack's."""

    def get_endpoint(self, session, interface=(), **_):
        return super().get_endpoint(session) if "public" in interface else None


async def test_public_url_is_used_when_the_catalog_has_no_internal_one(server):
    signs_in = keystone_session.Session(auth=PublicUrls(server.url))
    source = glance.GlanceSource(signs_in)
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
    await source.aclose()


async def test_error_for_a_catalog_without_url_names_region_and_interfaces(server):
    signs_in = keystone_session.Session(auth=PublicUrls(server.url))
    catalog = keystone_auth.Catalog("north", ["internal", "admin"])
    source = glance.GlanceSource(signs_in, catalog=catalog)
    wanted = r"no URL of an image service .*region north .*internal or admin .*valid_interfaces"
    with pytest.raises(errors.ChunkMissing, match=wanted):
        await source.read(IMAGE, 0, 4)
    await source.aclose()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", ["internal", "public"]),
        ("valid_interfaces = public , admin", ["public", "admin"]),
    ],
    ids=["default", "chosen"],
)
def test_interfaces_are_read_in_order(tmp_path, line, found):
    file = tmp_path / "agent.conf"
    file.write_text(f"[{glance.GROUP}]\n{line}\n")
    conf = cfg.ConfigOpts()
    conf.register_opts(glance.GlanceSource.options(), group=glance.GROUP)
    conf(["--config-file", str(file)])
    assert keystone_auth.Catalog.from_conf(conf[glance.GROUP]).interfaces == found


def test_unknown_interface_is_refused(tmp_path):
    file = tmp_path / "agent.conf"
    file.write_text(f"[{glance.GROUP}]\nvalid_interfaces = public,publik\n")
    conf = cfg.ConfigOpts()
    conf.register_opts(glance.GlanceSource.options(), group=glance.GROUP)
    conf(["--config-file", str(file)])
    with pytest.raises(cfg.ConfigFileValueError):
        keystone_auth.Catalog.from_conf(conf[glance.GROUP])
