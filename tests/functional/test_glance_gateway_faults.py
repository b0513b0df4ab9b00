# SPDX-License-Identifier: Apache-2.0
"""Faults of stores, Glance and Keystone for the gateway, and of the gateway for agents."""

import signal
import time
import uuid

import pytest
import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_agent.sources import chunk_verification
from acstor_agent.sources import file
from acstor_agent.sources import gateway
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import http_server
from tests.lab import runs
from tests.lab.openstack import api
from tests.lab.openstack import image_stores
from tests.lab.openstack import ini

DATA, LARGE = image_stores.DATA, image_stores.LARGE
said = image_stores.said
CHUNK_BYTES = 65_536


# Wrong bytes


async def test_wrong_bytes_without_an_md5_are_detected_by_agents(place):
    """S3 has no MD5 of multipart uploads: the gateway passes the bytes on, agents refuse them."""
    image_id = place.upload("s3", LARGE)
    assert place.read(image_id, "bytes=0-9").content == LARGE[:10]
    wrong = f"b'x' * {len(LARGE)}"
    parts = (
        f"k = dict(Bucket='images', Key='{image_id}'); "
        "u = s3.create_multipart_upload(**k)['UploadId']; "
        f"e = s3.upload_part(PartNumber=1, UploadId=u, Body={wrong}, **k)['ETag']; "
        "s3.complete_multipart_upload(UploadId=u, "
        "MultipartUpload={'Parts': [{'ETag': e, 'PartNumber': 1}]}, **k)"
    )
    place.s3(parts)
    source = gateway.GatewaySource(place.lab.session("acstor"))
    data = await source.read(base.Blob(image_id, base.BlobKind.IMAGE), 0, CHUNK_BYTES)
    await source.aclose()
    content = ids.Content(ids.cid_of(LARGE[:CHUNK_BYTES]))
    assert data == b"x" * CHUNK_BYTES
    with pytest.raises(errors.ChunkInvalid):
        chunk_verification.check_chunk(data, content, "chunk 0", "the gateway")


def test_wrong_bytes_are_counted_as_a_store_error(place):
    image_id = place.upload("s3")
    labels = {"store": "s3", "driver": "s3", "error": "other_bytes"}
    before = place.gateway.counted("store_errors_total", **labels)
    place.s3(f"s3.put_object(Bucket='images', Key='{image_id}', Body=b'x' * {len(DATA)})")
    said(place.read(image_id), 409)
    assert place.gateway.counted("store_errors_total", **labels) > before


# Slow and missing responses


@pytest.mark.parametrize("behaviour", [http_server.drip(0.1), http_server.stall(10, 5.0)])
def test_slow_web_server_releases_its_read_slots(place, web, behaviour):
    image_id = place.on_the_web(web)
    assert place.read(image_id).content == DATA[:100]
    web.always = behaviour
    for _ in range(2 * image_stores.READS):
        began_s = time.monotonic()
        words = said(place.read(image_id, "bytes=0-99999"), 504)
        assert words == "store web: no answer within 2 s"
        assert time.monotonic() - began_s < image_stores.TIMEOUT_S + 3.0
        assert place.read(place.upload("fs")).status_code == 206
    web.always = http_server.fine
    runs.wait_for(lambda: place.read(image_id).status_code == 206, 10, "a place", place.gateway.log)
    labels = {"store": "web", "driver": "http"}
    assert place.gateway.counted("reads_in_flight", **labels) == 0
    assert place.gateway.counted("reads_limit", **labels) == image_stores.READS


def test_hung_swift_times_out_without_delaying_others(place):
    slow, other = place.upload("swift"), place.upload("s3")
    place.objects.proxy.signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        said(place.read(slow), 504)
        assert time.monotonic() - began_s < image_stores.TIMEOUT_S + 2
        assert place.read(other).content == DATA[:100]
    finally:
        place.objects.proxy.signal(signal.SIGCONT)
    runs.wait_for(lambda: place.read(slow).content == DATA[:100], 20, "Swift", place.gateway.log)


@pytest.mark.expect_log(r"Source http://.* does not answer: no answer for 2.0 s")
async def test_hung_gateway_does_not_delay_other_sources(place, tmp_path):
    image_id = place.upload("s3")
    blob = base.Blob(image_id, base.BlobKind.IMAGE)
    source = gateway.GatewaySource(place.lab.session("acstor"))
    assert await source.read(blob, 0, 10) == DATA[:10]
    (tmp_path / blob.file_name).write_bytes(DATA)
    other = file.FileSource(str(tmp_path))
    both = source_client.SourceClient([deadline_source.DeadlineSource(source), other])
    place.gateway.signal(signal.SIGSTOP)
    try:
        with trio.fail_after(attempt_timeout.BASE_S + 5):
            assert await both.read(blob, 10, 10) == DATA[10:20]
    finally:
        place.gateway.signal(signal.SIGCONT)
    assert await source.read(blob, 20, 10) == DATA[20:30]
    await both.aclose()


