# SPDX-License-Identifier: Apache-2.0
"""Finished jobs of PEERS in a file, so that a later run continues where one ended."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator

from evaluation.bench import peer_boots
from evaluation.bench import peer_plan
from evaluation.bench import peer_replay

Measured = peer_boots.Boot | peer_replay.Replay


class Journal:
    """One line of JSON for each finished job.

    :param commit: of the product that is measured
    """

    def __init__(self, path: pathlib.Path, commit: str) -> None:
        self.path, self.commit = path, commit
        self.reads_path = path.with_suffix(".reads.json")
        """The guest's reads, which all hosts and runs repeat."""

    def clear(self) -> None:
        """Forget all jobs and reads; the former jobs stay beside the new ones."""
        self.reads_path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self.path.with_suffix(".old"))

    def add(self, job: peer_plan.Job, measured: Measured) -> None:
        """Append a finished job."""
        of_job = {**dataclasses.asdict(job), "kind": job.kind.value}
        line = {"commit": self.commit, "job": of_job, "measured": dataclasses.asdict(measured)}
        with self.path.open("a") as file:
            file.write(f"\n{json.dumps(line)}\n")  # the former line may be cut off

    def load(self) -> Iterator[tuple[peer_plan.Job, Measured, str]]:
        """Yield the jobs, their measurements and commits; skip a line that a stop cut off."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            cell, kind = peer_plan.Cell(**row["job"].pop("cell")), row["job"].pop("kind")
            job = peer_plan.Job(cell=cell, kind=peer_plan.Kind(kind), **row["job"])
            is_replay = job.kind is peer_plan.Kind.REPLAY
            of_kind = peer_replay.Replay if is_replay else peer_boots.Boot
            yield job, of_kind(**row["measured"]), row["commit"]
