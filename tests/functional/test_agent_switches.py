# SPDX-License-Identifier: Apache-2.0
"""Everything that makes reads faster can be switched off, and then the bytes are the same."""

import concurrent.futures

import pytest

from acstor_common import geometry
from tests.fakes import hosts
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse
DATA = local.random_bytes(6 * geometry.MIB + 777, seed=5, zero_share=0.2)
SWITCHES = {
    "advertise_to": "none",
    "unmatched_limit": 0,
    "read_ahead_limit_bytes": 0,
    "read_ahead_by": "units",
    "follow_referrals": False,
    "race_slow_answers": False,
    "content_exchange": False,
    "constants": {tuned.FORMER_S: 0},
}


@pytest.mark.parametrize("off", [*({name} for name in SWITCHES), set(SWITCHES), set()])
def test_bytes_are_the_same_with_and_without(tmp_path, off):
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(DATA)
    options = {name: SWITCHES[name] for name in off}
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), **options) as cloud:
        paths = [agent.image_path(image_id) for agent in cloud.agents.values()]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            assert list(threads.map(lambda path: path.read_bytes() == DATA, paths)) == [True] * 3
        statuses = cloud.statuses().values()
    assert sum(status["read"]["home"]["bytes"] for status in statuses) > 0
    if "race_slow_answers" in off:
        assert all(status["exchange"]["races"] == 0 for status in statuses)
    if "follow_referrals" in off:
        assert all(status["exchange"]["referrals_followed"] == 0 for status in statuses)
    if {"advertise_to", "follow_referrals"} <= off:  # then nobody knows of another holder
        assert all(status["fetched"]["peer"]["bytes"] == 0 for status in statuses)
