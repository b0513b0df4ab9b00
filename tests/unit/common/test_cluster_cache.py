# SPDX-License-Identifier: Apache-2.0
from acstor_common import cluster_cache
from acstor_common import geometry
from acstor_common import layout
from acstor_common import qcow2
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_files

DEFLATE = layout.Codec.DEFLATE


def test_extent_that_many_clusters_name_is_decoded_once() -> None:
    source = qcow2_files.Bytes(qcow2_bombs.aliased(64 << 16, 16, stored_bytes=4096))
    disk = qcow2.Qcow2(source)
    source.read_bytes = 0
    view = memoryview(bytearray(1 << 16))
    for at in range(0, disk.virtual_size, 1 << 16):
        part = disk.part(at, at + (1 << 16), geometry.Geometry(disk.virtual_size, 1 << 16))
        assert part.fill(view, at) == 1 << 16
        assert view == b"\x01" * (1 << 16)
    assert source.read_bytes < 64 * 64 + 2 * 4096  # the tables, and the cluster once


def test_last_used_clusters_are_kept_and_no_more() -> None:
    kept, decoded = cluster_cache.ClusterCache(), []

    def get(number: int, length: int = 8) -> None:
        extent = layout.Extent(number * 8, 8, DEFLATE, number, 5)

        def decode() -> bytes:
            decoded.append(number)
            return bytes([number]) * length

        assert kept.get(extent, length, decode) == bytes([number]) * length

    for number in (*range(cluster_cache.CLUSTERS), 0, 99, 0, 1):
        get(number)
    assert decoded == [*range(cluster_cache.CLUSTERS), 99, 1]
    get(0, length=4)
    assert decoded[-1] == 0
