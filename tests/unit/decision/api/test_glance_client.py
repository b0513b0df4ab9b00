# SPDX-License-Identifier: Apache-2.0
import pytest
from keystoneauth1 import noauth
from oslo_config import cfg

from acstor_common.service import bounded_responses
from acstor_decision.api import glance_client
from tests.fakes import http_server

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
