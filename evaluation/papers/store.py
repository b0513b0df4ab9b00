# SPDX-License-Identifier: Apache-2.0
"""What the runs of an experiment gave, on disk: one JSON file for each experiment.

A file is written anew after each case, beside the old one and then in its place, so an interruption
loses the case that was running and nothing else.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from evaluation.papers import experiment

Record = dict[str, Any]
"""What is kept of a case: its outcome (or why it could not run), when it ran, beside what load."""


class NoResult(Exception):
    """A file is not the result of an experiment; the message names it, and what to do."""


@dataclasses.dataclass
class Kept:
    """What there is of one experiment at one scale.

    :param records: by the names of cases
    :param turns: how often its timed cases were run because the machine was not steady
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
        """Why the others could not."""
        return {
            name: record["could_not_run"]
            for name, record in self.records.items()
            if "could_not_run" in record
        }


def machine_s(record: Record) -> float:
    """Return how long a case kept the whole machine: one in virtual time has a single processor.

    >>> timed = {"took_s": 60.0, "is_timed": True, "machine": {"cores": 2}}
    >>> machine_s(timed), machine_s({**timed, "is_timed": False})
    (60.0, 30.0)
    """
    return float(record["took_s"] / (1 if record["is_timed"] else record["machine"]["cores"]))


def path(folder: pathlib.Path, key: str) -> pathlib.Path:
    """Return where an experiment's file is."""
    return folder / f"{key}.json"


def load(folder: pathlib.Path, key: str, scale: experiment.Scale) -> Kept:
    """Return what an earlier run left of an experiment at this scale.

    What is of another scale counts as nothing, and so does a file that is not there.

    :raises NoResult: the file is not one of ours
    """
    file = path(folder, key)
    try:
        kept = read(file)
    except FileNotFoundError:
        return Kept(scale)
    return kept if kept.scale == scale else Kept(scale)


def read(file: pathlib.Path) -> Kept:
    """Return what a file holds.

    :raises FileNotFoundError: there is none
    :raises NoResult: it is not one of ours
    """
    try:
        found = json.loads(file.read_text())
        return Kept(experiment.Scale(found["scale"]), dict(found["cases"]), int(found["turns"]))
    except (KeyError, TypeError, ValueError) as e:
        raise NoResult(f"{file} is no result of an experiment ({e}). Remove it.") from e


def save(folder: pathlib.Path, key: str, kept: Kept) -> None:
    """Write what there is of an experiment.

    :raises OSError: there is no room, or the folder cannot be written; the old file is untouched
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
