# SPDX-License-Identifier: Apache-2.0
"""Actions: what the caller of the engine has to do, in batches.

``Out`` collects the actions of one event.  All requests for one host leave in one action, and all
answers on one connection in one.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure as failure_
from acstor_agent.engine import priority as priority_
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire import peer_request


class Ask(NamedTuple):
    """Ask a peer; each attempt says what for, by ``numbers``, ``refs``, ``mode``, ``priority``.

    Whoever sends it sets ``connection`` of each attempt to the one that it goes out on: the event
    ``lost`` names it.
    """

    host: ids.HostId
    attempts: list[transfer.Attempt]

    def iter_chunks(self) -> Iterator[tuple[int, chunk_ref.ChunkRef, transfer.Attempt]]:
        """Yield each chunk: its number, the chunk, and the attempt that it belongs to."""
        for attempt in self.attempts:
            for number, ref in zip(attempt.numbers, attempt.refs, strict=True):
                yield number, ref, attempt


class Cancel(NamedTuple):
    """Tell a peer that nobody waits for these answers any more; they may come all the same."""

    host: ids.HostId
    numbers: list[int]


class Hurry(NamedTuple):
    """Tell a peer that guests wait for these answers now, as if they had been asked for as PEER."""

    host: ids.HostId
    numbers: list[int]


class ReadSource(NamedTuple):
    """Read a range of an image; ``source_gave`` tells of each chunk by its index in ``wants``.

    :param priority: the most urgent reason
    :param who: for whom: for this host's own wishes who has the image open, if that is known, else
        the image; a host for what is read through for it
    :param wants: chunks that follow each other
    """

    number: int
    image_id: ids.ImageId
    priority: priority_.Priority
    who: Hashable
    wants: list[chunk_ref.ChunkRef]


class CancelRead(NamedTuple):
    """Nobody wants a read any more: what it has not told yet is not listened to."""

    number: int


class Arrived(NamedTuple):
    """Chunks that came together: those of a transfer.

    :param keys: of the chunks, in the order of ``refs``
    :param chunks: the bytes of each
    :param giver: the host that gave them; None: the source
    :param mode: in which that host was asked; None: the source
    :param is_kept: they are kept for others, so they stay longer
    :param is_own: this host wanted them itself; else they were read through for peers alone
    :param priority: the most urgent reason why anybody waited for them
    :param is_stored: they go into the cache; else they are for who waits for them now alone, unless
        they are promised to be here
    """

    refs: transfer.Refs
    keys: tuple[chunk_ref.Key, ...]
    chunks: Sequence[transfer.Bytes]
    giver: ids.HostId | None
    mode: peer_request.Mode | None
    is_kept: bool
    is_own: bool
    priority: priority_.Priority
    is_stored: bool = True

    def select(self, indices: Sequence[int]) -> "Arrived":
        """Return the same of some of the chunks, by index."""
        refs, keys = transfer.pick(self.refs, indices), transfer.pick(self.keys, indices)
        return self._replace(refs=refs, keys=keys, chunks=transfer.pick(self.chunks, indices))


class Store(NamedTuple):
    """Put chunks in the cache; tell of each by ``stored`` or ``not_stored``.

    Until then the machine keeps them, and gives them to whoever wants them.
    """

    runs: list[Arrived]


class Complete(NamedTuple):
    """Answer who wants a batch: its bytes in its order, or why not.

    :param chunks: of a batch that failed those that came; None: it did not
    """

    token: Hashable
    chunks: list[transfer.Bytes]
    failure: failure_.Failure | None
    why: str


class Told(NamedTuple):
    """Say what somebody goes on waiting for.

    :param absent: what nobody has got, of those; None: it may be had again at any moment
    :param lost_in_s: it counts as lost if that is so for this long
    """

    token: Hashable
    why: str
    absent: chunk_ref.ChunkRef | None = None
    lost_in_s: float = 0.0


class Given(NamedTuple):
    """A request is answered with bytes; ``data`` None: as the cache has them.

    If the cache cannot read them, ``could_not_read`` says so.

    :param priority: why it is asked for, as far as that is this host's business
    """

    number: int
    want: chunk_ref.ChunkRef
    data: transfer.Bytes
    priority: priority_.Priority


class GivenRun(NamedTuple):
    """A run is answered with bytes, as the cache has them: a ``Given`` for each chunk.

    :param number: of the first chunk; each chunk has the number behind that of the one before
    """

    number: int
    wants: Sequence[chunk_ref.ChunkRef]
    priority: priority_.Priority

    def iter_chunks(self) -> Iterator[Given]:
        """Yield its chunks."""
        for number, want in enumerate(self.wants, self.number):
            yield Given(number, want, None, self.priority)


class Refused(NamedTuple):
    """A request is answered with a reason.

    :param why: for the log, not for the peer; empty: that is nothing to be told
    :param request: what was asked for, where there is a ``why``
    """

    number: int
    failure: failure_.Failure
    why: str = ""
    request: chunk_ref.Request | None = None


class Referred(NamedTuple):
    """A request is answered with hosts to ask instead, the best first."""

    number: int
    hosts: tuple[ids.HostId, ...]


Answer = Given | GivenRun | Refused | Referred


class Reply(NamedTuple):
    """Answer requests of one connection."""

    connection: Hashable
    answers: list[Answer]

    def split_runs(self) -> list[Given | Refused | Referred]:
        """Return the answers with each chunk of a run by itself."""
        found: list[Given | Refused | Referred] = []
        for answer in self.answers:
            found += answer.iter_chunks() if isinstance(answer, GivenRun) else (answer,)
        return found


class LookUp(NamedTuple):
    """Learn what images name that are not attached here; ``looked_up`` tells of each request."""

    connection: Hashable
    host: ids.HostId
    requests: list[chunk_ref.Request]


class Watch(NamedTuple):
    """Tell by ``delivered`` when what was sent on these connections has arrived."""

    connections: list[Hashable]


class Tell(NamedTuple):
    """Tell a host what is here, what is gone, and what it may let go.

    :param segment_chunks: the length of the segments
    """

    host: ids.HostId
    here: tuple[segments.Chunks, ...]
    gone: tuple[segments.Chunks, ...]
    evictable: tuple[segments.Chunks, ...]
    segment_chunks: int = 1


class Heard(NamedTuple):
    """A host has chunks, and hints that others may go: for images and for the cache."""

    host: ids.HostId
    here: Sequence[segments.Chunks]
    evictable: Sequence[segments.Chunks]


class LeftAlone(NamedTuple):
    """A peer is in backoff from now on: for the log."""

    host: ids.HostId
    for_s: float
    why: str


class Alive(NamedTuple):
    """Tell who waits on these connections that what was asked is being worked on."""

    connections: list[Hashable]


class Drop(NamedTuple):
    """End a connection: the peer broke the rules.  ``peer_left`` is to follow."""

    connection: Hashable
    why: str


Action = (
    Ask
    | Cancel
    | Hurry
    | ReadSource
    | CancelRead
    | Store
    | Complete
    | Told
    | Reply
    | LookUp
    | Watch
    | Tell
    | Heard
    | LeftAlone
    | Alive
    | Drop
)


class Out:
    """The actions of one event."""

    __slots__ = ("_asks", "_cancels", "_hurries", "_replies", "_stores", "_watch", "others")

    def __init__(self) -> None:
        self._stores: list[Arrived] = []
        self._replies: dict[Hashable, list[Answer]] = {}
        self._asks: dict[ids.HostId, list[transfer.Attempt]] = {}
        self._cancels: dict[ids.HostId, list[int]] = {}
        self._hurries: dict[ids.HostId, list[int]] = {}
        self._watch: list[Hashable] = []
        self.others: list[Action] = []

    def store(self, arrived: Arrived) -> None:
        """Have chunks put in the cache."""
        self._stores.append(arrived)

    def add_reply(self, connection: Hashable, answer: Answer) -> None:
        """Have a request answered."""
        answers = self._replies.get(connection)
        if answers is None:
            answers = self._replies[connection] = []
        answers.append(answer)

    def add_ask(self, host: ids.HostId, attempt: transfer.Attempt) -> None:
        """Have a peer asked."""
        attempts = self._asks.get(host)
        if attempts is None:
            attempts = self._asks[host] = []
        attempts.append(attempt)

    def add_division(self, attempt: transfer.Attempt, part: transfer.Attempt) -> None:
        """Have a peer asked for a part of an attempt, too, if it is to be asked for the other."""
        assert attempt.host is not None
        attempts = self._asks.get(attempt.host, [])
        if attempt in attempts:
            attempts.insert(attempts.index(attempt) + 1, part)

    def add_watch(self, connection: Hashable) -> None:
        """Have it told when what was sent on a connection has arrived."""
        self._watch.append(connection)

    def add_hurry(self, host: ids.HostId, numbers: Iterable[int]) -> None:
        """Have a peer told that a guest waits now."""
        self._hurries.setdefault(host, []).extend(numbers)

    def add_cancel(self, host: ids.HostId, numbers: Iterable[int]) -> None:
        """Have a peer told that nobody waits any more."""
        self._cancels.setdefault(host, []).extend(numbers)

    def take_all(self) -> list[Action]:
        """Return all of it: what is to be stored first, then who waits, then who is asked."""
        found: list[Action] = []
        cancels = list(filter(None, map(self._sent, self._cancels))) if self._cancels else ()
        if self._stores:
            found.append(Store(self._stores))
            self._stores = []
        if self.others:
            found += self.others
            self.others = []
        if self._replies:
            found += [Reply(link, answers) for link, answers in self._replies.items()]
            self._replies = {}
        if self._watch:
            found.append(Watch(self._watch))
            self._watch = []
        if self._cancels:
            found += cancels
            self._cancels = {}
        if self._hurries:
            found += [Hurry(host, numbers) for host, numbers in self._hurries.items()]
            self._hurries = {}
        if self._asks:
            for host, asked in self._asks.items():
                attempts = [attempt for attempt in asked if not attempt.is_over]  # it came since
                found += [Ask(host, some) for some in _messages(attempts)]
            self._asks = {}
        return found

    def _sent(self, host: ids.HostId) -> Cancel | None:
        """Return which of a host's attempts it is to be told of: not those that came to nothing."""
        over = [attempt for attempt in self._asks.get(host, ()) if attempt.is_over]
        unsent = {number for attempt in over for number in attempt.numbers}
        numbers = [number for number in self._cancels[host] if number not in unsent]
        return Cancel(host, numbers) if numbers else None


def _messages(attempts: Sequence[transfer.Attempt]) -> Iterator[list[transfer.Attempt]]:
    """Yield attempts that go into one message each."""
    some: list[transfer.Attempt] = []
    chunks = 0
    for attempt in attempts:
        chunks += len(attempt.numbers)
        if some and chunks > peer_request.MAX_BATCH:
            yield some
            some, chunks = [], len(attempt.numbers)
        some.append(attempt)
    if some:
        yield some
