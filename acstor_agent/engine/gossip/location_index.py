# SPDX-License-Identifier: Apache-2.0
"""Location index: which hosts announced which chunks (Nicolae 2016, 3.1.2).

An OID locates a chunk and identifies nothing; a wrong entry costs a request, never wrong bytes.
The least recently used entries are evicted.  The holders of a chunk are their joined 2-byte keys; a
single holder shares one key object: 78 bytes an entry (tests/bench/transfers_cost.py).
"""

from collections.abc import Iterable

from acstor_agent.engine import generational_cache
from acstor_agent.engine import host_interning
from acstor_common import ids

OIDS = 131_072
HOLDERS = 4
"""Of one content; of more those that told last."""

_KEY = host_interning.KEY_BYTES


class LocationIndex:
    """The holders.

    >>> holders = LocationIndex(host_interning.HostInterning())
    >>> oid, h1, h2 = ids.Oid(7), ids.HostId("h1"), ids.HostId("h2")
    >>> holders.told(h1, [oid]); holders.told(h2, [oid]); holders.of(oid)
    ['h1', 'h2']
    >>> holders.denied(h1, oid), holders.denied(h1, oid), holders.of(oid)
    (True, False, ['h2'])
    """

    def __init__(self, keys: host_interning.HostInterning, oids: int = OIDS) -> None:
        self._keys = keys
        self._told: generational_cache.GenerationalCache[ids.Oid, bytes] = (
            generational_cache.GenerationalCache(oids)
        )

    def __len__(self) -> int:
        """Return of how many contents holders are known."""
        return len(self._told)

    def told(self, host: ids.HostId, oids: Iterable[ids.Oid]) -> None:
        """Note that a host says that it has contents."""
        key = self._keys.of(host)
        for oid in oids:
            known = self._told.get(oid)
            if known is None:
                self._told.put(oid, key)
            elif known[-_KEY:] != key:
                others = [k for k in _split(known) if k != key and k in self._keys]
                self._told.put(oid, b"".join((*others[-(HOLDERS - 1) :], key)))

    def taken_back(self, host: ids.HostId, oids: Iterable[ids.Oid]) -> None:
        """Note that a host says that contents are gone from it."""
        for oid in oids:
            self.denied(host, oid)

    def denied(self, host: ids.HostId, oid: ids.Oid) -> bool:
        """Note that a host has not got a content; say whether it had told that it has."""
        keys, key = _split(self._told.get(oid) or b""), self._keys.get(host)
        if key is None or key not in keys:
            return False
        keys.remove(key)
        if keys:
            self._told.put(oid, b"".join(keys))
        else:
            self._told.pop(oid)
        return True

    def of(self, oid: ids.Oid) -> list[ids.HostId]:
        """Return who says that it has a content, in the order in which they said so."""
        keys = self._told.get(oid)
        return self.named(keys) if keys else []

    def keys(self, oid: ids.Oid) -> bytes:
        """Return the keys of those who say that they have a content: equal ones, equal hosts."""
        return self._told.get(oid) or b""

    def named(self, keys: bytes) -> list[ids.HostId]:
        """Return whose keys these are, without those who are forgotten."""
        if len(keys) <= _KEY:  # nearly always
            one = self._keys.host(keys)
            return [one] if one is not None else []
        return [host for key in _split(keys) if (host := self._keys.host(key)) is not None]

    def known(self) -> list[ids.Oid]:
        """Return all contents that others have told of, for an image that is attached later."""
        return self._told.keys()


def _split(keys: bytes) -> list[bytes]:
    return [keys[at : at + _KEY] for at in range(0, len(keys), _KEY)]
