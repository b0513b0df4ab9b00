# SPDX-License-Identifier: Apache-2.0
"""The part of Glance that sources use, on ``http_server``, with access control.

It binds images and artefacts to each other as the real listener does.
"""

import contextlib
import hashlib
import json
import pathlib
import uuid
from collections.abc import Iterator
from collections.abc import Mapping

from keystoneauth1 import plugin
from keystoneauth1 import session as keystone_session

from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_common.image import image_record
from acstor_common.model import ids
from tests.fakes import glance_records
from tests.fakes import http_server

IMAGE = base.Blob(ids.ImageId(glance_records.IMAGE_ID), base.BlobKind.IMAGE)
CHUNK_MAP = IMAGE._replace(kind=base.BlobKind.CHUNK_MAP)
BOOT_IMAGE = IMAGE._replace(kind=base.BlobKind.BOOT_IMAGE)
RECORD = f"v2/images/{IMAGE.image_id}"


class ServiceUser(plugin.BaseAuthPlugin):
    """A service user without Keystone: each authentication yields a new token."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.sign_ins = 0
        self._endpoint, self._is_valid = endpoint, False

    def get_token(self, session, **_):
        if not self._is_valid:
            self.sign_ins += 1
            self._is_valid = True
        return f"token-{self.sign_ins}"

    def invalidate(self) -> bool:
        self._is_valid = False
        return True

    def get_endpoint(self, session, **_) -> str:
        return self._endpoint

    def get_project_id(self, session, **_) -> str:
        return glance_records.SERVICE_PROJECT


def session(url: str) -> keystone_session.Session:
    """Return a session of the service user at the Glance at ``url``."""
    return keystone_session.Session(auth=ServiceUser(url))


def put(files: dict[str, bytes], record: Mapping[str, object], data: bytes) -> None:
    """Add an image to Glance."""
    files[f"v2/images/{record['id']}"] = json.dumps(record).encode()
    files[f"v2/images/{record['id']}/file"] = data


def fill(files: dict[str, bytes], blobs: Mapping[str, bytes], made: str = "") -> None:
    """Add blobs to Glance by name: images, and artefacts of them.

    :param made: creation time; it determines the ids of artefacts
    """
    images = {}
    kinds = {kind.value: kind for kind in base.BlobKind}
    for name, data in blobs.items():
        path = pathlib.PurePath(name)
        if kinds[path.suffix] not in glance.ARTEFACTS:
            os_hash = hashlib.sha512(data).hexdigest()
            images[path.stem] = glance_records.record(
                id=path.stem,
                size=len(data),
                os_hash_value=os_hash,
                disk_format=path.suffix.removeprefix("."),
            )
            put(files, images[path.stem], data)
    for name, data in blobs.items():
        path = pathlib.PurePath(name)
        if kinds[path.suffix] in glance.ARTEFACTS:
            kind, _version = glance.ARTEFACTS[kinds[path.suffix]]
            image = images[path.stem]
            artefact_id = str(uuid.uuid5(uuid.NAMESPACE_URL, name + made))
            record = glance_records.artefact_record(
                image_record.Image.from_record(image),
                kind,
                id=artefact_id,
                size=len(data),
                os_hash_algo="sha512",
                os_hash_value=hashlib.sha512(data).hexdigest(),
            )
            put(files, record, data)
            image[kind.pointer] = artefact_id
            files[f"v2/images/{path.stem}"] = json.dumps(image).encode()


@contextlib.contextmanager
def serving(blobs: Mapping[str, bytes]) -> Iterator[http_server.LocalServer]:
    """Serve a Glance with blobs by name."""
    with http_server.serve({}) as server:
        fill(server.files, blobs)
        yield server
