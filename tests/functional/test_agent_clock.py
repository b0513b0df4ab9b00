# SPDX-License-Identifier: Apache-2.0
"""An agent while the wall clock is set far ahead and back."""

import pytest

from tests.chaos import clocks
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

YEAR_S = 365 * 86400.0
SIZE = 1 << 20


@pytest.fixture
def clock(tmp_path, monkeypatch):
    made = clocks.WallClock(tmp_path / "clock", clocks.build(tmp_path))
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_agent_serves_and_reports_its_uptime_across_clock_changes(tmp_path, clock):
    images = local.ImageFolder(tmp_path / "source")
    data = local.random_bytes(3 * SIZE)
    image_id = images.add(data)
    with hosts.running(tmp_path / "h1", images) as agent:
        assert clock.environment["LD_PRELOAD"] in open(f"/proc/{agent.worker_pid()}/maps").read()
        path = agent.image_path(image_id)
        for turn, off_s in enumerate((25 * YEAR_S, -25 * YEAR_S, 0.0)):
            clock.set_off(off_s)
            at = turn * SIZE
            with path.open("rb") as file:
                file.seek(at)
                assert file.read(SIZE) == data[at : at + SIZE]
            assert 0 <= agent.status()["uptime_s"] < hosts.LIFE_S
