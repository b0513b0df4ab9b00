# SPDX-License-Identifier: Apache-2.0
"""schemathesis generates requests from the description of the API, and checks the responses."""

import collections
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
import schemathesis
from flask import testing
from schemathesis import openapi
from schemathesis.specs.openapi import checks

from acstor_decision.db import database
from tests.fakes import checkpoint_hosts
from tests.fakes import openapi_document
from tests.unit.decision.api import conftest as api

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
GENERATED = hypothesis.settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [(api.ADMIN, {200, 202, 404}), (api.READER, {200, 403, 404}), (api.TENANT, {403})],
    ids=["admin", "reader", "tenant"],
)
def test_responses_to_generated_requests_are_documented(
    client: testing.FlaskClient,
    store: database.Database,
    glance: api.Glance,
    caplog: pytest.LogCaptureFixture,
    headers: Mapping[str, str],
    expected: set[int],
) -> None:
    caplog.set_level(logging.ERROR)  # rejected requests are logged as warnings
    image_id = str(uuid.uuid4())
    glance.add(image_id, owner="p")
    api.note(store, *(api.sample(number) for number in range(3)))
    api.publish(store, 7, hosts=3)
    store.record_checkpoint(checkpoint_hosts.taken(1), api.NOW_S, 10)
    document = openapi_document.with_examples([image_id, str(uuid.uuid4())])
    statuses = send_generated(client, document, headers)
    assert expected <= statuses.keys()
    assert max(statuses) < 500


def send_generated(
    client: testing.FlaskClient, document: dict[str, Any], headers: Mapping[str, str]
) -> collections.Counter[int]:
    """Send requests of each operation with a user's headers; return the checked responses."""
    statuses: collections.Counter[int] = collections.Counter()
    user = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        return client.application(
            {**environ, **user, "keystone.token_auth": object()}, start_response
        )

    def send(case: schemathesis.Case) -> None:
        response = case.call(app=serve)
        case.validate_response(response, checks=CHECKS)
        statuses[response.status_code] += 1

    for found in openapi.from_dict(document).get_all_operations():
        strategy = found.ok().as_strategy()
        GENERATED(hypothesis.given(case=strategy)(send))()
    return statuses
