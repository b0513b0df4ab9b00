# SPDX-License-Identifier: Apache-2.0
"""A page shows the results: figures, verdicts, failed cases, and the machine's steadiness."""

import dataclasses
import io
import pathlib
from typing import Any

import pytest
from docutils import core

from evaluation.papers import experiment
from evaluation.papers import page
from evaluation.papers import store

WHOLE = experiment.Scale.WHOLE
MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "kernel": "6.1",
    "python": "3.11.2",
    "commit": "0123456789abcdef",
    "date": "2026-11-24T20:00:00+00:00",
}


def rows(found: experiment.Outcomes) -> list[experiment.Row | experiment.Absent]:
    ours, direct = found["acstor"]["s"], found["direct"]["s"]
    return [
        experiment.Row(
            "Table 2",
            "completion",
            "2.8 times",
            ours,
            "s",
            direct,
            "direct",
            direct / ours,
            goal=2.8,
            because="the links are full",
            is_headline=True,
        ),
        experiment.Absent("Figure 9", "on a *real* disk", "", "there is none"),
    ]


ONE = experiment.Experiment(
    "S0-try",
    "Table 2: a try",
    "32 nodes.",
    "Two hosts.",
    lambda _: (),
    rows,
    lambda picture, found: picture.subplots().bar(
        list(found), [one["s"] for one in found.values()]
    ),  # type: ignore[arg-type, return-value]
    lambda found: {"direct": [found["direct"]["s"], found["again"]["s"]]},
)
PAPER = experiment.Paper("S0", "A try", "A. Author: *A paper*, 2016.", "What it is.", (ONE,))


def record(seconds: float, **more: Any) -> store.Record:
    return {
        "outcome": {"s": seconds},
        "began": 0,
        "took_s": 60.0,
        "others_share": 0.02,
        "steal_share": 0.0,
        "is_timed": True,
        "machine": MACHINE,
        **more,
    }


def kept(ours: float = 2.0, again: float = 5.6) -> store.StoredResults:
    records = {"acstor": record(ours), "direct": record(5.6), "again": record(again)}
    return store.StoredResults(WHOLE, records)


def text(found: store.StoredResults) -> str:
    written = page.text(PAPER, {"S0-try": found}, "pictures")
    complaints = io.StringIO()
    core.publish_doctree(
        written, settings_overrides={"warning_stream": complaints, "report_level": 2}
    )
    assert complaints.getvalue() == ""
    return written


def test_page_has_the_summary_before_the_experiments() -> None:
    written = text(kept())
    assert written.index("Summary") < written.index("Table by table")
    assert written.count("2.00 s") == 2
    assert "- 5.60 s (direct)" in written
    assert "- 2.80\n     - Reached." in written
    assert "on a \\*real\\* disk" in written
    assert "2026-11-24, commit 0123456789; 2 cores of A processor" in written


@pytest.mark.parametrize(
    ("ours", "words"), [(1.0, "Beaten."), (4.0, "**Missed**: the links are full")]
)
def test_verdict_is_computed(ours: float, words: str) -> None:
    assert words in text(kept(ours))


def test_reason_of_a_miss_is_left_out_for_a_reached_goal() -> None:
    assert "the links are full" not in text(kept())


def test_page_shows_how_many_experiments_have_run() -> None:
    assert "A whole run, 2026-11-24" in text(kept())
    paper = dataclasses.replace(PAPER, experiments=(ONE, dataclasses.replace(ONE, key="S0-more")))
    written = page.text(
        paper, {"S0-try": kept(), "S0-more": store.StoredResults(WHOLE)}, "pictures"
    )
    assert "A whole run, in which 1 of 2 experiments were run, 2026-11-24" in written


def test_total_duration_counts_half_the_time_of_virtual_cases() -> None:
    assert "All cases together took 3 min." in text(kept())
    found = kept()
    found.records["acstor"] = record(2.0, is_timed=False, took_s=240.0)
    assert "All cases together took 4 min." in text(found)


def test_unsteady_machine_is_reported() -> None:
    assert "was not steady" not in text(kept())
    assert "differed by 25% within the run" in text(kept(again=7.0))


def test_page_lists_cases_that_could_not_run() -> None:
    found = kept()
    refused = {key: value for key, value in record(0.0).items() if key != "outcome"}
    found.records["direct"] = {**refused, "could_not_run": "there is no stress-ng"}
    written = text(found)
    assert "there is no stress-ng" in written
    assert "2.00 s" not in written


def test_page_reports_experiments_that_have_not_run() -> None:
    assert "Not run yet." in text(store.StoredResults(WHOLE))


def test_partial_run_without_figures_is_reported() -> None:
    nothing = dataclasses.replace(ONE, rows=lambda _: ())
    paper = dataclasses.replace(PAPER, experiments=(nothing,))
    written = page.text(paper, {"S0-try": kept()}, "pictures")
    assert "give no figure yet" in written
    assert "list-table" not in written


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0.000"),
        (0.04, "0.040"),
        (1.0, "1.00"),
        (9.999, "10.00"),
        (99.4, "99.4"),
        (1e5, "100,000"),
    ],
)
def test_numbers_have_significant_digits(value: float, words: str) -> None:
    assert page.number(value) == words


def test_pictures_are_drawn_only_of_results(tmp_path: pathlib.Path) -> None:
    page.draw(ONE, store.StoredResults(WHOLE), tmp_path / "none.png")
    page.draw(ONE, kept(), tmp_path / "pictures" / "one.png")
    assert not (tmp_path / "none.png").exists()
    assert (tmp_path / "pictures" / "one.png").read_bytes().startswith(b"\x89PNG")
