# SPDX-License-Identifier: Apache-2.0
"""Hashing of images by services: one chunk size, few threads, only disks that are served."""

import os
import pathlib
from collections.abc import Iterator
from typing import IO
from typing import NamedTuple

from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_glance.prepare import format_check
from acstor_glance.prepare import prehash
from acstor_glance.prepare import preparation_budget

CHUNK_BYTES = geometry.DEFAULT_CHUNK_BYTES
"""One size for all services: only chunks of equal size match."""
THREADS = 2
"""Threads that hash a file; Glance's hash takes longer than two."""


class ServiceHashing(NamedTuple):
    """Hashing of one image; ``progress`` is called with the bytes done."""

    chunk_bytes: int
    naming: deduplication.Naming = deduplication.PLAIN
    progress: prehash.Progress = lambda done_bytes: None
    budget: preparation_budget.PreparationBudget | None = None

    def hash_file(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        map_path: pathlib.Path,
        image: image_record.Image,
    ) -> prehash.Summary:
        """Write the chunk map of an image in a file; see :func:`prehash.prehash`."""
        return prehash.prehash(
            file,
            map_path,
            image.id,
            disk_format=format_check.parse_disk_format(image.disk_format),
            chunk_bytes=self.chunk_bytes,
            os_hash=image.os_hash,
            workers=THREADS,
            progress=self.progress,
            naming=self.naming,
            max_virtual_bytes=image_record.SERVED_VIRTUAL_BYTES,
            budget=self.budget,
        )

    def enforce_deadline(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield pieces of the image; raises errors.LimitExceeded if they come too slowly."""
        return pieces if self.budget is None else self.budget.enforce_deadline(pieces)
