# SPDX-License-Identifier: Apache-2.0
"""The published pages equal the pages of the results beside them."""

import pathlib
import re
import subprocess
import sys

import pytest

from evaluation.bench import harness
from evaluation.papers import __main__ as command
from evaluation.papers import catalogue
from evaluation.papers import experiment
from evaluation.papers import page
from evaluation.papers import store

PUBLISHED = command.PUBLISHED
EXPERIMENTS = [one for paper in catalogue.PAPERS for one in paper.experiments]


@pytest.mark.parametrize("paper", catalogue.PAPERS, ids=lambda paper: paper.key)
def test_published_page_equals_the_page_of_its_results(paper: experiment.Paper) -> None:
    results = command.PUBLISHED_RESULTS
    kept = {
        one.key: store.load(results, one.key, experiment.Scale.WHOLE) for one in paper.experiments
    }
    written = (PUBLISHED / f"{paper.key.lower()}.rst").read_text()
    assert written == page.text(paper, kept, command.PICTURES), (
        "write it anew: python -m evaluation.papers --pages-only --publish"
    )
    for picture in re.findall(r"image:: (\S+)", written):
        assert (PUBLISHED / picture).is_file()


def write_s3(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Have the command write a page of the results in a folder."""
    argv = [
        sys.executable,
        "-m",
        "evaluation.papers",
        "S3",
        "--pages-only",
        "--results",
        str(folder),
    ]
    return subprocess.run(argv, cwd=harness.ROOT, capture_output=True, text=True, check=False)


def test_page_without_results_says_that_nothing_was_run(tmp_path: pathlib.Path) -> None:
    assert write_s3(tmp_path / "new").returncode == 0
    written = (tmp_path / "new" / "whole" / "s3.rst").read_text()
    assert "No experiment has been run yet" in written


def test_error_of_an_unwritable_page_names_its_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "whole").write_text("a file where the folder is to be")
    found = write_s3(tmp_path)
    assert found.returncode == command.EXIT_CANNOT_KEEP
    assert found.stderr.startswith("error: ") and str(tmp_path / "whole") in found.stderr


def test_every_published_file_belongs_to_an_experiment() -> None:
    keys = {one.key for one in EXPERIMENTS}
    for folder in (command.RESULTS, command.PICTURES):
        assert {file.stem for file in (PUBLISHED / folder).glob("*")} <= keys


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.key)
@pytest.mark.parametrize("scale", experiment.Scale)
def test_cases_have_unique_names(one: experiment.Experiment, scale: experiment.Scale) -> None:
    names = [case.name for case in one.cases(scale)]
    assert names or scale == experiment.Scale.QUICK
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("scale", "at_most_min"), [("quick", 20), ("whole", 180)])
def test_all_papers_run_within_the_documented_time(scale: str, at_most_min: int) -> None:
    cases = [case for one in EXPERIMENTS for case in one.cases(experiment.Scale(scale))]
    alone_s = sum(case.about_s / (1 if case.is_timed else 2) for case in cases)
    assert alone_s / 60 <= at_most_min


def test_experiments_have_unique_keys_and_the_keys_of_their_papers() -> None:
    keys = [one.key for one in EXPERIMENTS]
    assert len(set(keys)) == len(keys)
    for paper in catalogue.PAPERS:
        assert {one.paper for one in paper.experiments} <= {paper.key}
