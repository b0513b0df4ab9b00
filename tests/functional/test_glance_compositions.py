# SPDX-License-Identifier: Apache-2.0
"""The gateway flattens base and delta into images, in a real Glance and real stores."""

import hashlib
import uuid

import pytest
import requests

from acstor_common.disks import disk_delta
from acstor_common.formats import chunk_map
from tests.lab import tiers
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import changed_disks
from tests.lab.openstack import image_stores
from tests.lab.openstack import ini
from tests.lab.openstack import uploads

KIB, MIB = 1 << 10, 1 << 20
DATA, ZERO = disk_delta.ExtentKind.DATA, disk_delta.ExtentKind.ZERO
BASE = changed_disks.some_base(6 * MIB)
said = image_stores.said
FORMATS = ("qcow2", "raw")


@pytest.fixture
def sender(place):
    return changed_disks.Sender(place, place.gateway)


def a_disk(base: bytes = BASE, size: int = 9 * MIB) -> changed_disks.Disk:
    """Return a disk with changes of each kind: whole clusters, partial ones, past the base."""
    found = [
        disk_delta.Extent(3 * 64 * KIB, 64 * KIB, DATA),
        disk_delta.Extent(MIB + 512, 1024, DATA),
        disk_delta.Extent(MIB + 512 + 1024, 512, ZERO),
        disk_delta.Extent(4 * MIB, MIB, ZERO),
        disk_delta.Extent(5 * MIB + 64 * KIB, 512 * KIB, DATA),
        disk_delta.Extent(8 * MIB + 4096, 8192, DATA),
    ]
    return changed_disks.Disk(base, size, found)


def check(sender, image_id: str, disk_format: str, disk: changed_disks.Disk, tmp_path) -> None:
    """Check that an image equals a disk, and that Glance's record of it is right."""
    image = sender.download(image_id)
    record = sender.record(image_id)
    assert (record["size"], record["virtual_size"]) == (len(image), disk.size)
    assert record["os_hash_value"] == hashlib.sha512(image).hexdigest()
    if disk_format == "raw":
        assert image == disk.content
    else:
        changed_disks.check_qcow2(tmp_path, image, disk.content)


@pytest.mark.parametrize("store", image_stores.STORES)
@pytest.mark.parametrize("disk_format", FORMATS)
def test_flattened_image_of_a_base_in_any_store_has_every_byte(
    sender, store, disk_format, tmp_path
):
    disk = a_disk()
    base = sender.place.upload(store, disk.base)
    image_id = sender.compose(disk, base, disk_format)
    check(sender, image_id, disk_format, disk, tmp_path)


