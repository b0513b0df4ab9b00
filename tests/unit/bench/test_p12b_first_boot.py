# SPDX-License-Identifier: Apache-2.0
"""A timeline without all reads of its boot gives no figure."""

import pytest

from acstor_common import errors
from acstor_common.model import boot_timeline
from evaluation.bench import p12b_first_boot

BOOT = boot_timeline.Timeline(
    image_id="7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
    began_at_s=1.0,
    opened_s=0.0,
    bytes={"boot": 90, "frame": 5, "zero": 10},
    slice_s=0.5,
)


def read(**counted):
    return {origin: {"requests": 1, "bytes": count} for origin, count in counted.items()}


def test_complete_timeline_is_used():
    p12b_first_boot.check_complete(BOOT, read(boot=90, source=5, zero=10), 30.0)


def test_incomplete_timeline_is_refused():
    with pytest.raises(errors.Unusable, match="has 105 of 1105 bytes"):
        p12b_first_boot.check_complete(BOOT, read(boot=90, source=1005, zero=10), 102.9)


def test_boot_image_of_an_aborted_boot_is_not_measured():
    p12b_first_boot.check_built({"end": "marker", "seconds_s": 37.3})
    with pytest.raises(errors.Unusable, match="ended by time after 300 s"):
        p12b_first_boot.check_built({"end": "time", "seconds_s": 300.0})
