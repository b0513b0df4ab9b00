# SPDX-License-Identifier: Apache-2.0
"""Spool of chunk maps that were made before Glance knew the image's hash."""

import contextlib
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance import mapped_file


class MapSpool:
    """Private folder of waiting and unfinished maps; raises Unusable without it."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.folder = state_dir / "maps"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise errors.Unusable(
                f"[acstor_glance] state_dir {state_dir}", exc.strerror or str(exc)
            ) from exc

    def map_path(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of an image's waiting map."""
        return self.folder / f"{image_id}.acmap"

    def work_path(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of an unfinished map, from which a stopped run resumes."""
        return self.folder / f"{image_id}.work.acmap"

    def remove(self, image_id: ids.ImageId) -> None:
        """Delete the waiting and unfinished maps of an image."""
        for path in (self.map_path(image_id), self.work_path(image_id)):
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".part").unlink(missing_ok=True)

    def remove_older(self, age_s: float) -> int:
        """Delete entries not written to for ``age_s``; return their number."""
        removed = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                if time.time() - path.stat().st_mtime > age_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed += 1
        return removed

    @contextlib.contextmanager
    def temporary_map(self) -> Iterator[IO[bytes]]:
        """Yield an unnamed file for a map that is being made."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                yield file
        except OSError as exc:
            raise errors.Unusable(str(self.folder), exc.strerror or str(exc)) from exc

    @contextlib.contextmanager
    def finished_map(
        self, image: image_record.Image, scope_keys: chunk_map.ScopeKeys
    ) -> Iterator[IO[bytes] | None]:
        """Yield the finished map, with the hash, of an active image; None if none valid waits.

        Other scope keys mean that the image's project or visibility has changed since.
        """
        with self.temporary_map() as file:
            try:
                with (
                    self.map_path(image.id).open("rb") as waiting,
                    mapped_file.map_file(waiting) as buffer,
                ):
                    found = chunk_map.ChunkMap.parse(
                        buffer,
                        str(self.map_path(image.id)),
                        expected_image_id=image.id,
                        expected_stored_bytes=image.size_bytes,
                    )
                    is_usable = found.scope_keys == scope_keys
                    if is_usable:
                        file.writelines(chunk_map_writer.with_os_hash(found, buffer, image.os_hash))
            except (FileNotFoundError, errors.ChunkMapFormatError):
                is_usable = False
            if not is_usable:
                yield None  # no map, or one that does not match the imported data
                return
            file.seek(0)
            yield file
