# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint's data clusters: guest bytes, never cached publicly or served to peers."""

from acstor_agent.core.disks import checkpoint_file
from acstor_agent.core.disks import restore_record
from acstor_agent.disks import checkpoint_client
from acstor_common.formats import checkpoint_manifest


class CheckpointReader:
    """The chunks of a checkpoint."""

    def __init__(
        self,
        record: restore_record.RestoreRecord,
        manifest: checkpoint_manifest.Manifest,
        holders: checkpoint_client.CheckpointClient,
        clusters: int,
    ) -> None:
        self.record, self._manifest = record, manifest
        self._holders = holders
        self._places = checkpoint_file.data_clusters(manifest)
        self._cluster_bytes = checkpoint_file.cluster_bytes(manifest)
        self.clusters = range(clusters - len(self._places), clusters)
        """The data clusters of the file."""

    async def fetch_cluster(self, cluster: int) -> bytes:
        """Return a data cluster, up to the disk's end, or raise ChunkLost or DeadlineExceeded."""
        cut = self._manifest.subject.cut
        at = self._places[cluster - self.clusters.start] * self._cluster_bytes
        chunk_no, start = divmod(at, cut.chunk_bytes)
        name = self._manifest.find(chunk_no)
        assert name is not None  # the places are the manifest's
        data = await self._holders.fetch_chunk(name, cut.chunk_length(chunk_no))
        return data[start : start + self._cluster_bytes]
