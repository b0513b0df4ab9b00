# SPDX-License-Identifier: Apache-2.0
"""Location index: which hosts announced which chunks (Nicolae 2016, 3.1.2)."""

from collections.abc import Iterable

from acstor_agent.engine import chunk_ref
from acstor_agent.engine.data_structures import generational_cache
from acstor_agent.engine.data_structures import host_interning
from acstor_common.model import ids
from acstor_common.model import segments

SEGMENTS = 131_072  # of 78 bytes (evaluation/bench/transfers_cost.py), 4 more per further holder
HOLDERS = 4  # holders of a segment that are kept: those that announced last
SHARED_ENTRIES = 1024  # entries with a single holder that are shared as one object

_KEY = host_interning.KEY_BYTES
_ENTRY = _KEY + 2  # the key of a holder and its bitmap of chunks


class LocationIndex:
    """The holders of chunks, for the most recently used segments.

    >>> holders = LocationIndex(host_interning.HostInterning())
    >>> cid, h1, h2 = ids.cid_of(b"chunk"), ids.HostId("h1"), ids.HostId("h2")
    >>> first = chunk_ref.ChunkRef(cid, ids.Oid(7), ids.ImageId("i"), 0, 5, segment=ids.Oid(3))
    >>> second = first._replace(bit=2)
    >>> holders.add_holder(h1, [(ids.Oid(3), 3)]); holders.add_holder(h2, [(ids.Oid(3), 2)])
    >>> [*map(holders.holders_of_chunk, (first, second))]
    [['h1'], ['h1', 'h2']]
    >>> holders.record_denial(h1, second), holders.holders_of_chunk(second)
    (True, ['h2'])
    """

    def __init__(self, keys: host_interning.HostInterning, limit: int = SEGMENTS) -> None:
        self._keys = keys
        self._alike: dict[bytes, bytes] = {}  # equal entries as one object
        self._holders: generational_cache.GenerationalCache[ids.Oid, bytes] = (
            generational_cache.GenerationalCache(limit)
        )

    def __len__(self) -> int:
        return len(self._holders)

    def add_holder(self, host: ids.HostId, chunks: Iterable[segments.Chunks]) -> None:
        """Record that a host announced chunks."""
        key = self._keys.key_of(host)
        if len(self._alike) > SHARED_ENTRIES:
            self._alike.clear()
        made: dict[int, bytes] = {}  # entries of one message are mostly equal
        for segment, bits in chunks:
            if (entry := made.get(bits)) is None:
                entry = key + bits.to_bytes(2, "big")
                made[bits] = entry = self._alike.setdefault(entry, entry)
            known = self._holders.get(segment)
            if known is None:
                self._holders.put(segment, entry)
            elif known[-_ENTRY:] != entry:
                self._holders.put(segment, self._joined(known, key, bits))

    def _joined(self, known: bytes, key: bytes, bits: int) -> bytes:
        others = []
        for entry in _split(known):
            if entry[:_KEY] == key:
                bits |= _bits(entry)
            elif entry[:_KEY] in self._keys:
                others.append(entry)
        return b"".join((*others[1 - HOLDERS :], key, bits.to_bytes(2, "big")))

    def remove_holder(self, host: ids.HostId, chunks: Iterable[segments.Chunks]) -> None:
        """Record that a host withdrew chunks."""
        for segment, bits in chunks:
            self._take(host, segment, bits)

    def record_denial(self, host: ids.HostId, ref: chunk_ref.ChunkRef) -> bool:
        """Record that a host denied a chunk; return whether it had announced it."""
        return self._take(host, ref.ring_position, ref.bit)

    def _take(self, host: ids.HostId, segment: ids.Oid, bits: int) -> bool:
        key, known = self._keys.get(host), self._holders.get(segment)
        if key is None or known is None:
            return False
        for at in range(0, len(known), _ENTRY):
            entry = known[at : at + _ENTRY]
            if entry[:_KEY] == key and (held := _bits(entry)) & bits:
                left = held & ~bits
                rest = key + left.to_bytes(2, "big") if left else b""
                if after := known[:at] + rest + known[at + _ENTRY :]:
                    self._holders.put(segment, after)
                else:
                    self._holders.pop(segment)
                return True
        return False

    def holders_of_chunk(self, ref: chunk_ref.ChunkRef) -> list[ids.HostId]:
        """Return the hosts that announced a chunk, in the order of announcement."""
        keys = self.all_keys((ref,))[0]
        return self.hosts_of_keys(keys) if keys else []

    def holders_of_segment(self, segment: ids.Oid) -> list[tuple[ids.HostId, int]]:
        """Return the hosts that announced chunks of a segment, each with its bitmap."""
        found = []
        for entry in _split(self._holders.get(segment) or b""):
            if (host := self._keys.host_of(entry[:_KEY])) is not None:
                found.append((host, _bits(entry)))
        return found

    def all_keys(self, refs: Iterable[chunk_ref.ChunkRef]) -> list[bytes]:
        """Return the joined host keys of the holders of each chunk, to compare or decode."""
        found: list[bytes] = []
        segment: ids.Oid | None = None
        entries: list[bytes] = []
        for ref in refs:
            if ref.segment is None or ref.segment != segment:
                segment = ref.segment
                entries = _split(self._holders.get(ref.ring_position) or b"")
            its = [entry[:_KEY] for entry in entries if _bits(entry) & ref.bit] if entries else ()
            found.append(b"".join(its))
        return found

    def hosts_of_keys(self, keys: bytes) -> list[ids.HostId]:
        """Return the hosts of joined keys, without forgotten ones."""
        if len(keys) <= _KEY:  # nearly always
            single = self._keys.host_of(keys)
            return [single] if single is not None else []
        split = (keys[at : at + _KEY] for at in range(0, len(keys), _KEY))
        return [host for key in split if (host := self._keys.host_of(key)) is not None]

    def list_announced(self) -> list[segments.Chunks]:
        """Return all announced chunks, for an image that is attached later."""
        found = []
        for segment, known in self._holders.items():
            bits = 0
            for entry in _split(known):
                bits |= _bits(entry)
            found.append((segment, bits))
        return found

    def clear(self) -> None:
        """Remove all holders."""
        self._holders.clear()


def _split(known: bytes) -> list[bytes]:
    return [known[at : at + _ENTRY] for at in range(0, len(known), _ENTRY)]


def _bits(entry: bytes) -> int:
    return entry[_KEY] << 8 | entry[_KEY + 1]
