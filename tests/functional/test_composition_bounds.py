# SPDX-License-Identifier: Apache-2.0
"""Limits of the output of a flatten, whatever disk size base and delta state.

Glance and its stores are in memory; the flatten itself is real.

"""

import io

import pytest

from acstor_common.disks import disk_delta
from acstor_common.disks.disk_delta import Extent
from acstor_common.disks.disk_delta import ExtentKind
from acstor_common.formats import chunk_map
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway.flatten import delta_body
from acstor_glance.gateway.flatten import flatten_job
from acstor_glance.gateway.flatten import watchdog
from acstor_glance.prepare import preparation_budget
from tests.fakes import changed_disks
from tests.fakes import qcow2_bombs

TIB = 1 << 40
RAW_BASE = bytes(range(256)) * 4096
CALLER = image_lookup.Caller("a token")


class Glance:
    """A Glance with one base that stores uploads; ``quota`` is the project's remaining quota."""

    def __init__(self, base: bytes, disk_format: str) -> None:
        self.base, self.quota, self.taken = base, None, 0
        self.image_of_base = image_lookup.ReadableImage(
            changed_disks.BASE_ID, len(base), "", disk_format, changed_disks.OS_HASH
        )

    def get_readable(self, image_id, caller):
        return self.image_of_base

    def quota_left(self, caller):
        return self.quota

    def read_part(self, image, asked, caller):
        return self.base[asked.offset : asked.offset + asked.length]

    def check_target(self, image_id, caller, disk_format):
        pass

    def upload_image(self, image_id, caller, data, timeout_s):
        for part in data:
            self.taken += len(part)


def changes_of(size: int, *found: Extent) -> bytes:
    """Return a body: the delta of a disk of ``size`` bytes."""
    table = disk_delta.ExtentTable.from_runs(found, size)
    writer = disk_delta.Writer(size, changed_disks.BASE_ID, chunk_map.UNKNOWN_OS_HASH, table)
    data = b"x" * writer.head.data_bytes
    writer.hash_data(data)
    return writer.front + data + writer.make_trailer()


def compose(glance: Glance, body: bytes, disk_format: str) -> flatten_job.FlattenJob:
    watched = watchdog.Watchdog(30.0)
    order = flatten_job.FlattenRequest(changed_disks.BASE_ID, disk_format, CALLER)
    sent = delta_body.DeltaBody(io.BytesIO(body), len(body), order.image_id, watched)
    made = flatten_job.FlattenJob(glance, glance, glance, order, sent, watched, 64)
    made.run(30.0)
    return made


def refused(glance: Glance, body: bytes, disk_format: str, status: int, words: str) -> None:
    with pytest.raises(http_errors.HttpError, match=words) as caught:
        compose(glance, body, disk_format)
    assert caught.value.status == status
    assert glance.taken < preparation_budget.SPARE_BYTES


def test_delta_of_160_bytes_cannot_produce_an_image_of_terabytes() -> None:
    body = changes_of(2 * TIB)
    assert len(body) <= 160
    words = "the image would have 2199023255552 bytes, and its base and delta allow"
    refused(Glance(RAW_BASE, "raw"), body, "raw", 413, words)
    refused(Glance(qcow2_bombs.empty(2 * TIB), "qcow2"), body, "raw", 413, words)


def test_valid_flatten_is_done() -> None:
    size = 64 << 20
    written = changes_of(size, Extent(1 << 20, 1 << 20, ExtentKind.DATA))
    for disk_format, most in (("raw", size), ("qcow2", 3 << 20)):
        glance = Glance(RAW_BASE, "raw")
        made = compose(glance, written, disk_format)
        assert glance.taken == made.file_bytes <= most


def test_base_with_aliased_clusters_is_refused() -> None:
    for stored_bytes in (None, 4096):
        base = qcow2_bombs.aliased(TIB, stored_bytes=stored_bytes)
        for disk_format in ("raw", "qcow2"):
            words = "the base decodes to more than|its base and delta allow"
            refused(Glance(base, "qcow2"), changes_of(TIB), disk_format, 413, words)


def test_base_that_decodes_slowly_is_refused() -> None:
    base = qcow2_bombs.slow(32 << 20)
    body = changes_of(32 << 20)
    refused(Glance(base, "qcow2"), body, "raw", 409, "clusters decode too slowly")


def test_flatten_beyond_the_quota_is_refused_before_any_upload() -> None:
    glance = Glance(RAW_BASE, "raw")
    glance.quota = 5 << 20
    refused(glance, changes_of(16 << 20), "raw", 413, "the project's quota leaves 5242880")
    assert glance.taken == 0
    assert compose(glance, changes_of(4 << 20), "raw").sent_bytes == 4 << 20
