# SPDX-License-Identifier: Apache-2.0
"""Checkpoint holders in memory, and disks restored from their chunks."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_checkpoint.holders import holder_group
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids


class Holder:
    """A holder that can fail after a number of chunks."""

    def __init__(self) -> None:
        self.chunks: dict[ids.Cid, bytes] = {}
        self.dies_after: int | None = None

    def missing_names(self, names: Iterable[ids.Cid]) -> set[ids.Cid]:
        names = list(names)
        assert names == sorted(set(names))
        return set(names) - self.chunks.keys()

    def put(
        self, names: Sequence[ids.Cid], sealed: Callable[[ids.Cid], bytes], plain_bytes: int
    ) -> int:
        sent_bytes = 0
        for name in sorted(self.missing_names(names)):
            if self.dies_after is not None and len(self.chunks) >= self.dies_after:
                raise holder_group.HolderFailed(ids.HostId("h1"), "it died")
            self.chunks[name] = sealed(name)
            sent_bytes += len(self.chunks[name])
        return sent_bytes


def rebuilt(
    base: bytes,
    manifest: checkpoint_manifest.Manifest,
    seal: checkpoint_encryption.Seal,
    chunk: Callable[[ids.Cid], bytes],
) -> bytes:
    """Return the disk that a manifest describes.

    :param chunk: returns a holder's sealed chunk by its name
    """
    cut = manifest.subject.cut
    disk = bytearray(base[: cut.size_bytes].ljust(cut.size_bytes, b"\0"))
    for chunk_no, name in manifest:
        at, length = cut.chunk_offset(chunk_no), cut.chunk_length(chunk_no)
        is_zeros = name == ids.ZERO_CID
        plain = bytes(length) if is_zeros else seal.open(name, chunk(name), length, "h1")
        disk[at : at + length] = plain
    return bytes(disk)
