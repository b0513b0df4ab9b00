# SPDX-License-Identifier: Apache-2.0
"""Scopes on a real Glance: owners of images, access to bases, and changes of both."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads

DATA = uploads.some_bytes(chunks=8, seed=90)


@pytest.fixture
def base_id(glance: uploads.Images) -> Iterator[str]:
    """An image of the administrator's project, without members."""
    image = glance.admin.create_image(
        name="base", disk_format="raw", container_format="bare", visibility="shared", data=DATA
    )
    yield image.id
    glance.admin.delete_image(image.id)


def map_of(glance: uploads.Images, image_id: str) -> chunk_map.ChunkMap:
    record = glance.wait_state(image_id)
    artefact_id = record[artefacts.Kind.CHUNK_MAP.pointer]
    raw = glance.admin.get(f"/images/{artefact_id}/file").content
    return artefacts.parse_chunk_map(image_record.Image.from_record(record), raw)


def names(found: chunk_map.ChunkMap) -> set[ids.Cid]:
    return {found.cid_of(number) for number in range(len(found)) if not found.is_zero(number)}


def shown(listener: acstor_glance.Listener, image_id: str) -> tuple[str, str]:
    row: dict[str, Any]
    [row] = uploads.manage(listener, "list", image_id)
    return row["scope"], row["scope_due"]


def test_base_deduplicates_for_members_and_public_images_for_all(
    glance: uploads.Images, listen: Callable[..., acstor_glance.Listener], base_id: str
) -> None:
    listener = listen()
    base = names(map_of(glance, base_id))
    stranger = map_of(glance, glance.upload(DATA, base_image_ref=base_id))
    assert base and not names(stranger) & base
    tenant = glance.record(glance.upload(DATA))["owner"]
    glance.admin.post(f"/images/{base_id}/members", json={"member": tenant}).raise_for_status()
    member = map_of(glance, glance.upload(DATA, base_image_ref=base_id))
    assert names(member) == base and len(member.scope_keys) == 2
    assert shown(listener, base_id) == ("project", "")
    glance.patch(base_id, visibility="public")
    assert shown(listener, base_id) == ("project", "cloud")
    [row] = uploads.manage(listener, "prepare", "--force", base_id)
    assert row["outcome"] == "prepared"
    assert shown(listener, base_id) == ("cloud", "")
    assert not any(map(ids.is_keyed, names(map_of(glance, base_id))))
