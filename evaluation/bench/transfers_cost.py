# SPDX-License-Identifier: Apache-2.0
"""The cost of the exchange's core: CPU time per chunk, memory in flight.

``python -m evaluation.bench.transfers_cost`` prints one line for each.  Batches are of 16
chunks, from the request to ``CompleteRead``, without the I/O shell: no bytes move.  Memory is that
of ``tracemalloc``.
"""

import functools
import gc
import itertools
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

import blake3

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.gossip import location_index
from acstor_agent.engine.serve import referrals
from acstor_common.model import ids
from acstor_common.model import segments
from tests.fakes import one_machine

BATCH = 16
CHUNKS = 40_000
TURNS = 7
HOSTS = 64
HOLDERS = 1_000_000
GUEST = priority.Priority.GUEST


def chunk_refs(count: int, first: int = 0) -> list[chunk_ref.ChunkRef]:
    """Return ``count`` chunks of one image."""
    found = []
    for number in range(first, first + count):
        cid = ids.Cid(blake3.blake3(number.to_bytes(8, "big")).digest()[:-1] + b"\0")
        at = number * one_machine.CHUNK
        found.append(
            chunk_ref.ChunkRef(cid, ids.oid_of(cid), one_machine.IMAGE, at, one_machine.CHUNK)
        )
    return found


def answer(machine: one_machine.Machine, todo: list[actions.Action], now: float) -> int:
    """Carry out actions at once; return the number of completed batches."""
    completed = 0
    for action in todo:
        if isinstance(action, actions.RequestChunks):
            given = [(number, b"") for number, _, _ in action.iter_chunks()]
            completed += answer(machine, machine.core.chunks_arrived(now, action.host, given), now)
        elif isinstance(action, actions.ReadSource):
            reported = [(index, b"") for index in range(len(action.refs))]
            completed += answer(
                machine, machine.core.source_read_progressed(now, action.number, reported), now
            )
        elif isinstance(action, actions.Store):
            machine.core.chunks_stored(now, action.runs)
        elif isinstance(action, actions.CompleteRead):
            assert action.failure is None
            completed += 1
    return completed


def us_a_chunk(one_home: bool) -> float:
    """Return the microseconds per chunk that a guest requests and a peer sends.

    :param one_home: all chunks of a batch have one home, as with few hosts
    """
    machine = one_machine.Machine(hosts=2 if one_home else HOSTS)
    chunks = chunk_refs(CHUNKS)
    if one_home:
        chunks = [chunk for chunk in chunks if machine.core.context.ring.home(chunk.oid) != "h1"]
    now, done = 0.0, 0
    began_s = time.process_time()
    for at in range(0, len(chunks) - BATCH, BATCH):
        now += 0.001
        done += answer(
            machine, machine.core.request_chunks(now, chunks[at : at + BATCH], GUEST, at), now
        )
        if machine.core.next_s is not None and machine.core.next_s <= now:
            answer(machine, machine.core.run_due_timers(now), now)
    took_s = time.process_time() - began_s
    assert done * BATCH > len(chunks) - 2 * BATCH
    return took_s / (done * BATCH) * 1e6


def us_an_answer() -> float:
    """Return the microseconds per request of a peer for a cached chunk."""
    machine = one_machine.Machine(hosts=HOSTS)
    chunks = [one_machine.chunk(number) for number in range(CHUNKS // 4)]
    machine.cache.update(chunk.cid for chunk in chunks)
    requests = [machine.request(number, "h2") for number in range(len(chunks))]
    began_s = time.process_time()
    for at in range(0, len(requests), BATCH):
        now = at / 1000
        todo = machine.core.peer_requested(now, "a", ids.HostId("h2"), requests[at : at + BATCH])
        assert isinstance(todo[0], actions.SendAnswers) and len(todo[0].answers) == BATCH
        machine.core.answers_delivered(now, ["a"])
    return (time.process_time() - began_s) / len(requests) * 1e6


def bytes_of(make: Callable[[], object]) -> int:
    """Return the memory of an object."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def in_flight() -> tuple[one_machine.Machine, int]:
    """Return a machine with many pending chunks, and their number."""
    machine = one_machine.Machine(hosts=HOSTS)
    for at in range(0, CHUNKS, BATCH):
        machine.core.request_chunks(0.0, _CHUNKS[at : at + BATCH], GUEST, at)
    return machine, len(machine.core)


_CHUNKS: list[chunk_ref.ChunkRef] = []


def reported(count: int, of_one: int, length: int) -> location_index.LocationIndex:
    """Return an index of ``count`` holders, ``of_one`` per chunk, in whole segments."""
    known = location_index.LocationIndex(host_interning.HostInterning(), limit=4 * count)
    rng = random.Random(1)
    for _ in range(count // of_one // length):
        segment = (ids.Oid(rng.getrandbits(64)), (1 << length) - 1)
        for host in rng.sample(range(100), of_one):
            known.add_holder(ids.HostId(f"h{host}"), [segment])
    return known


def given(count: int, of_one: int, length: int) -> referrals.Referrals:
    """Return ``count`` served hosts, ``of_one`` per chunk, in whole segments."""
    known = referrals.Referrals(host_interning.HostInterning(), limit_bytes=1 << 40)
    rng, [ref] = random.Random(1), chunk_refs(1)
    for _ in range(count // of_one // length):
        name = ids.Oid(rng.getrandbits(64))
        refs = [ref._replace(segment=name, bit=1 << at) for at in range(length)]
        for host in range(of_one):
            known.record_served(refs, ids.HostId(f"h{host}"), priority.Priority.PEER)
    return known


def main() -> int:
    """Measure and print."""
    for what, cost in {
        f"requested from {HOSTS} homes, arrived, completed": lambda: us_a_chunk(False),
        "requested from one home, arrived, completed": lambda: us_a_chunk(True),
        "requested by a peer, answered from the cache": us_an_answer,
    }.items():
        costs = [cost() for _ in range(TURNS)]
        print(f"{what}: {statistics.median(costs):.1f} us a chunk (best {min(costs):.1f})")
    _CHUNKS.extend(chunk_refs(CHUNKS))
    size = bytes_of(in_flight)
    print(f"a chunk in progress, requested in batches of {BATCH}: {size / CHUNKS:.0f} bytes")
    for make, length in itertools.product((reported, given), (1, segments.MAX_CHUNKS)):
        for of_one in (1, 2, 4, 16, 1000):
            if make is reported and of_one > location_index.HOLDERS:
                continue
            size = bytes_of(functools.partial(make, HOLDERS, of_one, length))
            what = f"{make.__name__}, {of_one} of a chunk, segments of {length}"
            print(f"{HOLDERS} known holders, {what}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
