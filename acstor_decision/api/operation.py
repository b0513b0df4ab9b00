# SPDX-License-Identifier: Apache-2.0
"""Operations of the API, from which routes, policies and OpenAPI are generated."""

import dataclasses
import datetime
import http
import time
from collections.abc import Callable
from typing import Annotated
from typing import Any
from typing import TypeVar

import msgspec
from keystoneauth1 import plugin

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_decision import nova_client
from acstor_decision import rpc
from acstor_decision.api import glance_client
from acstor_decision.core.membership import members
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority

_Id = TypeVar("_Id")

READER = "rule:acstor:reader"
ADMIN = "rule:acstor:admin"
SERVICE = "rule:acstor:service"
AGENT = "rule:acstor:agent"
RECOVERY = "rule:acstor:recovery"


@dataclasses.dataclass(eq=False)
class RequestRefused(errors.AcstorError):
    """The request cannot be fulfilled, and the client can correct it; ``status`` is 400 to 499."""

    status: http.HTTPStatus
    message: str
    text = "{message}"


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query without parameters."""


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty body."""


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Page of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    marker: Annotated[str, text_constraints.text_without_nul(255)] = ""  # last of the previous page


@dataclasses.dataclass(frozen=True)
class Call:
    """A request whose policy and format have been checked."""

    store: database.Database
    limits: members.MembershipLimits
    images: glance_client.GlanceClient
    bus: rpc.TaskSender
    authority: certificate_authority.CertificateAuthority
    nova: nova_client.NovaClient | None = None
    path: dict[str, str] = dataclasses.field(default_factory=dict)
    query: Any = None
    body: Any = None
    sees_all: bool = False  # may see all projects' hosts and images
    user_id: str = ""  # in Keystone
    address: str = ""
    auth: plugin.BaseAuthPlugin | None = None  # the client's, for other services
    wall: Callable[[], float] = time.time


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method on a path."""

    name: str
    method: str
    path: str  # with its variables in braces
    summary: str
    answer: type[msgspec.Struct]
    handler: Callable[[Call], msgspec.Struct]
    rule: str = READER  # default of the policy ``acstor:<name>``
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] = NoBody
    status: http.HTTPStatus = http.HTTPStatus.OK

    @property
    def policy(self) -> str:
        """Return the name of the policy that protects the operation."""
        return f"acstor:{self.name}"


def host_action(
    name: str,
    summary: str,
    answer: type[msgspec.Struct],
    handler: Callable[[Call], msgspec.Struct],
    **more: Any,
) -> Operation:
    """Return an administrators' operation on a host."""
    path = f"/v1/hosts/{{host}}/{name}"
    return Operation(f"host:{name}", "POST", path, summary, answer, handler, ADMIN, **more)


def host_id(text: str) -> ids.HostId:
    """Return the host that a path names; RequestRefused if its ID is malformed."""
    return _parsed(ids.parse_host_id, text)


def image_id(text: str) -> ids.ImageId:
    """Return the image that a path names; RequestRefused if its ID is malformed."""
    return _parsed(ids.parse_image_id, text)


def server_id(text: str) -> str:
    """Return the server that a path names; RequestRefused if its ID is malformed."""
    return image_id(text)  # both are UUIDs


def _parsed(parse: Callable[[str], _Id], text: str) -> _Id:
    try:
        return parse(text)
    except ValueError as e:
        raise RequestRefused(http.HTTPStatus.BAD_REQUEST, str(e)) from e


def utc_time(at_s: float) -> datetime.datetime:
    """Return a time of the database; the last possible one if it is out of range."""
    try:
        return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.datetime.max.replace(tzinfo=datetime.UTC)


def up_since_s(call: Call) -> float:
    """Return the time since which a host must have sent a sample to be up."""
    return call.wall() - call.limits.dead_after_samples * call.limits.collection_s


def not_found(what: str) -> RequestRefused:
    """Return the refusal of a request for an unknown object."""
    return RequestRefused(http.HTTPStatus.NOT_FOUND, f"{what} is not known")
