# SPDX-License-Identifier: Apache-2.0
"""The gateway beside a real Glance, with real stores: S3 and Swift, files, a web server."""

import contextlib
import signal
import time
import uuid
from collections.abc import Iterator

import pytest
import requests
import trio

from acstor_agent.sources import base
from acstor_agent.sources import gateway
from acstor_agent.sources import glance
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import range_support
from acstor_glance.cmd import manage
from tests.fakes import http_server
from tests.lab import runs
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import glance as glance_service
from tests.lab.openstack import image_stores
from tests.lab.openstack import ini
from tests.lab.openstack import uploads

MIB = 1 << 20
STORES = image_stores.STORES
DATA, LARGE = image_stores.DATA, image_stores.LARGE
TIMEOUT_S = image_stores.TIMEOUT_S
said = image_stores.said


RANGES = [(0, 1), (0, len(DATA)), (len(DATA) - 1, 1), (65_536, 65_536), (12_345, 99_999)]


@contextlib.contextmanager
def source_of(place: image_stores.Place, user: str = "acstor") -> Iterator[gateway.GatewaySource]:
    yield gateway.GatewaySource(place.lab.session(user))


@pytest.mark.parametrize("store", STORES)
async def test_any_range_from_any_store_equals_the_upload(place, store):
    blob = base.Blob(place.upload(store), base.BlobKind.IMAGE)
    with source_of(place) as source:
        assert await source.size_bytes(blob) == len(DATA)
        for offset, length in RANGES:
            assert await source.read(blob, offset, length) == DATA[offset : offset + length]
        with pytest.raises(errors.ChunkMissing):
            await source.read(blob, len(DATA) - 1, 2)
        await source.aclose()


@pytest.mark.parametrize("store", ["s3", "swift", "rbd"])
def test_ranges_across_the_parts_of_large_objects_are_exact(place, store):
    image_id = place.upload(store, LARGE)
    for start in (0, MIB - 3, 5 * MIB - 100, 8 * MIB - 1, len(LARGE) - 300_000):
        stop = min(start + 300_000, len(LARGE))
        answer = place.read(image_id, f"bytes={start}-{stop - 1}")
        assert (answer.status_code, answer.content) == (206, LARGE[start:stop])
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(LARGE)}"


@pytest.mark.parametrize("store", STORES)
def test_qcow2_image_is_read_without_conversion(place, store, tmp_path):
    data = uploads.qcow2(tmp_path, uploads.some_bytes())
    image_id = place.upload(store, data, disk_format="qcow2")
    assert place.read(image_id, f"bytes=0-{len(data) - 1}").content == data
    assert place.read(image_id, "bytes=-512").content == data[-512:]


def test_image_on_a_web_server_is_read_from_it(place, web):
    image_id = place.on_the_web(web)
    assert place.read(image_id, "bytes=1000-1999").content == DATA[1000:2000]
    assert place.read(image_id, "bytes=1048576-").content == DATA[1048576:]
    web.always = http_server.status(200)
    assert "supports no ranges" in said(place.read(image_id), 409)
    web.always = http_server.status(404)
    assert "no such object" in said(place.read(image_id), 409)
    web.always = http_server.status(500)
    assert "answers 500" in said(place.read(image_id), 502)


def test_probe_reports_range_support_of_glance_and_the_gateway(place, tmp_path):
    def seen_by(image, **changed):
        listener = acstor_glance.Listener("unused", place.lab, tmp_path, **changed)
        listener.configure()
        return range_support.RangeProber(manage.load_conf(str(listener.conf_file))).has_ranges(
            image_record.Image.from_record(image)
        )

    found = {
        store: place.ask("admin", "GET", f"/v2/images/{place.upload(store)}").json()
        for store in ("fs", "s3")
    }
    nowhere = {"region_name": "nowhere", "endpoint_override": place.lab.glance.url}
    assert seen_by(found["fs"], **nowhere).support is range_support.RangeSupport.RANGES
    assert seen_by(found["s3"], **nowhere) == (
        range_support.RangeSupport.WHOLE,
        "Glance answers 400 to a range request",
    )
    assert seen_by(found["s3"]).support is range_support.RangeSupport.RANGES
    place.gateway.stop()
    away = seen_by(found["s3"])
    assert away.support is range_support.RangeSupport.UNAVAILABLE
    assert away.why.startswith("the gateway returns no data: ")


# Permissions


def test_user_without_download_permission_is_refused(place):
    image_id = place.upload("s3")
    assert place.read(image_id, user="tenant").content == DATA[:100]
    assert "404" in said(place.read(image_id, user="stranger"), 404)
    url = f"{place.gateway.url}/v1/images/{image_id}/file"
    for headers in ({}, {"X-Auth-Token": "forged"}, {"X-Roles": "admin", "X-User-Id": "x"}):
        answer = requests.get(url, headers={"Range": "bytes=0-9", **headers}, timeout=30)
        assert answer.status_code == 401
    assert requests.get(f"{place.gateway.url}/healthz", timeout=30).json() == {"status": "ok"}


