# SPDX-License-Identifier: Apache-2.0
"""The chunks of a checkpoint, in the file that it is shown as (``checkpoint_file``).

They are the guest's own bytes, so they never go into the public cache, and never to a peer.
"""

from acstor_agent.core.disks import checkpoint_file
from acstor_agent.core.disks import restore_record
from acstor_agent.disks import checkpoint_client
from acstor_common.formats import checkpoint_manifest


class CheckpointReader:
    """What a checkpoint has.

    :param holders: who have its chunks
    :param clusters: of the file that it is shown as, the data at its end
    """

    def __init__(
        self,
        recovery: restore_record.RestoreRecord,
        manifest: checkpoint_manifest.Manifest,
        holders: checkpoint_client.CheckpointClient,
        clusters: int,
    ) -> None:
        self.recovery, self._manifest = recovery, manifest
        self._holders = holders
        self._places = checkpoint_file.places(manifest)
        self._cluster_bytes = checkpoint_file.cluster_bytes(manifest)
        self.clusters = range(clusters - len(self._places), clusters)
        """Of the file: those that are data."""

    async def fetch_cluster(self, cluster: int) -> bytes:
        """Return the bytes of a cluster of data; those behind the disk's end are not there.

        :raises errors.ChunkLost: no holder has it any more
        :raises errors.DeadlineExceeded: nobody gave it in time
        """
        cut = self._manifest.subject.cut
        at = self._places[cluster - self.clusters.start] * self._cluster_bytes
        chunk_no, start = divmod(at, cut.chunk_bytes)
        name = self._manifest.find(chunk_no)
        assert name is not None  # places are those of the manifest
        data = await self._holders.fetch_chunk(name, cut.chunk_length(chunk_no))
        return data[start : start + self._cluster_bytes]
