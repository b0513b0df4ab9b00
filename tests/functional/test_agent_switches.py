# SPDX-License-Identifier: Apache-2.0
"""Variants that switch features off change no byte."""

import concurrent.futures
from typing import Any

import pytest

from acstor_common.model import geometry
from acstor_policies.variants import Variant
from tests.fakes import hosts
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse
DATA = local.random_bytes(6 * geometry.MIB + 777, seed=5, zero_share=0.2)
FORMER = "former table"
SIMPLE = {
    Variant.NO_ADVERTISEMENTS,
    Variant.NO_PREFETCH,
    Variant.NO_READ_AHEAD,
    Variant.NO_REFERRALS,
    Variant.NO_HEDGES,
    Variant.NO_SOURCE_FIRST,
    Variant.NO_COPY_HINTS,
    Variant.HOMES_KEEP,
    Variant.BY_PLACE,
    Variant.CACHE_FIFO,
    FORMER,
}
"""The smallest set of features."""


@pytest.mark.parametrize("chosen", [*({name} for name in (*Variant, FORMER)), SIMPLE, set()])
def test_reads_return_right_bytes_with_each_feature_switched_off(tmp_path, chosen):
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(DATA)
    options: dict[str, Any] = {"variants": ",".join(sorted(chosen - {FORMER}))}
    if FORMER in chosen:
        options["constants"] = {tuned.FORMER_TABLE_LIFETIME_S: 0}
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), **options) as cloud:
        paths = [agent.image_path(image_id) for agent in cloud.agents.values()]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            assert list(threads.map(lambda path: path.read_bytes() == DATA, paths)) == [True] * 3
        statuses = cloud.statuses().values()
    assert sum(status["read"]["home"]["bytes"] for status in statuses) > 0
    if Variant.NO_HEDGES in chosen:
        assert all(status["exchange"]["hedged_requests"] == 0 for status in statuses)
    if Variant.NO_REFERRALS in chosen:
        assert all(status["exchange"]["referrals_followed"] == 0 for status in statuses)
    if {Variant.NO_ADVERTISEMENTS, Variant.NO_REFERRALS} <= chosen:  # no host knows other holders
        assert all(status["fetched"]["peer"]["bytes"] == 0 for status in statuses)
