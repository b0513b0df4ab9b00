# SPDX-License-Identifier: Apache-2.0
"""The choice between two stores of a real Glance: by an agent's site, and by a gateway."""

import pathlib
from collections.abc import Iterator

import pytest

from acstor_agent.sources import base
from acstor_agent.sources import gateway
from acstor_agent.sources import glance as glance_source
from acstor_common.model import ids
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud
from tests.lab.openstack import glance as glance_service
from tests.lab.openstack import uploads

CENTRAL, NEAR = b"c" * 100_000, b"n" * 100_000
"""Content of the stores under one ID, so that a test sees which one was read."""


@pytest.fixture(scope="module")
def near(
    image_services: cloud.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    """Return the folder of a second store; Glance prefers the first one."""
    folder = tmp_path_factory.mktemp("near")
    stores = {
        "DEFAULT": {"enabled_backends": "fs:file,dcn1:file"},
        "fs": {"weight": 10},
        "dcn1": {"filesystem_store_datadir": folder},
    }
    with image_services.glance.changed(stores):
        yield folder


@pytest.fixture
def image_id(near: pathlib.Path, glance: uploads.Images) -> Iterator[ids.ImageId]:
    """Return an image in both stores."""
    made = glance.upload(CENTRAL)
    image = glance.admin.get_image(made)
    glance.admin.import_image(image, method="copy-image", stores=["dcn1"])
    glance.wait(made, glance_service.is_imported, "the copy")
    assert glance.record(made)["stores"] == "fs,dcn1"
    (near / made).write_bytes(NEAR)
    yield ids.parse_image_id(made)
    (near / made).touch()  # Glance deletes it with the image


async def test_agent_reads_the_store_named_after_its_site(
    image_id: ids.ImageId, near: pathlib.Path, image_services: cloud.Cloud
) -> None:
    blob = base.Blob(image_id, base.BlobKind.IMAGE)
    source = glance_source.GlanceSource(image_services.session("acstor"))
    assert await source.read(blob, 10, 20) == CENTRAL[:20]
    source.prefer_location(["europe", "dcn1", "rack7"])
    assert await source.read(blob, 10, 20) == NEAR[:20]
    assert await source.size_bytes(blob) == len(NEAR)
    (near / image_id).unlink()
    assert await source.read(blob, 10, 20) == CENTRAL[:20], "Glance reads another store"
    await source.aclose()


async def test_gateway_reads_the_store_with_the_highest_configured_weight(
    image_id: ids.ImageId, near: pathlib.Path, image_services: cloud.Cloud, tmp_path: pathlib.Path
) -> None:
    blob = base.Blob(image_id, base.BlobKind.IMAGE)
    beside = acstor_gateway.Gateway(image_services, tmp_path, auth_cache_s=0)
    source = gateway.GatewaySource(image_services.session("acstor"), url=beside.url)
    source.prefer_location(["dcn1"])
    try:
        beside.start()
        beside.wait_ready()
        assert await source.read(blob, 10, 20) == CENTRAL[:20]
        with beside.changed({"dcn1": {"weight": 20}}):
            beside.wait_ready()
            assert await source.read(blob, 10, 20) == NEAR[:20]
            (near / image_id).unlink()
            assert await source.read(blob, 10, 20) == CENTRAL[:20]
    finally:
        beside.stop()
        await source.aclose()
