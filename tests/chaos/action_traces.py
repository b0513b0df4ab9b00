# SPDX-License-Identifier: Apache-2.0
"""The exchange core's decisions in the swarm's runs, as text to compare revisions.

    python -m tests.chaos.action_traces record FILE --seeds 0-999
    python -m tests.chaos.action_traces compare FILE
    python -m tests.chaos.action_traces show 17 > after.txt

A trace has one line for each action of each host: the time, the host, and the action's fields.
``record`` writes one line for each seed: the digest of its trace and its :class:`Outcome`.  A
change that only moves code keeps all digests.  A change of the rules alters them; then ``compare``
prints how the outcomes of all seeds together differ, and ``show`` at both revisions, compared with
``diff``, gives the first different decision.
"""

import argparse
import dataclasses
import enum
import hashlib
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import transfer
from tests.chaos import transfer_swarm
from tests.fakes import transfer_hosts

DIGEST_BYTES = 8
SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    :param actions: of all hosts
    :param asked: requests for a chunk to another host
    :param given: chunks that hosts sent to others
    :param read: chunks that hosts requested from the source
    :param stored: chunks put into a cache
    :param ended_s: when the last read was answered and no transfer was in flight
    """

    actions: int
    asked: int
    given: int
    read: int
    stored: int
    ended_s: float

    def __str__(self) -> str:
        return " ".join(map(str, dataclasses.astuple(self)))

    @classmethod
    def parse(cls, words: list[str]) -> "Outcome":
        """Parse an outcome from text."""
        *counts, ended_s = words
        return cls(*map(int, counts), float(ended_s))


def text_of(value: Any) -> str:
    """Return an action as text, equal in each process."""
    if isinstance(value, transfer.Attempt):
        parts = value.mode, value.priority
        chunks = zip(value.numbers, value.refs, strict=True)
        texts = [", ".join(map(text_of, (*chunk, *parts))) for chunk in chunks]
        return ", ".join([f"Attempt({text})" for text in texts])
    if isinstance(value, actions.ArrivedRun):
        chunks = zip(value.refs, value.chunks, strict=True)
        texts = [", ".join(map(text_of, (*chunk, *value[3:]))) for chunk in chunks]
        return ", ".join([f"ArrivedRun({text})" for text in texts])
    if isinstance(value, actions.CompleteRead) and value.failure is not None:
        value = value._replace(chunks=[])
        return f"{type(value).__name__}({', '.join(map(text_of, value))})"
    if isinstance(value, actions.SendAnnouncement | chunk_ref.ChunkRef) and value[-1] == 1:
        name, value = type(value).__name__, value[:-1]
        return f"{name}({', '.join(map(_told, value))})"
    if isinstance(value, actions.ForwardAnnouncement):
        return f"{type(value).__name__}({', '.join(map(_told, value))})"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=DIGEST_BYTES).hexdigest()
    if isinstance(value, tuple | list):
        name = type(value).__name__ if hasattr(value, "_fields") else ""
        return f"{name}({', '.join(map(text_of, value))})"
    assert value is None or isinstance(value, str | int | float), value
    return repr(value)


def _told(value: Any) -> str:
    """Return a host's advertisement: chunks of segments by their names alone."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = tuple(
            [one[0] if isinstance(one, tuple) and one[1:] == (1,) else one for one in value]
        )
    return text_of(value)


def play(seed: int, say: Callable[[str], object]) -> tuple[Outcome, BaseException | None]:
    """Play a seed; pass the lines of its trace to ``say``."""
    counts = dict.fromkeys(("actions", "asked", "given", "read", "stored"), 0)
    do = transfer_hosts.Host.run_actions

    def watched(host: transfer_hosts.Host, todo: list[actions.Action]) -> None:
        counts["actions"] += len(todo)
        for one in todo:
            match one:
                case actions.RequestChunks():
                    counts["asked"] += len(list(one.iter_chunks()))
                case actions.SendAnswers():
                    given = [isinstance(one, actions.SendChunk) for one in one.split_runs()]
                    counts["given"] += sum(given)
                case actions.ReadSource(refs=refs):
                    counts["read"] += len(refs)
                case actions.Store(runs=runs):
                    counts["stored"] += sum([len(run.refs) for run in runs])
            say(f"{host.world.now:.9f} {host.name} {text_of(one)}\n")
        do(host, todo)

    transfer_hosts.Host.run_actions = watched  # type: ignore[method-assign]
    try:
        run, error = transfer_swarm.play(seed)
    finally:
        transfer_hosts.Host.run_actions = do  # type: ignore[method-assign]
    return Outcome(**counts, ended_s=round(run.world.now, 2)), error


def digest(seed: int) -> tuple[str, Outcome]:
    """Return the digest of a seed's trace, and the run's outcome."""
    made = hashlib.blake2b(digest_size=DIGEST_BYTES)
    outcome, error = play(seed, lambda line: made.update(line.encode()))
    if error is not None:
        raise RuntimeError(f"seed {seed} is broken") from error
    return made.hexdigest(), outcome


def read(path: pathlib.Path) -> Iterator[tuple[int, str, Outcome]]:
    """Read a record: seeds, digests and outcomes."""
    for line in path.read_text().splitlines():
        seed, made, *words = line.split()
        yield int(seed), made, Outcome.parse(words)


def record(path: pathlib.Path, seeds: range) -> None:
    """Record seeds."""
    with path.open("w") as file:
        for seed in seeds:
            made, outcome = digest(seed)
            print(seed, made, outcome, file=file, flush=True)


def compare(path: pathlib.Path) -> bool:
    """Play the recorded seeds again; print differences, return whether there are none."""
    others, before, after = list[int](), list[Outcome](), list[Outcome]()
    for seed, recorded, outcome in read(path):
        made, found = digest(seed)
        before.append(outcome)
        after.append(found)
        if made != recorded:
            others.append(seed)
    print(f"{len(before)} seeds, {len(others)} with other actions: {others[:SHOWN]}")
    for field in dataclasses.fields(Outcome) if others else ():
        was, now = (sum(getattr(one, field.name) for one in found) for found in (before, after))
        print(f"{field.name}: {was:g} -> {now:g} ({now / was - 1:+.2%})")
    return not others


def main() -> int:
    """Record, compare or show traces."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.action_traces")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write digests and outcomes of seeds")
    recording.add_argument("file", type=pathlib.Path)
    recording.add_argument("--seeds", default="0-999", help="FIRST-LAST (0-999)")
    commands.add_parser("compare", help="play them again").add_argument("file", type=pathlib.Path)
    commands.add_parser("show", help="print the trace of a seed").add_argument("seed", type=int)
    options = parser.parse_args()
    if options.command == "show":
        _, error = play(options.seed, sys.stdout.write)
        return error is not None
    if options.command == "compare":
        return not compare(options.file)
    first, _, last = options.seeds.partition("-")
    record(options.file, range(int(first), int(last) + 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
