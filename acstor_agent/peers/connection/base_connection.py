# SPDX-License-Identifier: Apache-2.0
"""Base of both ends of a connection between agents: reads, writes, and ends.

When a connection ends, its pending requests are reported as lost at once. Messages go to the socket
while it takes them, else to the outbox, which one task empties. Answers to messages that arrived
together are sent together, chunks in few frames.
"""

import abc
import collections
import contextlib
import functools
import itertools
import logging
import math
import time
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent.core import link_compression
from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import loop_share
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_compression
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire

LOG = logging.getLogger(__name__)

ROOM_CHECK_S = 0.1
PARTS_PER_TURN = peer_wire.MAX_BATCH  # messages, or entries in them, before other tasks get a turn
Part = peer_wire.Message | peer_wire.ChunkRequest


class PeerConnection(abc.ABC):
    """One end of a connection; ``receiver`` has received Hello, ``peer`` names the other end."""

    def __init__(
        self,
        host: ids.HostId,
        link: peer_link.PeerLink,
        receiver: peer_receiver.Receiver,
        klass: peer_wire.ConnectionClass,
        gate: demand_gate.DemandGate,
        share: loop_share.LoopShare,
    ) -> None:
        self.host = host
        self.link = link
        self.peer = receiver.peer
        self.klass = klass
        self.is_closed = self.is_closed_by_peer = False  # is_left: by the other side
        self.last_progress = trio.current_time()
        self._progress = (0, 0)  # missing bytes of the frame, bytes in the outbox
        self._is_full = False  # received messages wait for room
        self.outbox_bytes = 0
        self._sent_bytes = 0
        self._due = (math.inf, 0)  # time by which so many bytes must be sent
        self.failure: errors.AcstorError | None = None
        self._receiver = receiver
        self._gate = gate
        self._share = share
        self._sharer = host, klass  # bulk leaves room for demand
        self._is_useful = False  # it announces, gets chunks, or is asked
        link.turn, link.reads_small_steps = (
            functools.partial(share.reserve_turn, self._sharer),
            True,
        )
        self._scope = trio.CancelScope()
        self._outbox: collections.deque[peer_wire.Buffer] = collections.deque()
        self._run: list[peer_wire.Chunk] = []  # chunks to be put in frames when sent
        self._compression = link_compression.LinkCompression()
        self._is_corked = False  # posted messages wait for more
        self._is_writing = False  # the writing task owns the outbox
        self._has_outbox = trio.Event()
        self._has_changed = trio.Event()  # less work or data is pending

    @property
    @abc.abstractmethod
    def is_idle(self) -> bool:
        """Whether no request is pending."""

    @abc.abstractmethod
    def _handle(self, part: Part) -> None:
        """Act on a message, or on a request in one, without waiting."""

    @abc.abstractmethod
    def _has_room(self, part: Part) -> bool:
        """Return whether to handle it now; else it waits, with all that follows."""

    def _outbox_changed(self) -> None:  # noqa: B027  one end overrides it
        """React to a change of the outbox."""

    def _settle(self) -> None:  # noqa: B027  one end overrides it
        """Finish the handling of messages that arrived together."""

    def _drained(self) -> None:  # noqa: B027  one end overrides it
        """React to the socket having taken the whole outbox."""

    def _gather(self) -> None:  # noqa: B027  one end overrides it
        """Post queued messages; called by the writing task before it sends."""

    def send_messages(self, *messages: peer_wire.Message) -> None:
        """Send messages, or put them in the outbox if the socket is full; never waits."""
        if self.is_closed or not messages:
            return
        for message in messages:
            if isinstance(message, peer_wire.Chunk):
                self._run.append(message)
                self.outbox_bytes += len(message.data)
            else:
                buffers = peer_wire.encode(message, self.link.sending)
                self._outbox.extend(buffers)
                self.outbox_bytes += sum(map(len, buffers))
        if not self._is_corked:
            self.flush()

    def flush(self) -> None:
        """Send posted messages as far as the socket takes them; queue the rest."""
        if self.is_closed:
            return
        if self._run:
            run, self._run = self._run, []
            answers = self._compressed(run)
            buffers = peer_wire.encode_chunks(answers, self.link.sending, self.link.run_bytes)
            self._outbox.extend(buffers)
            self.outbox_bytes += sum(map(len, buffers)) - sum([len(answer.data) for answer in run])
        if not self._outbox:
            return
        if not self._is_writing:
            if self.klass is peer_wire.ConnectionClass.DEMAND or self._gate.is_open:
                self._send_nowait()
            if self._outbox:
                self._is_writing = True
                if self.klass is peer_wire.ConnectionClass.DEMAND:
                    self._gate.outbox_filled()
                self._has_outbox.set()
        self._outbox_changed()

    def _compressed(self, answers: list[peer_wire.Chunk]) -> list[peer_wire.Chunk]:
        if not self._compression.is_worthwhile(self.link.bytes_s):
            return answers
        return [chunk for answer in answers for chunk in self._chunks_of(answer)]

    def _chunks_of(self, answer: peer_wire.Chunk) -> Sequence[peer_wire.Chunk]:
        """Return an answer unchanged if its first chunk does not shrink, else compressed."""
        if not self._compression.begin_response():
            return (answer,)
        made: list[peer_wire.Chunk] = []
        for chunk in answer.iter_chunks():
            began_s, length = time.perf_counter(), len(chunk.data)
            data = peer_compression.compress(chunk.data)
            took_s = time.perf_counter() - began_s
            if self._compression.record_trial(length, len(data), took_s):
                chunk = peer_wire.Chunk(chunk.request_id, data, raw_bytes=length)
            elif not made:
                return (answer,)
            made.append(chunk)
        return made

    def _send_nowait(self) -> None:
        """Send without waiting; the reading and writing tasks notice a lost connection."""
        while self._outbox:
            try:
                sent = self.link.send_nowait(self._next_buffers())
            except OSError:
                return
            if not sent or not self._note_sent(sent):
                return

    def _next_buffers(self) -> list[peer_wire.Buffer]:
        return list(itertools.islice(self._outbox, peer_link.BUFFERS_PER_CALL))

    def _note_sent(self, sent: int) -> bool:
        self.outbox_bytes -= sent
        self._sent_bytes += sent
        outbox = self._outbox
        while sent:
            size = len(outbox[0])
            if sent < size:
                outbox[0] = memoryview(outbox[0])[sent:]
                return False
            outbox.popleft()
            sent -= size
        return True

    async def run(self, early: list[peer_wire.Message]) -> None:
        """Read and write until the connection ends; ``early`` arrived with Hello."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, early)
                    await self._write()
        finally:
            self.close()
            self.link.close()
            if self._is_writing and self.klass is peer_wire.ConnectionClass.DEMAND:
                self._gate.outbox_emptied()

    @contextlib.contextmanager
    def _closing_at_end(self) -> Iterator[None]:
        try:
            yield
        except peer_link.LINK_ERRORS as error:
            self.fail_connection(
                errors.SourceUnreachable("the answer", self.peer, peer_link.reason(error))
            )
        except errors.RemoteProtocolError as error:  # the caller of run() logs it
            self.fail_connection(error)
        finally:
            self.close()

    def fail_connection(self, failure: errors.AcstorError) -> None:
        """End the connection with a failure; the first one counts."""
        self.failure = self.failure or failure
        self.close()

    def close(self) -> None:
        """End the connection; nothing is sent on it any more."""
        self.is_closed = True
        self._scope.cancel()

    async def _read(self, messages: list[peer_wire.Message] | None) -> None:
        handled = 0
        with self._closing_at_end():
            while messages is not None:
                self.last_progress = trio.current_time()
                parts: collections.deque[Part] = collections.deque(self._parts(messages))
                self._is_corked = True
                try:
                    while parts:
                        part = parts.popleft()
                        if handled >= PARTS_PER_TURN:
                            handled = 0
                            self._uncork()
                            await self._share.next_turn(self._sharer)
                        if not self._has_room(part):
                            if isinstance(part, peer_wire.Get):  # there may be room for a part
                                parts.extendleft(reversed(part.requests))
                                continue
                            self._uncork()
                            await self._wait_for_room(part)
                        handled += count_entries(part)
                        self._is_corked = True
                        self._handle(part)
                finally:
                    self._uncork()
                if self.link.reads_small_steps:  # else tokens are available
                    await self._wait_for_tokens()
                messages = await self.link.receive(self._receiver)
            self.is_closed_by_peer = True

    def _parts(self, messages: list[peer_wire.Message]) -> Sequence[Part]:
        return messages

    def _uncork(self) -> None:
        if self._is_corked:
            self._settle()
            self._is_corked = False
            self.flush()

    async def _write(self) -> None:
        with self._closing_at_end():
            while True:
                self._gather()
                if not self._outbox:
                    self._has_outbox = trio.Event()
                    await self._has_outbox.wait()
                if self.klass is peer_wire.ConnectionClass.BULK:
                    await self._gate.wait()
                self._note_sent(await self.link.send_some(self._next_buffers()))
                self.last_progress = trio.current_time()
                if self.klass is peer_wire.ConnectionClass.DEMAND:
                    self._gate.outbox_sent()
                if not self._outbox:
                    self._is_writing = False
                    if self.klass is peer_wire.ConnectionClass.DEMAND:
                        self._gate.outbox_emptied()
                self._outbox_changed()
                self._has_changed.set()
                if not self._outbox:
                    self._drained()

    @property
    def is_drained(self) -> bool:
        """Whether the socket has taken all posted bytes, or the connection is closed."""
        return self.is_closed or not (self._outbox or self._run)

    @property
    def is_delivered(self) -> bool:
        """Whether nearly all posted bytes have arrived, or the connection is closed."""
        if self.is_closed or not self.is_drained:
            return self.is_closed
        return self.link.is_delivered

    @property
    def is_far(self) -> bool:
        """Whether the link is open and far."""
        return not self.is_closed and self.link.is_far

    def _account(self, small: float, *, is_useful: bool) -> None:
        """Charge the other side for small messages; record whether it sends useful ones."""
        self._is_useful |= is_useful
        if small:
            self._share.charge_tokens(self._sharer, small)
        if small or self.link.reads_small_steps:
            self.link.reads_small_steps = not (
                self._is_useful and self._share.sends_few(self._sharer)
            )

    async def _wait_for_tokens(self) -> None:
        if wait_s := self._share.wait_s(self._sharer):
            self._is_full = True
            await trio.sleep(wait_s)
            self._is_full = False

    async def _wait_for_room(self, part: Part) -> None:
        self._is_full = True
        while not self._has_room(part):
            self._has_changed = trio.Event()
            with trio.move_on_after(ROOM_CHECK_S):  # others may have made room
                await self._has_changed.wait()
        self._is_full = False

    def is_stuck(self, now: float, silence_s: float) -> bool:
        """Return whether the other side owes something and makes no progress.

        Call it repeatedly. It is False while this side is full or waits for a rate limit.
        """
        if self.link.is_rate_limited:
            self.last_progress = now
        is_frame_awaited = not self._receiver.is_between_frames and not self._is_full
        progress = (self._receiver.wanted_bytes, self.outbox_bytes)
        if progress != self._progress:
            self._progress, self.last_progress = progress, now
        is_owed = is_frame_awaited or bool(self._outbox) or self._is_answer_awaited
        return is_owed and now - self.last_progress > silence_s

    def is_too_slow(self, now: float, time_s: float) -> bool:
        """Return whether the outbox was not sent in time; call it repeatedly."""
        due_s, due_bytes = self._due
        if not self._outbox or self._sent_bytes >= due_bytes:
            self._due = (now + time_s, self._sent_bytes + self.outbox_bytes)
            return False
        return now > due_s

    @property
    def _is_answer_awaited(self) -> bool:
        """Whether the other side has requests of ours, and must show that it lives."""
        return False


def count_entries(part: Part) -> int:
    """Return the number of chunks, segments, leases or shares in a message; at least 1."""
    match part:
        case peer_wire.Get(requests):
            return sum([request.chunk_count for request in requests])
        case peer_wire.Advertise(entries) | peer_wire.Gone(entries):
            return len(entries)
        case peer_wire.EvictionHint(entries) | peer_wire.ReplicaRequest(entries):
            return len(entries)
        case peer_wire.ReplicaReport(_, entries):
            return len(entries)
    return 1


def describe(request: peer_wire.ChunkRequest) -> str:
    """Return a request in words."""
    return f"{request.length} bytes of image {request.image_id} at {request.offset}"