OPTIONS = {
    "deflate": [],
    "zstd": ["-o", "compression_type=zstd"],
    "large": ["-o", "cluster_size=2M"],
    "small": ["-o", "cluster_size=4k"],
    "old": ["-o", "compat=0.10"],
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("disk_format", FORMATS)
def test_flattened_image_of_a_compressed_base_has_every_byte(sender, kind, disk_format, tmp_path):
    disk = a_disk()
    packed = uploads.qcow2(tmp_path, disk.base, *OPTIONS[kind])
    base = sender.place.upload("s3", packed, disk_format="qcow2")
    image_id = sender.compose(disk, base, disk_format)
    check(sender, image_id, disk_format, disk, tmp_path)


@pytest.mark.parametrize("kind", ["deflate", "zstd"])
def test_unchanged_compressed_clusters_are_copied_as_they_are(sender, kind, tmp_path):
    disk = a_disk()
    packed = uploads.qcow2(tmp_path, disk.base, *OPTIONS[kind])
    base = sender.place.upload("s3", packed, disk_format="qcow2")
    image = sender.download(sender.compose(disk, base))
    found = changed_disks.check_qcow2(tmp_path, image, disk.content)
    assert found["compressed-clusters"] > 40
    changed_bytes = disk.table.data_bytes
    assert len(image) < len(packed) + 2 * changed_bytes


def test_base_with_a_partial_last_sector_is_padded_with_zeros(sender, tmp_path):
    disk = changed_disks.Disk(BASE[: MIB + 777], 2 * MIB)
    image_id = sender.compose(disk, sender.place.upload("fs", disk.base))
    check(sender, image_id, "qcow2", disk, tmp_path)


def test_disk_smaller_than_its_base_is_flattened(sender, tmp_path):
    disk = changed_disks.Disk(BASE, MIB + 512, [disk_delta.Extent(512, 512, DATA)])
    base = sender.place.upload("fs", disk.base)
    for disk_format in FORMATS:
        check(sender, sender.compose(disk, base, disk_format), disk_format, disk, tmp_path)


def test_flattened_image_serves_as_a_base_again(sender, tmp_path):
    disk = a_disk()
    image_id = sender.place.upload("fs", disk.base)
    for generation in range(3):
        image_id = sender.compose(disk, image_id)
        check(sender, image_id, "qcow2", disk, tmp_path)
        found = [disk_delta.Extent((generation * 7 + 1) * 64 * KIB, 96 * KIB, DATA)]
        disk = changed_disks.Disk(disk.content, disk.size, found, seed=generation)


def test_response_and_metrics_report_the_bytes_read(sender):
    disk = a_disk()
    base = sender.place.upload("s3", disk.base)
    before = sender.counted("done")
    stream = disk.stream(base)
    lines = changed_disks.lines_of(sender.send(sender.queued("raw"), stream, "raw"))
    last = lines[-1]
    assert (last["state"], last["size"]) == ("done", disk.size)
    assert last["delta_bytes"] == len(stream)
    # Zeros in the delta are not read, but bytes between two changes may be.
    assert last["base_bytes"] < len(disk.base)
    assert all(line["state"] == "uploading" for line in lines[:-1])
    assert sender.counted("done") == before + 1
    assert sender.gateway.counted("flatten_jobs_in_flight") == 0
    assert sender.gateway.counted("flatten_bytes_total", kind="delta") >= len(stream)


@pytest.mark.parametrize("into", tiers.first_now(["s3", "swift", "rbd"]))
def test_flattened_image_is_uploaded_to_the_store_that_glance_chooses(place, into, tmp_path):
    """Swift's driver gets chunked data: with the length of a large object it fails (see
    image_upload.py).
    """
    if into == "rbd" and place.ceph is None:
        pytest.skip("Ceph is not installed: run tools/install.sh")
    default = {"glance_store": {"default_backend": into}}
    with place.lab.glance.changed(ini.merged(place.stores(), default)):
        gateway = acstor_gateway.Gateway(place.lab, tmp_path)
        gateway.start()
        try:
            gateway.wait_ready()
            sender = changed_disks.Sender(place, gateway)
            disk = a_disk()
            base = place.upload("fs", disk.base)
            image_id = sender.compose(disk, base, "raw")
            assert sender.record(image_id)["stores"] == into
            check(sender, image_id, "raw", disk, tmp_path)
            stream = disk.stream(base)
            with sender.slowly(broken := sender.queued(), len(stream)) as link:
                link.sendall(stream[:-40])
                sender.wait_status(broken, "saving")
            sender.wait_status(broken, "queued")
        finally:
            gateway.stop()


# Permissions


def test_user_without_access_to_the_base_cannot_flatten_it(place):
    stranger = changed_disks.Sender(place, place.gateway, "stranger")
    disk = a_disk()
    base = place.upload("s3", disk.base)
    image_id = stranger.queued()
    words = said(stranger.send(image_id, disk.stream(base)), 404)
    assert words.startswith(f"the base {base}: Glance answers 404")
    assert stranger.status(image_id) == "queued"


def test_user_without_upload_permission_cannot_fill_an_image(sender):
    stranger = changed_disks.Sender(sender.place, sender.gateway, "stranger")
    disk = a_disk()
    base = sender.place.upload("fs", disk.base, visibility="community")
    image_id = sender.queued()
    said(stranger.send(image_id, disk.stream(base)), 404)
    assert sender.status(image_id) == "queued"
    for headers in ({}, {"X-Auth-Token": "forged"}, {"X-Project-Id": "x", "X-Roles": "admin"}):
        answer = requests.put(sender.url(image_id), b"x", headers=headers, timeout=30)
        assert answer.status_code == 401


def test_upload_policy_of_glance_is_enforced(sender, tmp_path):
    disk = a_disk()
    base = sender.place.upload("fs", disk.base)
    image_id = sender.queued()
    policy = tmp_path / "policy.json"
    policy.write_text('{"upload_image": "role:admin"}')
    changed = ini.merged(sender.place.stores(), {"oslo_policy": {"policy_file": policy}})
    with sender.place.lab.glance.changed(changed):
        assert "403" in said(sender.send(image_id, disk.stream(base)), 403)
    assert sender.status(image_id) == "queued"
    last = changed_disks.lines_of(sender.send(image_id, disk.stream(base)))[-1]
    assert last["state"] == "done"


# Invalid requests


def test_target_image_in_another_state_or_format_is_refused(sender):
    disk = a_disk()
    base = sender.place.upload("fs", disk.base)
    stream = disk.stream(base)
    assert "status is active, not queued" in said(sender.send(base, stream, "raw"), 409)
    raw = sender.queued("raw")
    assert "format is raw, and qcow2 is requested" in said(sender.send(raw, stream), 409)
    ovf = sender.queued(container_format="ovf")
    assert "format is not set" in said(sender.send(ovf, stream), 409)
    none = sender.queued(disk_format=None, container_format=None)
    assert "format is not set" in said(sender.send(none, stream), 409)
    said(sender.send(str(uuid.uuid4()), stream), 404)
    assert "image" in said(sender.send("no-image", stream), 400)


def test_unreadable_base_is_refused(sender, tmp_path):
    disk = a_disk()
    image_id = sender.queued()
    vdi = sender.place.upload("fs", uploads.vdi(tmp_path), disk_format="vdi")
    assert "the base's format is vdi" in said(sender.send(image_id, disk.stream(vdi)), 409)
    waiting = sender.queued()
    assert "status is queued" in said(sender.send(image_id, disk.stream(waiting)), 409)
    said(sender.send(image_id, disk.stream(image_id)), 409)
    gone = sender.place.upload("fs", disk.base)
    sender.place.ask("admin", "DELETE", f"/v2/images/{gone}")
    assert "404" in said(sender.send(image_id, disk.stream(gone)), 404)
    assert sender.status(image_id) == "queued"


def test_delta_of_another_base_is_refused_by_its_hash(sender):
    disk = a_disk()
    base = sender.place.upload("fs", disk.base)
    image_id = sender.queued()
    other = chunk_map.OsHash("sha512", hashlib.sha512(b"other").digest())
    assert "another base" in said(sender.send(image_id, disk.stream(base, other)), 409)
    own = chunk_map.OsHash("sha512", hashlib.sha512(disk.base).digest())
    lines = changed_disks.lines_of(sender.send(image_id, disk.stream(base, own)))
    assert lines[-1]["state"] == "done"


def test_invalid_request_is_refused(sender):
    image_id, stream = sender.queued(), a_disk().stream(sender.place.upload("fs"))
    assert "set format=" in said(sender.send(image_id, stream, "vmdk"), 400)
    assert "Content-Length" in said(sender.send(image_id, iter([stream])), 411)
    assert "not a disk delta" in said(sender.send(image_id, b"x" * 500), 400)
    assert "the body ended" in said(sender.send(image_id, b""), 400)
    token = {"X-Auth-Token": sender.place.token("tenant")}
    for method in ("GET", "POST", "DELETE"):
        answer = requests.request(method, sender.url(image_id), headers=token, timeout=30)
        assert answer.status_code == 405
    assert sender.status(image_id) == "queued"


def test_quota_error_of_glance_is_passed_on(sender):
    disk = a_disk()
    base = sender.place.upload("fs", disk.base)
    image_id = sender.queued()
    cap = {"DEFAULT": {"image_size_cap": MIB}}
    with sender.place.lab.glance.changed(ini.merged(sender.place.stores(), cap)):
        answer = sender.send(image_id, disk.stream(base))
        last = answer.json() if answer.status_code != 200 else changed_disks.lines_of(answer)[-1]
        assert last["error"]["code"] == 413
        sender.wait_status(image_id, "queued")
