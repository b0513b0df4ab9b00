# SPDX-License-Identifier: Apache-2.0
"""All holders of one disk's checkpoints, as one.

The one rule: what one of them has not acknowledged is not kept.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import Protocol

from acstor_checkpoint import names as names_
from acstor_checkpoint import record as record_
from acstor_checkpoint import vault_client
from acstor_common import errors
from acstor_common import ids

FAULTS: Final = (
    errors.SourceUnreachable,
    errors.NotAuthentic,
    errors.VaultRefused,
    errors.VaultFull,
    errors.RemoteProtocolError,
)
"""What a holder that does not do what it is asked for makes of it."""


class HolderFailed(errors.AcstorError):
    """One of the holders does not keep what it was given: another one is to be chosen."""

    def __init__(self, holder: ids.HostId, why: str) -> None:
        super().__init__(holder, why)
        self.holder, self.why = holder, why

    def __str__(self) -> str:
        return f"{self.holder} keeps no checkpoint: {self.why}"


class Places(Protocol):
    """Who can keep checkpoints."""

    def choose(
        self, disk: ids.ImageId, copies: int, current: Sequence[ids.HostId]
    ) -> Sequence[record_.Holder]:
        """Return holders of a disk; those that keep it now, if they still can."""

    def client(self, holder: record_.Holder) -> vault_client.VaultClient:
        """Return who asks the vault of a holder."""

    def failed(self, holder: ids.HostId) -> None:
        """Choose this one no more for a while."""


class Copies:
    """The holders of one disk, for one thread.

    Each method raises :class:`HolderFailed` if one of them does not do it.

    :param clients: one for each holder
    """

    def __init__(self, disk: names_.Disk, clients: Sequence[vault_client.VaultClient]) -> None:
        self._disk, self._clients = disk, clients
        self.holders = tuple(client.holder for client in clients)

    def lacking(self, names: Sequence[ids.Cid]) -> set[ids.Cid]:
        """Return those of ``names`` that any holder has not."""
        found: set[bytes] = set()
        for client in self._clients:
            with _blamed(client):
                found |= client.missing(self._disk, names)
        return {ids.Cid(name) for name in found}

    def put(self, names: Sequence[ids.Cid], sealed: Callable[[ids.Cid], bytes]) -> int:
        """Have every holder keep chunks; return how many bytes were sent to all of them.

        :param sealed: returns the chunk of a name
        """
        sent_bytes = 0
        for client in self._clients:
            with _blamed(client):
                missing = map(ids.Cid, sorted(client.missing(self._disk, names)))
                chunks = [names_.Sealed(name, sealed(name)) for name in missing]
                client.put(self._disk, chunks)
                sent_bytes += sum(len(chunk.data) for chunk in chunks)
        return sent_bytes

    def put_manifest(self, sealed: bytes) -> None:
        """Have every holder keep a sealed manifest."""
        for client in self._clients:
            with _blamed(client):
                client.put_manifest(self._disk, sealed)

    def keep(self, stay: Iterable[bytes]) -> None:
        """Have every holder drop all but chunks and manifests of these names."""
        names = frozenset(stay)
        for client in self._clients:
            with _blamed(client):
                client.keep(self._disk, names)


@contextlib.contextmanager
def _blamed(client: vault_client.VaultClient) -> Iterator[None]:
    try:
        yield
    except FAULTS as e:
        raise HolderFailed(client.holder, str(e)) from e
