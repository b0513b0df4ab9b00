# SPDX-License-Identifier: Apache-2.0
"""The published description of the REST API, with examples of rows that a test has stored."""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tests.fakes import checkpoint_hosts
from tests.lab import runs

PATH = runs.CHECKOUT / "doc/source/api/openapi.json"
EXAMPLES: Mapping[str, Sequence[str | int]] = {
    "host": ["h0000", "h0001"],
    "server_id": [checkpoint_hosts.SERVER, checkpoint_hosts.OTHER_SERVER],
    "checkpoint_id": [checkpoint_hosts.checkpoint_id(number) for number in (1, 9)],
    "epoch": [7, 8],
}
"""Values of parameters: of a row that exists first, of one that does not last."""


def with_examples(image_ids: Sequence[str]) -> dict[str, Any]:
    """Return the description with values of :data:`EXAMPLES` and image IDs as examples."""
    document: dict[str, Any] = json.loads(PATH.read_text())
    values = {**EXAMPLES, "image_id": image_ids}
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                found = values.get(parameter["name"], ())
                parameter["examples"] = {str(value): {"value": value} for value in found}
    return document
