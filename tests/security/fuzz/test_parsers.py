# SPDX-License-Identifier: Apache-2.0
"""Every parser of untrusted bytes accepts or refuses its input, without any other effect.

Inputs are the corpus and a few hundred damaged ones; ``python -m tests.security.fuzz`` runs as long
as you like.

"""

import itertools

import pytest

from tests.security.fuzz import corpus
from tests.security.fuzz import target as fuzzed
from tests.security.fuzz import targets

ALL = [pytest.param(target, id=name) for name, target in targets.BY_NAME.items()]
DAMAGED = 400
CORPUS_BYTES = 300_000


@pytest.mark.parametrize("target", ALL)
def test_seeds_of_the_writers_are_accepted(target: fuzzed.Target) -> None:
    assert target.seeds()
    for data in target.seeds():
        assert len(data) <= target.max_bytes
        target.try_one(data)
    assert any(map(target.try_one, target.seeds()))


@pytest.mark.parametrize("target", ALL)
def test_corpus_inputs_are_accepted_or_refused(target: fuzzed.Target) -> None:
    for data in corpus.inputs(target):
        target.try_measured(data)


@pytest.mark.parametrize("target", ALL)
def test_damaged_inputs_are_accepted_or_refused(target: fuzzed.Target) -> None:
    taken = [
        target.try_one(data) for data in itertools.islice(corpus.damaged(target, seed=1), DAMAGED)
    ]
    assert any(taken), "all was refused: the damage does not get past the first check"


def test_parser_that_raises_another_exception_is_detected() -> None:
    def parse(data: bytes) -> int:
        return data[4]

    careless = fuzzed.Target("careless", parse, (ValueError,), lambda: [bytes(8)])
    with pytest.raises(IndexError):
        for data in itertools.islice(corpus.damaged(careless, seed=1), DAMAGED):
            careless.try_one(data)


def test_parser_that_takes_too_much_memory_is_detected() -> None:
    greedy = fuzzed.Target("greedy", lambda data: bytes(32 << 20), (), lambda: [b"1"])
    with pytest.raises(AssertionError, match="greedy: 3355"):
        greedy.try_measured(b"1")


def test_corpus_stays_small_and_every_file_has_its_target() -> None:
    files = [path for path in corpus.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES
    assert {path.parent.name for path in files} <= set(targets.BY_NAME)
    assert all(corpus.name_of(path.read_bytes()) == path.name for path in files)
