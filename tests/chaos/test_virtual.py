# SPDX-License-Identifier: Apache-2.0
"""Some seeds of the chaos in virtual time, and its detection of faults."""

from collections.abc import Sequence

import pytest

from acstor_agent.core.images import fill_rate
from acstor_agent.engine.fetch import transfers
from acstor_agent.sources import chunk_verification
from acstor_common.model import ids
from tests.chaos import virtual

pytestmark = pytest.mark.allow_log(r".")  # everything breaks
SEEDS = 3


def test_seeds_break_no_guarantee():
    for seed in range(SEEDS):
        world, error = virtual.play(seed)
        assert error is None, f"seed {seed}: {virtual.causes(error)} {world.trace[-20:]}"
        assert world.reads > 50


def first_broken(seeds: range, faults: Sequence[virtual.Fault] = virtual.FAULTS) -> str:
    for seed in seeds:
        _, error = virtual.play(seed, faults)
        if error is not None:
            return str(virtual.causes(error)[0])
    return ""


def test_unverified_bytes_are_detected(monkeypatch):
    monkeypatch.setattr(chunk_verification, "check_chunk", lambda *_: None)
    monkeypatch.setattr(ids.Content, "matches_data", lambda *_: True)
    assert "wrong bytes" in first_broken(range(1, 10))


def test_growing_table_is_detected(monkeypatch):
    monkeypatch.setattr(transfers.Transfers, "uncharge", lambda self, transfer: None)
    assert "begun for peers" in first_broken(range(1, 10))


def test_source_reads_by_every_host_are_detected(monkeypatch):
    monkeypatch.setattr(virtual.World, "give_table", lambda self, host: None)
    assert "the source gave" in first_broken(range(virtual.CALM_EVERY, 50, virtual.CALM_EVERY))


def test_same_seed_gives_the_same_run():
    first, second = (virtual.play(2)[0].trace for _ in range(2))
    assert first == second
    assert any("kill" in line for line in first)


def test_deadline_by_the_wall_clock_is_detected(monkeypatch):
    faults = (virtual.World.kill, virtual.World.set_clock, virtual.World.hydrate)
    monkeypatch.setattr(fill_rate, "time_left_s", lambda by_s, within_s, now_s: by_s - now_s)
    assert "due in 60 s at most" in first_broken(range(9, 12), faults)
