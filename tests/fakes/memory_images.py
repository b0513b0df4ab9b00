# SPDX-License-Identifier: Apache-2.0
"""A Glance in memory for the real ``glance_client.GlanceClient``.

The client's own code interprets the records and orders the publication of artefacts.
"""

import contextlib
import hashlib
import random
import uuid
from collections.abc import Iterator
from typing import IO
from typing import Any

from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import glance_client
from tests.fakes import glance_records


def chunk_data(chunk_bytes: int, *numbers: int) -> bytes:
    """Return an image of random chunks; equal numbers have equal chunks."""
    return b"".join(random.Random(number).randbytes(chunk_bytes) for number in numbers)


class MemoryImages(glance_client.GlanceClient):
    """A Glance in memory; ``records``, ``data`` and ``shared_with`` may be changed."""

    def __init__(self) -> None:
        super().__init__(None, lambda: glance_records.SERVICE_PROJECT)
        self.records: dict[str, dict[str, Any]] = {}
        self.data: dict[str, bytes] = {}
        self.shared_with: dict[str, list[str]] = {}

    def add(self, data: bytes, **record: Any) -> dict[str, Any]:
        """Add an active image and return its record."""
        image_id = record.pop("id", str(uuid.uuid4()))
        self.records[image_id] = glance_records.record(
            id=image_id,
            size=len(data),
            os_hash_value=hashlib.sha512(data).hexdigest(),
            **record,
        )
        self.data[image_id] = data
        return self.records[image_id]

    def get_image(self, image_id: str) -> image_record.Image:
        if image_id not in self.records:
            raise errors.ImageGone(f"image {image_id}", "there is none")
        return image_record.Image.from_record(self.records[image_id])

    def list_images(self, sorted_by: str = "", **filters: Any) -> Iterator[image_record.Image]:
        found = list(self.records.values())
        if sorted_by:
            found.sort(key=lambda record: str(record[sorted_by]))
        else:
            found.sort(key=lambda record: str(record.get("created_at")), reverse=True)
            found.sort(key=lambda record: record.get("os_hidden", False))
        for record in found:
            if all(record.get(name) == value for name, value in filters.items()):
                yield image_record.Image.from_record(record)

    @contextlib.contextmanager
    def open_image_data(self, image_id: str) -> Iterator[Iterator[bytes]]:
        self.get_image(image_id)
        yield iter([self.data[image_id]])

    def create_image(self, record: dict[str, Any], file: IO[bytes]) -> ids.ImageId:
        made = self.add(file.read(), **record)
        made["created_at"] = f"2026-01-01T00:00:{len(self.records):02}Z"
        return ids.ImageId(made["id"])

    def list_members(self, image_id: str) -> list[str]:
        return self.shared_with.get(image_id, [])

    def set_properties(self, image_id: str, properties: dict[str, str]) -> None:
        self.get_image(image_id)
        record = self.records[image_id]
        for name, value in properties.items():
            if value:
                record[name] = value
            else:
                record.pop(name, None)

    def delete_artefact(self, image_id: str) -> None:
        self.records.pop(image_id, None)

    def local_path(self, image: image_record.Image, folders: Any) -> None:
        return None
