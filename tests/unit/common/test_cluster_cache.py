# SPDX-License-Identifier: Apache-2.0
from acstor_common.disks import qcow2
from acstor_common.formats import cluster_cache
from acstor_common.formats import layout
from acstor_common.model import geometry
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_files

DEFLATE = layout.Codec.DEFLATE


def test_shared_compressed_cluster_is_read_once() -> None:
    source = qcow2_files.Bytes(qcow2_bombs.aliased(64 << 16, 16, stored_bytes=4096))
    disk = qcow2.Qcow2(source)
    source.read_bytes = 0
    view = memoryview(bytearray(1 << 16))
    for at in range(0, disk.virtual_size, 1 << 16):
        part = disk.part_reader(at, at + (1 << 16), geometry.Geometry(disk.virtual_size, 1 << 16))
        assert part.fill_buffer(view, at) == 1 << 16
        assert view == b"\x01" * (1 << 16)
    assert source.read_bytes < 64 * 64 + 2 * 4096  # the tables and one read of the cluster


def cluster(number: int) -> layout.Extent:
    return layout.Extent(number, 400, DEFLATE, number, 10)


def test_least_recently_used_clusters_are_evicted_at_the_limit() -> None:
    kept = cluster_cache.ClusterCache(limit_bytes=1000)
    for number in (0, 1, 2, 3, 4, 3):
        kept.put(cluster(number), bytes([number]) * 400)
    found = [kept.get(cluster(number)) for number in range(5)]
    assert found == [None, None, None, b"\x03" * 400, b"\x04" * 400]
    assert kept.get(cluster(3)) is not None
    kept.put(cluster(0), bytes(400))
    assert kept.get(cluster(4)) is None and kept.get(cluster(3)) is not None
    kept.forget(cluster(3))
    kept.put(cluster(1), bytes(400))
    assert kept.get(cluster(0)) is not None and kept.get(cluster(3)) is None


def test_cluster_is_keyed_by_image_and_stored_location() -> None:
    kept = cluster_cache.ClusterCache(limit_bytes=1000)
    kept.put(cluster(1), b"1" * 400, "one")
    assert kept.get(cluster(1)._replace(at=4096), "one") == b"1" * 400
    for extent in (cluster(1)._replace(length=200), cluster(1)._replace(stored_bytes=11)):
        assert kept.get(extent, "one") is None
    assert kept.get(cluster(1), "other") is None


def test_image_with_many_clusters_evicts_its_own() -> None:
    kept = cluster_cache.ClusterCache(limit_bytes=1000)
    kept.put(cluster(0), bytes(200), "other")
    for number in range(20):
        kept.put(cluster(number), bytes(200))
        kept.put(cluster(number), bytes(200))
    assert kept.get(cluster(0), "other") is not None
    found = [kept.get(cluster(number)) is not None for number in range(20)]
    assert found == [False] * 16 + [True] * 4
