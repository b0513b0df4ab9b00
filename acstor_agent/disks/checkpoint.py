# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that a disk was made of: what it has, and whence that comes.

A disk that was made of a checkpoint begins as its base image, but for the chunks that the
checkpoint has.  They are the guest's own bytes, so they go the way of those: into the disk's own
file, never into the public cache, and never to a peer.
"""

from acstor_agent.core.disks import recovery as recovery_
from acstor_agent.disks import holders as holders_
from acstor_common import checkpoint_manifest
from acstor_common import ids


class Checkpoint:
    """What a checkpoint has.

    :param holders: who have its chunks
    """

    def __init__(
        self,
        recovery: recovery_.Recovery,
        manifest: checkpoint_manifest.Manifest,
        holders: holders_.Holders,
    ) -> None:
        self.recovery, self.manifest = recovery, manifest
        self._holders = holders

    def __contains__(self, chunk_no: int) -> bool:
        return self.manifest.find(chunk_no) is not None

    def __len__(self) -> int:
        return len(self.manifest)

    async def fetch(self, chunk_no: int) -> bytes:
        """Return the bytes of a chunk that it has; none of one that is zeros.

        :raises errors.ChunkLost: no holder has it any more
        :raises errors.DeadlineExceeded: nobody gave it in time
        """
        name = self.manifest.find(chunk_no)
        if name is None or name == ids.ZERO_CID:
            return b""
        length = self.manifest.subject.cut.chunk_length(chunk_no)
        return await self._holders.chunk(name, length)
