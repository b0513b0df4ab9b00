# SPDX-License-Identifier: Apache-2.0
"""Delivery of an image to a host before and after guests boot.

Nova copies the whole image first.  An agent reads the chunk map, loads the boot image, and a minute
after the boot fills its cache at ``acstor_agent.core.images.fill_rate``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_agent.core.images import fill_rate
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_simulator.model import boot_traces
from acstor_simulator.model import cloud

Priority = priority.Priority
PIECE_BYTES = 1 << 20  # size of a piece of a download
WINDOW = 4  # ... and the number of concurrent pieces, so that downloads share links evenly
UNPACK_S_PER_BYTE = 5e-9
"""Nova's time to copy, unpack and check a download, in seconds a byte.

From 15 to 20 s measured for 2.1 and 2.2 GB (benchmark P12), less 4 s of Nova's own.
"""
FRAMES_IN_FLIGHT = 8
PIECES_IN_FLIGHT = 8
QUIET_S = 60.0  # delay between a boot and the fill


class Delivery:
    """Delivers an image (the base: nothing); ``on_complete`` gets the elapsed seconds."""

    continues_after_boot = False  # after guests have booted

    def __init__(
        self,
        host: cloud.SimulatedHost,
        image: boot_traces.TracedImage,
        sizes: boot_traces.Sizes,
        on_complete: Callable[[float], None],
    ) -> None:
        self.host, self.image, self.sizes = host, image, sizes
        self._on_complete, self._began_s = on_complete, host.world.now
        self._waiting: list[Callable[[], None]] = []
        self._is_ready = False
        self.start_delivery()

    def start_delivery(self) -> None:
        """Start the delivery."""
        self.mark_ready()

    def call_when_ready(self, call: Callable[[], None]) -> None:
        """Call a function when guests can boot, at once if they can now."""
        if self._is_ready:
            call()
        else:
            self._waiting.append(call)

    def mark_ready(self) -> None:
        """Let guests boot."""
        self._is_ready = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def mark_complete(self) -> None:
        """Report that the image is complete."""
        self._on_complete(self.host.world.now - self._began_s)

    def read_chunk(self, what: chunk_ref.ChunkRef, done: Callable[[], None], guest: object) -> bool:
        """Return whether data is present; otherwise call ``done`` on arrival."""
        return self.host.read_chunk(what, done, guest)


class DirectReads(Delivery):
    """No cache: guests read the storage."""

    def read_chunk(self, what: chunk_ref.ChunkRef, done: Callable[[], None], guest: object) -> bool:
        """Read the data from the storage."""
        self.host.world.read_storage(self.host, what.length, done)
        return False


class PlainMirror(Delivery):
    """A mirror without a boot image."""

    def start_delivery(self) -> None:
        """Attach the image; its chunk map uses no bandwidth here."""
        self.host.attach_image(self.image)
        self.mark_ready()


class FullCopy(Delivery):
    """Nova's way: download and unpack the whole image."""

    def start_delivery(self) -> None:
        """Start the download."""
        count = -(-self.sizes.stored // PIECE_BYTES)
        self._left, self._in_flight = count, 0
        for _ in range(min(WINDOW, count)):
            self._more()

    def _more(self) -> None:
        self._left -= 1
        self._in_flight += 1
        self.host.world.read_storage(self.host, PIECE_BYTES, self._on_piece_read)

    def _on_piece_read(self) -> None:
        self._in_flight -= 1
        if self._left:
            self._more()
        elif not self._in_flight:
            agenda = self.host.world.agenda
            agenda.schedule_after(UNPACK_S_PER_BYTE * self.sizes.stored, self.mark_ready)

    def read_chunk(self, what: chunk_ref.ChunkRef, done: Callable[[], None], guest: object) -> bool:
        """Return True."""
        return True


class BootImageMirror(Delivery):
    """A mirror with a boot image, whose image is fully cached afterwards."""

    continues_after_boot = True

    def start_delivery(self) -> None:
        """Read the chunk map, then load the boot image."""
        self.host.attach_image(self.image._replace(reads=[]))
        self._pacer = fill_rate.Pacer()
        self._in_flight = 0
        world = self.host.world
        world.read_storage(self.host, max(1, self.sizes.map_bytes), self._attached)

    def _attached(self) -> None:
        self._frames = iter(self.image.chunks)
        self.mark_ready()
        for _ in range(FRAMES_IN_FLIGHT):
            self._load()

    def _load(self) -> None:
        for frame in self._frames:
            self._in_flight += 1
            if not self.host.fetch_object(frame, Priority.READAHEAD, self._loaded):
                return
            self._in_flight -= 1
        if not self._in_flight:
            self._in_flight = -1  # schedule once
            self.host.world.agenda.schedule_after(QUIET_S, self._fill)

    def _loaded(self) -> None:
        self._in_flight -= 1
        self._load()

    def read_chunk(self, what: chunk_ref.ChunkRef, done: Callable[[], None], guest: object) -> bool:
        """Fetch the frame that a guest needs."""
        return self.host.fetch_object(what, Priority.GUEST, done, guest)

    def _fill(self) -> None:
        _, received = self.host.world.tree.host_links(self.host.number)
        self._pacer.bytes_s = fill_rate.SHARE * received.free_bytes_s
        self._left, self._in_flight = list(self._in_order(self.image.rest))[::-1], 0
        self._fill_more()

    def _in_order(self, rest: Sequence[chunk_ref.ChunkRef]) -> Iterator[chunk_ref.ChunkRef]:
        is_home = self.host.core.context.ring.is_home
        own = {piece.cid for piece in rest if is_home(piece.oid)}
        first = self.host.number * len(rest) // max(1, len(self.host.world.hosts))
        yield from (piece for piece in rest if piece.cid in own)
        yield from (piece for piece in (*rest[first:], *rest[:first]) if piece.cid not in own)

    def _fill_more(self) -> None:
        agenda = self.host.world.agenda
        while self._left and self._in_flight < PIECES_IN_FLIGHT:
            wait_s = self._pacer.wait_s(self._left[-1].length, agenda.now)
            if wait_s:
                if not self._in_flight:
                    agenda.schedule_after(wait_s, self._fill_more)
                return
            self._in_flight += 1
            if self.host.fetch_object(self._left.pop(), Priority.HYDRATE, self._filled):
                self._in_flight -= 1
        if not self._left and not self._in_flight:
            self.mark_complete()

    def _filled(self) -> None:
        self._in_flight -= 1
        self._fill_more()
