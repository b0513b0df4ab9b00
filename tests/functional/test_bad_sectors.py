# SPDX-License-Identifier: Apache-2.0
"""Bad sectors under files that the agent maps into memory, where a page fault is a SIGBUS."""

import pytest

from acstor_agent.images.image import mirrors
from acstor_common import errors
from tests.fakes import bad_sector
from tests.fakes import one_host

MAP = one_host.map_of(one_host.image_bytes(5 * one_host.CHUNK))


def test_chunk_map_with_a_bad_sector_is_refused(tmp_path):
    (tmp_path / "map").write_bytes(MAP)
    with bad_sector.shown(tmp_path / "map", len(MAP) - 1, tmp_path / "disk") as path:
        with pytest.raises(errors.ChunkMapFormatError, match="unreadable: Input/output error"):
            mirrors.open_map(path, one_host.IMAGE)
