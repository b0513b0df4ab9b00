# SPDX-License-Identifier: Apache-2.0
import uuid

import pytest
from keystoneauth1 import noauth
from oslo_config import cfg

from acstor_common.service import bounded_responses
from acstor_decision.api import glance_client
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server
from tests.fakes import listed_images

LISTED = "visibility=all&sort=id%3Aasc&limit=1000"


@pytest.mark.allow_log("Glance: ")
def test_endless_response_is_not_read_to_the_end(api_configuration: cfg.ConfigOpts) -> None:
    with http_server.serve({}) as glance:
        glance.files[f"v2/images?{LISTED}"] = b""
        glance.always = http_server.endless
        api_configuration.set_override("endpoint_override", glance.url, "glance")
        client = glance_client.GlanceClient(api_configuration)
        with pytest.raises(glance_client.GlanceUnreachable) as e:
            client.list_images(noauth.NoAuth())
        assert "takes more than 16777216 bytes" in e.value.detail
        assert glance.body_bytes < 2 * bounded_responses.MAX_LIST_BYTES


@pytest.mark.parametrize("path", glance_records.CATALOG_PATHS)
def test_glance_is_found_below_any_form_of_its_url(
    api_configuration: cfg.ConfigOpts, path: str
) -> None:
    listed = listed_images.ListedImages([glance_records.IMAGE_ID])
    with http_server.serve(listed) as glance:
        glance.always = listed_images.answer
        listed.prefix = "image/" if path.startswith("/image") else ""
        client = glance_client.GlanceClient(api_configuration)
        auth = fake_glance.ServiceUser(glance.url.rstrip("/") + path)
        assert [image.id for image in client.list_images(auth).images] == [glance_records.IMAGE_ID]


def test_list_is_complete_though_images_are_deleted_meanwhile(
    api_configuration: cfg.ConfigOpts,
) -> None:
    ids = [str(uuid.UUID(int=number)) for number in range(1, 2 * glance_client.PAGE)]
    deleted = ids[glance_client.PAGE - 3 : glance_client.PAGE]  # the last ones of a page
    with http_server.serve(listed_images.ListedImages(ids, deleted)) as glance:
        glance.always = listed_images.answer
        client = glance_client.GlanceClient(api_configuration)
        found = client.list_images(fake_glance.ServiceUser(glance.url))
    assert found.is_complete
    assert [image.id for image in found.images] == ids
