# SPDX-License-Identifier: Apache-2.0
"""Experiments' results on disk: one JSON file for each experiment.

A file is replaced atomically after each case, so an interruption loses only the running case.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from evaluation.papers import experiment

Record = dict[str, Any]
"""A case's record: its outcome (or why it could not run), time, and other load."""


class NoResult(Exception):
    """A file is not an experiment's result; the message has its name and a remedy."""


@dataclasses.dataclass
class StoredResults:
    """The results of one experiment at one scale.

    :param records: by the names of cases
    :param turns: runs of its timed cases; more than one if the machine was not steady
    """

    scale: experiment.Scale
    records: dict[str, Record] = dataclasses.field(default_factory=dict)
    turns: int = 1

    @property
    def outcomes(self) -> dict[str, experiment.Outcome]:
        """The outcomes of the cases that could run."""
        return {
            name: record["outcome"] for name, record in self.records.items() if "outcome" in record
        }

    @property
    def refusals(self) -> dict[str, str]:
        """The reasons of the cases that could not run."""
        return {
            name: record["could_not_run"]
            for name, record in self.records.items()
            if "could_not_run" in record
        }


def machine_s(record: Record) -> float:
    """Return how long a case occupied the machine; virtual time uses one processor.

    >>> timed = {"took_s": 60.0, "is_timed": True, "machine": {"cores": 2}}
    >>> machine_s(timed), machine_s({**timed, "is_timed": False})
    (60.0, 30.0)
    """
    return float(record["took_s"] / (1 if record["is_timed"] else record["machine"]["cores"]))


def path(folder: pathlib.Path, key: str) -> pathlib.Path:
    """Return the path of an experiment's file."""
    return folder / f"{key}.json"


def load(folder: pathlib.Path, key: str, scale: experiment.Scale) -> StoredResults:
    """Return an earlier run's results of an experiment at this scale.

    Results of another scale count as none, and so does a missing file.

    :raises NoResult: the file is invalid
    """
    file = path(folder, key)
    try:
        kept = read(file)
    except FileNotFoundError:
        return StoredResults(scale)
    return kept if kept.scale == scale else StoredResults(scale)


def read(file: pathlib.Path) -> StoredResults:
    """Return the results in a file.

    :raises FileNotFoundError: there is none
    :raises NoResult: it is invalid
    """
    try:
        found = json.loads(file.read_text())
        return StoredResults(
            experiment.Scale(found["scale"]), dict(found["cases"]), int(found["turns"])
        )
    except (KeyError, TypeError, ValueError) as e:
        raise NoResult(f"{file} is not a result of an experiment ({e}). Remove it.") from e


def save(folder: pathlib.Path, key: str, kept: StoredResults) -> None:
    """Write an experiment's results.

    :raises OSError: the disk is full, or the folder not writable; the old file is unchanged
    """
    file = path(folder, key)
    new = file.with_suffix(".new")
    content = {"scale": kept.scale.value, "turns": kept.turns, "cases": kept.records}
    try:
        new.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        os.replace(new, file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