def test_download_policy_of_glance_is_enforced(place, tmp_path):
    image_id = place.upload("s3")
    policy = tmp_path / "policy.json"
    policy.write_text('{"download_image": "role:admin"}')
    with place.lab.glance.changed(
        ini.merged(place.stores(), {"oslo_policy": {"policy_file": policy}})
    ):
        assert "403" in said(place.read(image_id, user="tenant"), 403)
        assert place.read(image_id, user="acstor").content == DATA[:100]


def test_deactivated_image_is_served_only_to_users_that_glance_allows(place):
    image_id = place.upload("s3")
    place.ask("admin", "POST", f"/v2/images/{image_id}/actions/deactivate").raise_for_status()
    said(place.read(image_id, user="tenant"), 403)
    assert place.read(image_id, user="acstor").content == DATA[:100]


def test_inactive_image_is_refused(place):
    record = {"disk_format": "raw", "container_format": "bare", "name": "queued"}
    image_id = place.ask("tenant", "POST", "/v2/images", json=record).json()["id"]
    assert "status is queued" in said(place.read(image_id, user="tenant"), 409)


# Limits


@pytest.mark.parametrize(
    ("wanted", "status", "words"),
    [
        ("", 413, "8388608 bytes at most"),
        ("bytes=0-1,5-6", 413, "8388608 bytes at most"),
        ("bytes=-", 400, "specify a range"),
        ("items=0-5", 413, "8388608 bytes at most"),
        ("bytes=9-5", 416, "has"),
        (f"bytes={len(LARGE)}-", 416, f"{len(LARGE)} bytes"),
        (f"bytes=0-{len(LARGE) - 1}", 413, "8388608 bytes at most"),
    ],
)
def test_invalid_range_is_refused(place, large, wanted, status, words):
    assert words in said(place.read(large, wanted), status)


@pytest.fixture(scope="module")
def large(all_stores: image_stores.Place) -> ids.ImageId:
    return all_stores.upload("fs", LARGE)


