# SPDX-License-Identifier: Apache-2.0
"""Two-byte keys for hosts, so that tables of holders store bytes instead of lists."""

from acstor_common.model import ids

KEY_BYTES = 2
HOSTS = 32_768  # twice the hosts of a ring; the oldest are forgotten first


class HostInterning:
    """Maps hosts to keys and back.

    >>> keys = HostInterning()
    >>> keys.key_of(ids.HostId("h1")), keys.host_of(b"\\0\\1"), keys.host_of(b"\\0\\2")
    (b'\\x00\\x01', 'h1', None)
    >>> keys.forget_host(ids.HostId("h1")); keys.host_of(b"\\0\\1"), keys.key_of(ids.HostId("h1"))
    (None, b'\\x00\\x02')
    """

    __slots__ = ("_hosts", "_keys", "_last")

    def __init__(self) -> None:
        self._keys: dict[ids.HostId, bytes] = {}
        self._hosts: dict[bytes, ids.HostId] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._hosts

    def key_of(self, host: ids.HostId) -> bytes:
        """Return the key of a host; create it if needed."""
        key = self._keys.get(host)
        if key is None:
            if len(self._keys) >= HOSTS:
                self.forget_host(next(iter(self._keys)))
            while key is None or key in self._hosts:
                self._last = (self._last + 1) % (1 << 8 * KEY_BYTES)
                key = self._last.to_bytes(KEY_BYTES, "big")
            self._keys[host], self._hosts[key] = key, host
        return key

    def get(self, host: ids.HostId) -> bytes | None:
        """Return the key of a host, if it has one."""
        return self._keys.get(host)

    def host_of(self, key: bytes) -> ids.HostId | None:
        """Return the host of a key; None if it was forgotten."""
        return self._hosts.get(key)

    def list_hosts(self) -> list[ids.HostId]:
        """Return all hosts that have a key."""
        return list(self._keys)

    def forget_host(self, host: ids.HostId) -> None:
        """Forget a host, and so what all tables know of it; its key is reused after all others."""
        key = self._keys.pop(host, None)
        if key is not None:
            del self._hosts[key]
