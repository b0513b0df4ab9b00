# SPDX-License-Identifier: Apache-2.0
import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import failover
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids
from tests.fakes import faulty_source

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
HAVING = {BLOB: b"0123456789"}
SILENT = pytest.mark.expect_log("first does not answer")


class Place(faulty_source.FaultySource):
    """A faulty source with a name."""

    def __init__(self, name, blobs=HAVING, **faults):
        super().__init__(faulty_source.MemorySource(blobs), **faults)
        self.name = name

    @property
    def where(self):
        return self.name


async def test_preferred_source_alone_is_asked():
    first, second = Place("first"), Place("second")
    assert await failover.FailoverSource([first, second]).read(BLOB, 2, 3) == b"234"
    assert (len(first.reads), len(second.reads)) == (1, 0)


@pytest.mark.allow_log("first does not answer")
@pytest.mark.parametrize(
    "kind", [errors.SourceUnreachable, errors.ChunkMissing, errors.ChunkInvalid]
)
async def test_every_unavailability_leads_to_the_next_source(kind):
    both = failover.FailoverSource([Place("first", share=1.0, error=kind), Place("second")])
    assert await both.read(BLOB, 2, 3) == b"234"


async def test_size_comes_from_the_first_that_has_the_blob():
    both = failover.FailoverSource([Place("first", {}), Place("second")])
    assert await both.size_bytes(BLOB) == 10


async def test_hash_comes_from_the_first_that_knows_it(monkeypatch):
    first, second = Place("first"), Place("second")
    both = failover.FailoverSource([first, second])
    assert both.os_hash(BLOB) == chunk_map.UNKNOWN_OS_HASH
    known = chunk_map.OsHash("sha256", bytes(32))
    monkeypatch.setattr(second, "os_hash", lambda _blob: known)
    assert both.os_hash(BLOB) == known


@SILENT
async def test_source_that_is_down_is_asked_last_for_a_while(autojump_clock):
    first, second = Place("first", fail=[1]), Place("second")
    both = failover.FailoverSource([first, second], down_s=5)
    await both.read(BLOB, 0, 1)
    await trio.sleep(4.9)
    await both.read(BLOB, 0, 1)
    assert (len(first.reads), len(second.reads)) == (1, 2)
    await trio.sleep(0.2)
    await both.read(BLOB, 0, 1)
    assert (len(first.reads), len(second.reads)) == (2, 2)


@SILENT
async def test_source_that_is_down_is_still_asked_for_what_nobody_else_has(autojump_clock):
    both = failover.FailoverSource([Place("first", fail=[1]), Place("second", {})])
    with pytest.raises(errors.SourceUnreachable):
        await both.read(BLOB, 0, 1)
    assert await both.read(BLOB, 0, 1) == b"0"


async def test_missing_chunk_does_not_make_a_source_down():
    first, second = Place("first", fail=[1], error=errors.ChunkMissing), Place("second")
    both = failover.FailoverSource([first, second])
    await both.read(BLOB, 0, 1)
    await both.read(BLOB, 0, 1)
    assert len(first.reads) == 2


@SILENT
async def test_outage_is_logged_once(autojump_clock, watched_log):
    both = failover.FailoverSource([Place("first", share=1.0)], down_s=1)
    for _ in range(3):
        with pytest.raises(errors.SourceUnreachable):
            await both.read(BLOB, 0, 1)
        await trio.sleep(2)
    assert len(watched_log.messages) == 1


def test_one_failure_is_raised_as_it_is():
    failure = errors.ChunkMissing("a", "b", "c")
    assert failover.most_useful([failure]) is failure


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ([errors.ChunkMissing, errors.SourceUnreachable], errors.SourceUnreachable),
        ([errors.ChunkInvalid, errors.SourceUnreachable], errors.SourceUnreachable),
        ([errors.ChunkMissing, errors.ChunkInvalid], errors.ChunkInvalid),
        ([errors.ChunkMissing, errors.ChunkMissing], errors.ChunkMissing),
    ],
)
def test_most_useful_error_leaves_most_hope_and_has_all_reasons(kinds, kind):
    failures = [cls("the chunk", f"place {n}", f"reason {n}") for n, cls in enumerate(kinds)]
    error = failover.most_useful(failures)
    assert type(error) is kind
    assert "the chunk" in str(error)
    assert "place 0: reason 0; place 1: reason 1" in str(error)


async def test_all_sources_are_closed_and_named():
    places = [Place("first"), Place("second")]
    both = failover.FailoverSource(places)
    assert both.where == "first, second"
    await both.aclose()
    assert all(place.is_closed for place in places)