# Credentials, and services for authorization


def test_swift_that_refuses_credentials_is_named_until_it_accepts_them(place):
    """The location has the credentials: Glance's driver writes user and password into each."""
    identity = place.lab.connect().identity
    name, password = f"images-{uuid.uuid4()}", "first-password"
    user = identity.create_user(name=name, password=password, domain_id="default")
    project, role = identity.find_project("service"), identity.find_role("admin")
    identity.assign_project_role_to_user(project, user, role)
    own = {"swift_store_user": f"service:{name}", "swift_store_key": password}
    with place.lab.glance.changed(ini.merged(place.stores(), {"swift": own})):
        image_id = place.upload("swift")
        assert place.read(image_id).content == DATA[:100]
        identity.update_user(user, password="second-password")
        place.gateway.restart()  # the gateway had a token
        place.gateway.wait_ready()
        labels = {"store": "swift", "driver": "swift", "error": "credentials"}
        words = said(place.read(image_id), 502)
        assert words == "store swift: it refuses the credentials (Keystone)"
        assert password not in place.gateway.log()
        assert place.gateway.counted("store_errors_total", **labels) == 1
        identity.update_user(user, password=password)
        runs.wait_for(
            lambda: place.read(image_id).status_code == 206, 10, "Swift", place.gateway.log
        )


def test_images_known_before_an_outage_of_glance_stay_readable(place):
    known, other = place.upload("s3"), place.upload("s3")
    token = place.token("acstor")
    assert place.read(known, token=token).status_code == 206
    before = place.gateway.counted("service_errors_total", service="glance")
    place.lab.glance.stop()
    try:
        assert place.read(known, "bytes=5-9", token=token).content == DATA[5:10]
        assert "Glance did not answer" in said(place.read(other, token=token), 502)
        assert place.gateway.counted("service_errors_total", service="glance") == before + 1
    finally:
        place.lab.glance.start()
        place.lab.glance.wait_ready()
    assert place.read(other, token=token).content == DATA[:100]


def test_outage_of_keystone_is_reported(place):
    image_id, token = place.upload("s3"), place.token("tenant")
    place.lab.keystone.stop()
    try:
        assert "Keystone does not answer" in said(place.read(image_id, token=token), 503)
        assert place.gateway.counted("service_errors_total", service="keystone") >= 1
    finally:
        place.lab.keystone.start()
        place.lab.keystone.wait_ready()
    assert place.read(image_id, token=token).content == DATA[:100]


def test_image_with_several_hung_locations_times_out_once(place):
    image_id = place.upload("s3")
    wanted = {"method": {"name": "copy-image"}, "stores": ["swift"]}
    place.ask("admin", "POST", f"/v2/images/{image_id}/import", json=wanted).raise_for_status()
    runs.wait_for(
        lambda: place.ask("admin", "GET", f"/v2/images/{image_id}").json()["stores"] == "s3,swift",
        60,
        "the copy",
        place.lab.glance.log,
    )
    assert place.read(image_id).content == DATA[:100]
    both = (place.objects.s3, place.objects.proxy)
    for server in both:
        server.signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        said(place.read(image_id), 504)
        assert time.monotonic() - began_s < 2 * image_stores.TIMEOUT_S + 2
    finally:
        for server in both:
            server.signal(signal.SIGCONT)


def test_metrics_report_bytes_read_by_store(place):
    image_id = place.upload("swift")
    labels = {"store": "swift", "driver": "swift"}
    before = place.gateway.counted("read_bytes_total", **labels)
    asked = place.gateway.counted("requests_total", status="206")
    assert place.read(image_id, "bytes=0-999").status_code == 206
    assert place.gateway.counted("read_bytes_total", **labels) == before + 1000
    assert place.gateway.counted("requests_total", status="206") == asked + 1
    assert place.gateway.counted("read_duration_seconds_count", **labels) >= 1
    said(place.read("no-image"), 400)
    assert place.gateway.counted("requests_total", status="400") >= 1


def test_debug_log_contains_no_secret(place, web, tmp_path):
    """With ``debug = true``, as operators set it: the libraries' logs too."""

    class Talkative(type(place.gateway)):
        def sections(self) -> ini.Sections:
            return ini.merged(super().sections(), {"DEFAULT": {"debug": True}})

    reported = Talkative(place.lab, tmp_path)
    reported.start()
    try:
        reported.wait_ready()
        for store in ("fs", "s3", "swift"):
            image_id = place.upload(store)
            token = place.token("acstor")
            assert place.read(image_id, token=token, at=reported).status_code == 206
            assert token not in reported.log()
        place.s3(f"s3.delete_object(Bucket='images', Key='{place.upload('s3')}')")
        place.read(image_id, token="forged-token", at=reported)
        assert " DEBUG swiftclient" in reported.log()  # the debug log has more than other logs
        assert api.PASSWORD not in reported.log()
        assert "forged-token" not in reported.log()
    finally:
        reported.stop()
