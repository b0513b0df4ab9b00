# SPDX-License-Identifier: Apache-2.0
"""A command fails with a message when the REST API never answers."""

import time

import pytest
from osc_lib import exceptions

from acstor_osc import client
from tests.fakes import fake_glance
from tests.fakes import silent_server


def test_command_times_out_while_the_api_hangs() -> None:
    with silent_server.serve() as api:
        asked = client.Client(fake_glance.session(api.url), None, None, timeout_s=1.0)
        began_s = time.monotonic()
        with pytest.raises(exceptions.CommandError, match=f"does not answer: .*{api.url}"):
            asked.get("/v1/status")
        assert time.monotonic() - began_s < 10