def test_other_requests_than_range_reads_are_refused(place, large):
    url = f"{place.gateway.url}/v1/images/{large}/file"
    headers = {"X-Auth-Token": place.token("acstor"), "Range": "bytes=0-9"}
    put = requests.put(url, b"x", headers=headers, timeout=30)
    assert (put.status_code, put.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "image" in said(place.read("no-image"), 400)
    said(place.read(str(uuid.uuid4())), 404)


# Faults of stores


def test_object_with_wrong_bytes_is_refused_by_its_md5(place):
    image_id = place.upload("s3")
    assert place.read(image_id).content == DATA[:100]
    place.s3(f"s3.put_object(Bucket='images', Key='{image_id}', Body=b'x' * {len(DATA)})")
    words = said(place.read(image_id), 409)
    assert words.startswith("store s3: the MD5 of its data is")


def test_object_of_another_size_is_refused(place):
    image_id = place.upload("s3")
    place.s3(f"s3.put_object(Bucket='images', Key='{image_id}', Body=b'x' * 1000)")
    assert said(place.read(image_id), 409) == (
        f"store s3: it has 1000 bytes, but {len(DATA)} in Glance's record"
    )
    assert "shorter" in said(place.read(image_id, "bytes=5000-5999"), 409)


def test_deleted_object_is_refused_with_the_reason(place):
    image_id = place.upload("s3")
    assert place.read(image_id).status_code == 206
    place.s3(f"s3.delete_object(Bucket='images', Key='{image_id}')")
    assert said(place.read(image_id), 409) == "store s3: it has no such object"
    place.ask("admin", "DELETE", f"/v2/images/{image_id}")
    said(place.read(image_id), 404)


def test_store_that_refuses_credentials_is_named_until_a_restart(place):
    image_id = place.upload("s3")
    place.objects.replace_s3_key("another-key")
    place.objects.s3.restart()
    try:
        assert "store s3: it refuses the credentials" in said(place.read(image_id), 502)
        new = ini.merged(place.stores(), {"s3": {"s3_store_secret_key": "another-key"}})
        with place.lab.glance.changed(new):
            place.gateway.restart()
            assert place.read(image_id).content == DATA[:100]
    finally:
        place.objects.replace_s3_key(api.PASSWORD)
        place.objects.s3.restart()
        place.gateway.restart()


def test_hung_store_times_out_without_delaying_others(place):
    slow, other = place.upload("s3"), place.upload("fs")
    place.objects.s3.signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        assert f"no answer within {TIMEOUT_S:g} s" in said(place.read(slow), 504)
        assert time.monotonic() - began_s < TIMEOUT_S + 2
        assert place.read(other).content == DATA[:100]
    finally:
        place.objects.s3.signal(signal.SIGCONT)
    runs.wait_for(lambda: place.read(slow).content == DATA[:100], 20, "S3", place.gateway.log)


def test_missing_rbd_image_and_hung_ceph_are_reported(place):
    gone, there = place.upload("rbd"), place.upload("rbd")
    assert place.read(gone).content == DATA[:100]
    place.ceph.remove(gone)
    assert said(place.read(gone), 409) == "store rbd: it has no such RBD image, or no such pool"
    assert place.read(there).content == DATA[:100]
    place.ceph.osd.signal(signal.SIGSTOP)
    try:
        assert "store rbd: no answer within" in said(place.read(there, "bytes=500000-"), 504)
        assert place.read(place.upload("fs")).content == DATA[:100]
    finally:
        place.ceph.osd.signal(signal.SIGCONT)
    runs.wait_for(
        lambda: place.read(there, "bytes=500000-").content == DATA[500_000:],
        30,
        "Ceph",
        place.gateway.log,
    )


def test_store_that_is_down_returns_502_until_it_recovers(place):
    image_id = place.upload("s3")
    place.objects.s3.kill()
    assert "store s3: EndpointConnectionError" in said(place.read(image_id), 502)
    place.objects.start()
    assert place.read(image_id).content == DATA[:100]


def test_image_moved_to_another_store_is_read_from_it(place):
    image_id = place.upload("s3")
    assert place.read(image_id).content == DATA[:100]  # the gateway caches the location from now on
    wanted = {"method": {"name": "copy-image"}, "stores": ["swift"]}
    place.ask("admin", "POST", f"/v2/images/{image_id}/import", json=wanted).raise_for_status()
    runs.wait_for(lambda: is_in(place, image_id, "s3,swift"), 60, "the copy", place.lab.glance.log)
    place.ask("admin", "DELETE", f"/v2/stores/s3/{image_id}").raise_for_status()
    assert place.read(image_id, "bytes=5-9").content == DATA[5:10]


def is_in(place: image_stores.Place, image_id: str, stores: str) -> bool:
    record = place.ask("admin", "GET", f"/v2/images/{image_id}").json()
    return record["stores"] == stores and glance_service.is_imported(record)


def test_store_unknown_to_the_gateway_is_refused_by_name(place, tmp_path):
    class Narrow(acstor_gateway.Gateway):
        def sections(self) -> ini.Sections:
            return ini.merged(super().sections(), {"DEFAULT": {"enabled_backends": "fs:file"}})

    narrow = Narrow(place.lab, tmp_path)
    narrow.start()
    try:
        narrow.wait_ready()
        words = said(place.read(place.upload("swift"), at=narrow), 409)
        assert words.startswith("store swift: the gateway does not read it (swift+http)")
        assert place.read(place.upload("fs"), at=narrow).content == DATA[:100]
    finally:
        narrow.stop()


def test_log_contains_no_store_password(place):
    for store in ("fs", "s3", "swift"):
        place.read(place.upload(store))
    assert api.PASSWORD not in place.gateway.log()


# The agent


async def test_agent_uses_the_gateway_only_when_glance_has_no_ranges(place):
    in_s3, in_files = (base.Blob(place.upload(s), base.BlobKind.IMAGE) for s in ("s3", "fs"))
    async with trio.open_nursery() as nursery:
        first = glance.GlanceSource(place.lab.session("acstor"))
        second = gateway.GatewaySource(place.lab.session("acstor"))
        made = [deadline_source.DeadlineSource(source) for source in (first, second)]
        both = source_client.SourceClient(made)
        for blob in (in_s3, in_files):
            assert await both.size_bytes(blob) == len(DATA)
            for offset, length in RANGES:
                assert await both.read(blob, offset, length) == DATA[offset : offset + length]
        await both.aclose()
        nursery.cancel_scope.cancel()
    assert f"/v1/images/{in_files.image_id}/file" not in place.gateway.log()
    # One request by the agent for a range, and one by the gateway to check the permission.
    asked = place.lab.glance.log().count(f"GET /v2/images/{in_s3.image_id}/file ")
    assert asked == 2


async def test_agent_reports_the_failing_store_and_the_reason(place):
    image_id = place.upload("s3")
    place.s3(f"s3.delete_object(Bucket='images', Key='{image_id}')")
    with source_of(place) as source:
        with pytest.raises(errors.ChunkRefused, match="store s3: it has no such object"):
            await source.size_bytes(base.Blob(image_id, base.BlobKind.IMAGE))
        await source.aclose()


async def test_killed_gateway_is_unreachable_until_it_restarts(place):
    blob = base.Blob(place.upload("swift"), base.BlobKind.IMAGE)
    with source_of(place) as source:
        assert await source.read(blob, 0, 10) == DATA[:10]
        place.gateway.kill()
        with pytest.raises(errors.SourceUnreachable):
            await source.read(blob, 10, 10)
        place.gateway.start()
        await trio.to_thread.run_sync(place.gateway.wait_ready)
        assert await source.read(blob, 10, 10) == DATA[10:20]
        await source.aclose()
