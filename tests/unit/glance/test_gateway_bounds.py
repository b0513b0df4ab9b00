# SPDX-License-Identifier: Apache-2.0
"""What may be made of a base and a delta, however large a disk either states."""

import pytest

from acstor_common.disks import qcow2
from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import flatten_limits
from acstor_glance.gateway.flatten import merge_plan
from acstor_glance.prepare import preparation_budget
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_files

MIB, TIB = 1 << 20, 1 << 40
SPARE = preparation_budget.SPARE_BYTES


def refused(file_bytes: int, bounds: flatten_limits.FlattenLimits, quota: int | None = None) -> str:
    with pytest.raises(http_errors.HttpError) as caught:
        flatten_limits.check_file(file_bytes, bounds, quota)
    assert caught.value.status == 413
    return caught.value.message


def test_image_is_no_longer_than_the_base_and_the_delta_decode_to() -> None:
    bounds = flatten_limits.limits_for(30 * MIB, 1000 * MIB, 10 * MIB, 64)
    assert bounds == (1000 * MIB, (1920 + 640) * MIB)
    flatten_limits.check_file(2560 * MIB, bounds, None)
    assert "base and delta allow 2684354560" in refused(2560 * MIB + 1, bounds)


def test_disk_that_a_small_base_states_does_not_count() -> None:
    assert flatten_limits.limits_for(224 << 10, 2 * TIB, 160, 64) == (SPARE, 2 * SPARE)
    refused(2 * TIB, flatten_limits.limits_for(224 << 10, 2 * TIB, 160, 64))


def test_time_grows_with_the_bytes() -> None:
    assert flatten_limits.limits_for(1, 1, 160, 64).longest_s == pytest.approx(300 + 512)


def test_quota_of_the_project_counts_before_anything_is_sent() -> None:
    bounds = flatten_limits.limits_for(MIB, MIB, MIB, 64)
    flatten_limits.check_file(2 * MIB, bounds, 2 * MIB)
    assert "the project's quota leaves 2097151" in refused(2 * MIB, bounds, 2 * MIB - 1)


def test_base_whose_clusters_lie_in_one_place_ends_before_all_is_looked_at() -> None:
    data = qcow2_bombs.aliased(2 * TIB, stored_bytes=4096)
    disk = qcow2.Qcow2(qcow2_files.Bytes(data))
    bounds = flatten_limits.limits_for(len(data), disk.virtual_size, 160, 64)
    pieces = merge_plan.pieces((), disk.iter_extents(), disk.virtual_size)
    seen = 0
    with pytest.raises(http_errors.HttpError, match="the base decodes to more than 10740"):
        for piece in flatten_limits.bounded_pieces(pieces, bounds):
            seen += piece.length
    assert seen <= 64 * len(data)
