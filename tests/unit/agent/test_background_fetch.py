# SPDX-License-Identifier: Apache-2.0
"""Background fetches request chunks in runs and report each chunk separately."""

import pytest

from acstor_agent.core import counters
from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine_io import background_fetch
from acstor_agent.engine_io import read_request
from acstor_common import errors
from tests.fakes import one_machine
from tests.fakes import quiet_driver

GONE = failure.Failure.MISSING


@pytest.fixture
def core():
    return quiet_driver.QuietDriver()


@pytest.fixture
def ahead(core):
    return background_fetch.BackgroundFetch(core, priority.Priority.HYDRATE)


def numbers_of(core):
    """Return the runs requested since the last call."""
    runs, core.runs = core.runs, []
    return [[*run.items] for run in runs]


def ask(ahead, numbers, image=one_machine.IMAGE):
    ahead.request_items((n, one_machine.chunk(n, image)) for n in numbers)


def fetched(number):
    return read_request.FetchedChunk(one_machine.data_of(number), counters.Origin.PEER)


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([3], [[3]]),
        (range(9), [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        ([0, 1, 3, 4, 2], [[0, 1], [3, 4], [2]]),
        ([2, 2], [[2], [2]]),
    ],
)
def test_adjacent_chunks_are_requested_as_runs(core, ahead, numbers, runs):
    ask(ahead, numbers)
    assert numbers_of(core) == runs and len(ahead) == len(numbers) == len(ahead.missing_items())


def test_chunks_of_two_images_are_separate_runs(core, ahead):
    refs = [one_machine.chunk(0), one_machine.chunk(1, one_machine.OTHER)]
    ahead.request_items(enumerate(refs))
    assert numbers_of(core) == [[0], [1]]


async def test_each_chunk_of_an_arrived_run_is_reported(core, ahead):
    ask(ahead, range(4))
    (run,) = core.runs
    run.complete(actions.CompleteRead(run, [*map(fetched, range(4))], None, ""))
    assert await ahead.wait_for_arrivals() == [(n, fetched(n)) for n in range(4)]
    assert not len(ahead) and not ahead.missing_items()


async def test_failed_chunks_of_a_run_are_requested_again_separately(core, ahead):
    ask(ahead, range(4))
    (run,) = core.runs
    numbers_of(core)
    some = [fetched(0), None, fetched(2), None]
    run.complete(actions.CompleteRead(run, some, GONE, "gone"))
    assert await ahead.wait_for_arrivals() == [(0, fetched(0)), (2, fetched(2))] and len(ahead) == 2
    one, three = core.runs
    assert numbers_of(core) == [[1], [3]]
    one.complete(actions.CompleteRead(one, [fetched(1)], None, ""))
    three.complete(actions.CompleteRead(three, [None], GONE, "gone"))
    (good, bad) = await ahead.wait_for_arrivals()
    assert good == (1, fetched(1)) and bad[0] == 3 and isinstance(bad[1], errors.AcstorError)
    assert not core.runs and not len(ahead)


async def test_leaving_the_context_cancels_the_remaining_runs(core, ahead):
    with ahead:
        ask(ahead, range(8))
        first, second = core.runs
        first.complete(actions.CompleteRead(first, [*map(fetched, range(4))], None, ""))
    assert core.cancelled == [second]
    second.complete(actions.CompleteRead(second, [], GONE, ""))
    assert numbers_of(core) == [[0, 1, 2, 3], [4, 5, 6, 7]]  # no run is requested again


async def test_run_that_cannot_be_requested_fails_completely(core, ahead):
    core.why = "a fault"
    ask(ahead, range(3))
    outcomes = await ahead.wait_for_arrivals()
    assert [thing for thing, _ in outcomes] == [0, 1, 2] and not len(ahead)
    assert all("a fault" in str(outcome) for _, outcome in outcomes)
