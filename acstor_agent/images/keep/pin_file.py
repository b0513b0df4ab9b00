# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the pin file, and the chunk maps of pinned images; blocks."""

import contextlib
import logging
import pathlib
from collections.abc import Mapping

from acstor_agent.core.images import pin_record
from acstor_agent.images.image import mirrors
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

FILE_NAME = "pins.json"

Pins = dict[ids.ImageId, pin_record.ImagePin]


class PinFile:
    """The pins in the state folder."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path, self._maps_dir = state_dir / FILE_NAME, state_dir / "maps"

    def read(self) -> Pins | None:
        """Return the pins in the file; None if it is lost."""
        atomic_file.remove_leftovers(self._path.parent, self._path.name)
        try:
            return pin_record.decode(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return None
        except (OSError, errors.FormatError) as e:
            LOG.warning("%s; pinning the attached images again", e)
            return None

    def write(self, pins: Mapping[ids.ImageId, pin_record.ImagePin]) -> None:
        """Write the file, or raise OSError if the write failed; the former file is intact."""
        _write(self._path, pin_record.encode(pins.values()))

    def pins_of_attached(self) -> Pins:
        """Return pins of all attached images, most recently touched first."""
        stamps = {}
        with contextlib.suppress(OSError):  # Mirrors logs it
            for path in self._maps_dir.glob(f"*{base.BlobKind.CHUNK_MAP.value}"):
                with contextlib.suppress(ValueError, OSError):
                    stamps[ids.parse_image_id(path.stem)] = path.stat().st_mtime
        last = sorted(stamps, key=lambda image_id: stamps[image_id], reverse=True)
        return {image_id: pin_record.ImagePin(image_id, stamps[image_id]) for image_id in last}

    def open_map(self, image_id: ids.ImageId) -> chunk_map.ChunkMap | None:
        """Return the chunk map of an image; None if it is lost."""
        try:
            path = self._maps_dir / base.Blob(image_id, base.BlobKind.CHUNK_MAP).file_name
            return mirrors.open_map(path, image_id)
        except (OSError, errors.ChunkMapFormatError) as e:
            LOG.warning("image %s: pinned, but its chunk map is lost: %s", image_id, e)
            return None


def _write(path: pathlib.Path, raw: bytes) -> None:
    with atomic_file.atomic_write(path, 0o600) as file:
        file.write(raw)
