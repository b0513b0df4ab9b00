# SPDX-License-Identifier: Apache-2.0
"""Reader of the agent's files, which it has verified, and which other users cannot write."""

import pathlib
from typing import Final

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages

_MAX_TABLE_BYTES: Final = 2 * hash_ring.MAX_FILE_BYTES + 1024


class AgentFiles:
    """The agent's state folder; ``ring_file``: the operator's table; None: the service's."""

    def __init__(self, state_dir: pathlib.Path, ring_file: pathlib.Path | None) -> None:
        self.state_dir, self._ring_file = state_dir, ring_file

    @classmethod
    def from_options(cls, agent: cfg.ConfigOpts.GroupAttr) -> "AgentFiles":
        """Return the files of the agent with these options."""
        ring_file = pathlib.Path(agent.ring_file) if agent.ring_file else None
        return cls(pathlib.Path(agent.state_dir), ring_file)

    def read_ring(self) -> hash_ring.Ring:
        """Return the v-node table, or raise Unusable."""
        path = self._ring_file or self.state_dir / "ring.json"
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_TABLE_BYTES)
            if not self._ring_file:
                raw = msgspec.json.decode(raw, type=decision_messages.RingTable).table.encode()
            return hash_ring.decode(raw, str(path))
        except (OSError, ValueError, msgspec.DecodeError, errors.RingFormatError) as e:
            raise errors.Unusable(str(path), f"there is no v-node table: {e}") from e

    def read_image(self, image_id: ids.ImageId) -> chunk_map.Subject:
        """Return an image's geometry and hash, or raise Unusable without its chunk map."""
        path = self.state_dir / "maps" / f"{image_id}.acmap"
        try:
            with path.open("rb") as file:
                return chunk_map_header.subject_of(
                    file.read(chunk_map.HEADER_BYTES), str(path), image_id
                )
        except (OSError, errors.ChunkMapFormatError) as e:
            raise errors.Unusable(
                f"image {image_id}", f"its chunk map is not on this host: {e}"
            ) from e
