# SPDX-License-Identifier: Apache-2.0
"""Determines the naming of an image's chunks, from Glance's record of it.

The cloud's secret is in the bytes of a hidden, private artefact, because notifications contain
properties. The oldest active secret counts, so processes that create one at the same time soon
agree. If it is lost, new private images share no chunks with earlier ones.
"""

import contextlib
import hashlib
import io
import logging
import secrets
from collections.abc import Iterator

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_glance.client import backing_images
from acstor_glance.client import glance_client

LOG = logging.getLogger(__name__)


class ScopeLookup:
    """Naming of chunks in the scopes of one cloud."""

    def __init__(self, images: glance_client.GlanceClient, conf: cfg.ConfigOpts) -> None:
        self._images = images
        self._dedup_scope = deduplication.DedupScope(conf.acstor_glance.dedup_scope)

    @contextlib.contextmanager
    def naming_of_image(self, image: image_record.Image) -> Iterator[deduplication.Naming]:
        """Yield the naming of an image's chunks, valid inside the block; raises Unusable."""
        if deduplication.scope_of(image, self._dedup_scope) is deduplication.DedupScope.CLOUD:
            yield deduplication.PLAIN
            return
        base = backing_images.find_backing_image(self._images, image)
        with backing_images.chunk_map_of(self._images, base) as base_map:
            yield deduplication.Naming(deduplication.key_of(self._secret(), image.owner), base_map)

    def _secret(self) -> bytes:
        found = self._oldest_secret()
        if found is None:
            LOG.info("Created the secret of this cloud's scopes: private images share no chunks "
                     "with images prepared under another secret")  # fmt: skip
            record = artefacts.new_secret(self._images.project_id)
            self._images.create_image(
                record, io.BytesIO(secrets.token_bytes(deduplication.SECRET_BYTES))
            )
            found = self._oldest_secret()
        if found is None:
            raise errors.ImageServiceUnreachable("the secret of the scopes", "it was just deleted")
        return self._read_secret(found)

    def _oldest_secret(self) -> image_record.Image | None:
        found = [
            record
            for record in self._images.list_artefacts(kind=artefacts.SCOPE_SECRET)
            if record.status == image_record.ACTIVE
        ]
        return min(found, key=_age, default=None)

    def _read_secret(self, record: image_record.Image) -> bytes:
        with self._images.open_image_data(record.id) as pieces:
            raw = b"".join(pieces) if record.size_bytes <= 1024 else b""
        algo, value = record.os_hash
        is_whole = not algo or hashlib.new(algo, raw).digest() == value
        if len(raw) != deduplication.SECRET_BYTES or not is_whole:
            what = f"the secret of the scopes (image {record.id} in Glance)"
            why = "it is damaged"
            raise errors.Unusable(what, why, "Delete it: a new one is created, see the guide")
        return raw


def _age(record: image_record.Image) -> tuple[str, str]:
    return record.created_at, record.id
