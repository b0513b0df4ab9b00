# SPDX-License-Identifier: Apache-2.0
"""Limits of the output of a flatten, whatever disk size base and delta state."""

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


def test_output_is_limited_by_the_decoded_base_and_delta() -> None:
    bounds = flatten_limits.limits_for(30 * MIB, 1000 * MIB, 10 * MIB, 64)
    assert bounds == (1000 * MIB, (1920 + 640) * MIB)
    flatten_limits.check_file(2560 * MIB, bounds, None)
    assert "base and delta allow 2684354560" in refused(2560 * MIB + 1, bounds)


def test_virtual_size_of_a_small_base_does_not_count() -> None:
    assert flatten_limits.limits_for(224 << 10, 2 * TIB, 160, 64) == (SPARE, 2 * SPARE)
    refused(2 * TIB, flatten_limits.limits_for(224 << 10, 2 * TIB, 160, 64))


def test_time_limit_grows_with_the_bytes() -> None:
    assert flatten_limits.limits_for(1, 1, 160, 64).longest_s == pytest.approx(300 + 512)


def test_quota_is_checked_before_any_upload() -> None:
    bounds = flatten_limits.limits_for(MIB, MIB, MIB, 64)
    flatten_limits.check_file(2 * MIB, bounds, 2 * MIB)
    assert "the project's quota leaves 2097151" in refused(2 * MIB, bounds, 2 * MIB - 1)


def test_base_with_aliased_clusters_is_refused_before_it_is_read_completely() -> None:
    data = qcow2_bombs.aliased(2 * TIB, stored_bytes=4096)
    disk = qcow2.Qcow2(qcow2_files.Bytes(data))
    bounds = flatten_limits.limits_for(len(data), disk.virtual_size, 160, 64)
    pieces = merge_plan.pieces((), disk.iter_extents(), disk.virtual_size)
    seen = 0
    with pytest.raises(http_errors.HttpError, match="the base decodes to more than 10740"):
        for piece in flatten_limits.bounded_pieces(pieces, bounds):
            seen += piece.length
    assert seen <= 64 * len(data)
