# SPDX-License-Identifier: Apache-2.0
"""A run of PEERS works through its plan."""

import pathlib
import uuid
from collections.abc import Iterator
from typing import Self

import pytest

from acstor_common import errors
from acstor_common.model import ids
from evaluation.bench import n1_peers
from evaluation.bench import peer_boots
from evaluation.bench import peer_journal
from evaluation.bench import peer_plan
from evaluation.bench import peer_replay
from evaluation.bench import peer_ways

CELL = peer_plan.Cell(100, 0)
NOWHERE = pathlib.Path("/nonexistent")
MADE = peer_ways.Prepared(NOWHERE, ids.parse_image_id(str(uuid.uuid4())), NOWHERE)


class Booted:
    """A guest that boots at once, or fails."""

    events: list[str]

    def __init__(self, made: peer_ways.Prepared, cell: peer_plan.Cell, way: str) -> None:
        self._way = way
        self.boot = peer_boots.Boot(1.0, 2.0, 3.0, 4, 5, 6, 7.0, 8.0)

    def __enter__(self) -> Self:
        if self._way == "nbdkit":
            raise errors.Unusable("nbdkit", "it fails\nwith details")
        self.events.append(f"{self._way} boots")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append(f"{self._way} ends")

    def note_cached(self) -> None:
        """Nothing is cached here."""

    def is_due(self, later_s: float) -> bool:
        """Return True: all time has passed."""
        return True

    def run_again(self) -> None:
        """Note it, or fail."""
        if self._way == "download":
            raise errors.Unusable("download", "the guest is gone")
        self.events.append(f"{self._way} runs again")


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the events of fake guests."""
    Booted.events = []
    monkeypatch.setattr(peer_boots, "Booted", Booted)
    yield Booted.events


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> peer_journal.Journal:
    """Return an empty journal."""
    return peer_journal.Journal(tmp_path / "PEERS.jsonl", "0123456789")


def work(
    monkeypatch: pytest.MonkeyPatch,
    journal: peer_journal.Journal,
    *jobs: tuple[peer_plan.Kind, str],
) -> n1_peers.Session:
    """Do jobs in one cell that the journal lacks, and return the run."""
    planned = [peer_plan.Job(kind, CELL, way) for kind, way in jobs]
    monkeypatch.setattr(peer_plan, "plan", lambda turns, is_quick: planned)
    session = n1_peers.Session(MADE, journal, lambda line: None)
    limit = peer_plan.TimeLimit(1000.0, lambda: 0.0)
    session.resume(limit)
    session.work(limit)
    return session


def test_kept_guests_run_again_and_end_before_the_next_job(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    keep = peer_plan.Kind.KEEP
    work(monkeypatch, journal, (keep, "raw file"), (keep, "acstor"), (peer_plan.Kind.BOOT, "QEMU"))
    assert booted == [
        *("raw file boots", "acstor boots"),
        *("raw file runs again", "acstor runs again"),
        *("acstor ends", "raw file ends"),
        *("QEMU boots", "QEMU ends"),
    ]


def test_kept_guests_at_the_end_of_a_plan_run_again_and_end(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    work(monkeypatch, journal, (peer_plan.Kind.KEEP, "acstor"))
    assert booted == ["acstor boots", "acstor runs again", "acstor ends"]


def test_boot_beside_kept_guests_has_no_processor_time(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    jobs = ((peer_plan.Kind.KEEP, "acstor"), (peer_plan.Kind.BOOT, "QEMU"))
    found = work(monkeypatch, journal, *jobs).found
    assert found.boots[CELL, "acstor"][0].cpu_s is None
    assert found.boots[CELL, "QEMU"][0].cpu_s == 7.0


def test_failed_job_is_reported_and_the_others_go_on(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    jobs = ((peer_plan.Kind.BOOT, "nbdkit"), (peer_plan.Kind.BOOT, "QEMU"))
    found = work(monkeypatch, journal, *jobs).found
    assert found.failed == ["boot, 100 Mbit/s, 0 ms, nbdkit, turn 1: nbdkit: it fails"]
    assert list(found.boots) == [(CELL, "QEMU")]


def test_kept_guest_that_fails_later_leaves_the_others(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    jobs = ((peer_plan.Kind.KEEP, "download"), (peer_plan.Kind.KEEP, "acstor"))
    found = work(monkeypatch, journal, *jobs).found
    (failed,) = found.failed
    assert failed.endswith("download, turn 1: download: the guest is gone")
    assert list(found.boots) == [(CELL, "acstor")]


def test_time_of_former_jobs_limits_those_like_them(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    slow = peer_boots.Boot(1.0, 900.0, 200.0, 4, 5, 6, 7.0, 8.0)
    journal.add(peer_plan.Job(peer_plan.Kind.BOOT, CELL, "QEMU", 1), slow)
    work(monkeypatch, journal, (peer_plan.Kind.BOOT, "QEMU"), (peer_plan.Kind.BOOT, "acstor"))
    assert booted == ["acstor boots", "acstor ends"]


def test_resumed_run_does_only_what_former_runs_did_not(
    booted: list[str], monkeypatch: pytest.MonkeyPatch, journal: peer_journal.Journal
) -> None:
    kept, booting = (peer_plan.Kind.KEEP, "acstor"), (peer_plan.Kind.BOOT, "QEMU")
    first = work(monkeypatch, journal, kept)
    with journal.path.open("a") as file:
        file.write('{"commit": "0123')  # this run was killed
    del booted[:]
    found = work(monkeypatch, journal, kept, booting).found
    assert booted == ["QEMU boots", "QEMU ends"]
    assert found.boots[CELL, "acstor"] == first.found.boots[CELL, "acstor"]
    assert list(found.boots) == [(CELL, "acstor"), (CELL, "QEMU")]
    assert len(list(journal.load())) == 2


def test_journal_keeps_replays_and_commits(journal: peer_journal.Journal) -> None:
    job = peer_plan.Job(peer_plan.Kind.REPLAY, peer_plan.Cell(100, 0, 8), "nbdkit", 2)
    measured = peer_replay.Replay([1.0, 2.0], 3, 4, 5, 6.0, 7.0)
    journal.add(job, measured)
    assert list(journal.load()) == [(job, measured, "0123456789")]
    journal.clear()
    assert list(journal.load()) == []
    assert journal.path.with_suffix(".old").exists()
