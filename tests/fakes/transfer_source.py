# SPDX-License-Identifier: Apache-2.0
"""The source of ``transfer_world``: reports the outcome of each chunk on arrival.

Chunks of one read succeed or fail independently.  It reports cancelled reads as well.
"""

import collections
import dataclasses
from typing import Any

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_common.model import ids

TIMEOUT_S = 30.0

Failure = failure.Failure


@dataclasses.dataclass
class Source:
    """The source's state and counters.

    :ivar way: ``""`` (healthy), ``slow``, ``fails``, ``hangs``
    :ivar gone: deleted images
    :ivar bad: chunks with wrong bytes
    :ivar reads: number of reads, by content
    :ivar at_once: number of reads of a chunk while another read of it is in flight
    """

    way: str = ""
    gone: set[ids.ImageId] = dataclasses.field(default_factory=set)
    bad: set[ids.Cid] = dataclasses.field(default_factory=set)
    delay_s: float = 0.002
    reads: collections.Counter[ids.Cid] = dataclasses.field(default_factory=collections.Counter)
    in_flight: collections.Counter[ids.Cid] = dataclasses.field(default_factory=collections.Counter)
    at_once: int = 0

    def read(self, world: Any, host: Any, read: actions.ReadSource) -> None:
        """Answer a host's read in the current state."""
        for chunk in read.refs:
            self.reads[chunk.cid] += 1
            self.in_flight[chunk.cid] += 1
            self.at_once += self.in_flight[chunk.cid] > 1
        left = set(range(len(read.refs)))
        for index in range(len(read.refs)):
            self._send(world, host, read, index, left)

    def _send(
        self, world: Any, host: Any, read: actions.ReadSource, index: int, left: set[int]
    ) -> None:
        chunk, life = read.refs[index], host.lives

        def arrive() -> None:
            self.in_flight[chunk.cid] -= 1
            left.discard(index)
            if host.lives == life:
                world.call_later(host, 0.0, self._tell, world, host, read, index, not left)

        delay_s = self.delay_s * (100 if self.way == "slow" else 1)
        world.from_source(host, chunk.length, TIMEOUT_S if self.way == "hangs" else delay_s, arrive)

    def _tell(
        self, world: Any, host: Any, read: actions.ReadSource, index: int, is_last: bool
    ) -> None:
        reported = [(index, self._what(world, read.refs[index]))]
        host.run_actions(host.core.source_read_progressed(world.now, read.number, reported))
        if is_last:
            host.run_actions(host.core.source_ended(world.now, read.number))

    def _what(self, world: Any, chunk: chunk_ref.ChunkRef) -> Any:
        if self.way in ("fails", "hangs"):
            return Failure.UNREACHABLE
        if chunk.image_id in self.gone:
            return Failure.MISSING
        return Failure.INVALID if chunk.cid in self.bad else world.content_of(chunk.cid)
