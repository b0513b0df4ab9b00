# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, generated from the operations and their types."""

import inspect
import re
from typing import Any

import msgspec

from acstor_common.model import ids
from acstor_decision.api import operation
from acstor_decision.api import routes

VERSIONS = ("1.0",)
"""Versions of the API, the oldest first; additions raise the second number.

Since 1.0 nothing is removed or changed, so requests for earlier versions work.
"""
VERSION = VERSIONS[-1]
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "host": {"type": "string", "pattern": f"^{ids.HOST_ID.pattern}$"},
    "epoch": {"type": "integer", "minimum": 0, "exclusiveMaximum": 10**18},
}
_UUID = {"type": "string", "format": "uuid"}  # of all other names in paths
_REFERENCE = "#/components/schemas/{name}"


class Error(msgspec.Struct, frozen=True):
    """An error.

    :param code: HTTP status
    :param title: standard phrase of the status
    :param message: cause and remedy
    """

    code: int
    title: str
    message: str


class Fault(msgspec.Struct, frozen=True):
    """The answer to a request that was not fulfilled."""

    error: Error


def document() -> dict[str, Any]:
    """Return the document as JSON data."""
    answers = {known.answer: known for known in routes.ALL}
    bodies = {known.body: known for known in routes.ALL if known.body is not operation.NoBody}
    _, schemas = msgspec.json.schema_components([*answers, *bodies, Fault], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for known in routes.ALL:
        paths.setdefault(known.path, {})[known.method.lower()] = _shown(known)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "acstor",
            "version": VERSION,
            "description": "Hosts, images, v-node tables and traffic of a cloud whose servers boot "
            "through acstor. All requests except those for /, /healthz, /healthcheck and the "
            "status page (/status) need a Keystone token in X-Auth-Token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _described(schema) for name, schema in schemas.items()},
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
            },
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))  # tuples become lists
    return plain


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    # Python before 3.13 keeps a docstring's indentation
    return {**schema, "description": inspect.cleandoc(schema["description"])}


def _shown(known: operation.Operation) -> dict[str, Any]:
    shown = _without_body(known)
    if known.body is not operation.NoBody:
        is_needed = any(field.required for field in msgspec.structs.fields(known.body))
        shown["requestBody"] = {**_content("", known.body.__name__), "required": is_needed}
    return shown


def _without_body(known: operation.Operation) -> dict[str, Any]:
    return {
        "operationId": known.name,
        "summary": known.summary,
        "description": f"Policy: {known.policy}",
        "parameters": [*_path_parameters(known.path), *_query_parameters(known.query)],
        "responses": {
            str(int(known.status)): _content(known.status.phrase, known.answer.__name__),
            "default": _content("Error", "Fault"),
        },
    }


def _content(description: str, schema: str) -> dict[str, Any]:
    reference = {"$ref": _REFERENCE.format(name=schema)}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, _UUID)}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(query)["$defs"][query.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": described}
        for name, described in schema["properties"].items()
    ]
