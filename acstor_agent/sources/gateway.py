# SPDX-License-Identifier: Apache-2.0
"""Reads images through acstor's gateway, which serves ranges of all images.

Records come from Glance, as for the source ``glance``. Configured after ``glance``, the gateway is
asked only for images of which Glance serves no ranges.
"""

import copy

import msgspec
from keystoneauth1 import session as keystone_session
from oslo_config import cfg
from oslo_config import types

from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_agent.sources import keystone_auth
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_common import errors

GROUP = "source_gateway"
SERVICE_TYPE = "acstor-gateway"
WORDS_LIMIT_BYTES = 16 << 10
CONFLICT = 409


class Error(msgspec.Struct):
    """The gateway's reason for a refusal."""

    message: str = ""


class Fault(msgspec.Struct):
    """The body of a refusal."""

    error: Error


class GatewaySource(glance.GlanceSource):
    """A cloud's images, read through its gateway; ``url`` None: from the catalog."""

    group_name = GROUP

    def __init__(
        self,
        session: keystone_session.Session,
        limits: http_pool.HttpLimits | None = None,
        endpoint: str | None = None,
        catalog: keystone_auth.Catalog = keystone_auth.DEFAULT_CATALOG,
        url: str | None = None,
    ) -> None:
        super().__init__(session, limits, endpoint, catalog)
        self._url = url
        self._where = url or "the gateway"

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_gateway``."""
        url = cfg.StrOpt(
            "url",
            help="URL of acstor-glance-gateway; by default the one of Keystone's catalog (service "
            f"type {SERVICE_TYPE}).",
        )
        return [url, *(_as_of_glance(option) for option in super().options())]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "GatewaySource":
        """Create the source from the group ``source_gateway``."""
        return cls(*cls._conf_arguments(group), url=group.url)

    async def _why_refused(
        self, blob: base.Blob, location: glance.BlobLocation, error: http_range.RangeRefused
    ) -> str:
        """Ask again for the text of a refusal, which names the store and its fault."""
        if error.status != CONFLICT:
            return ""
        asked = http_range.RangeRequest(error.what, error.where, 0, 1)

        async def ask(ticket: glance.ServiceEndpoint) -> bytes:
            async with self._link.send_request(asked, {"X-Auth-Token": ticket.token}) as answer:
                return await answer.read_body(WORDS_LIMIT_BYTES)

        try:
            said = msgspec.json.decode(await self._signed_in(error.what, ask), type=Fault)
        except (errors.ChunkUnavailable, msgspec.DecodeError, UnicodeError):
            return ""
        return said.error.message

    async def _pass(self, what: str, refused: str | None = None) -> glance.ServiceEndpoint:
        ticket = await super()._pass(what, refused)
        self._where = ticket.files.removesuffix("/v1/images")
        return ticket

    def _sign_in(self, refused: str | None) -> glance.ServiceEndpoint:
        ticket = super()._sign_in(refused)
        url = self._url or self._catalog.url_of(self._session, SERVICE_TYPE, "a gateway")
        files = f"{url.rstrip('/').removesuffix('/v1')}/v1/images"
        return ticket._replace(files=files, query="")  # it goes by the weights of its own stores


def _as_of_glance(option: cfg.Opt) -> cfg.Opt:
    own = copy.copy(option)
    if option.type is str or isinstance(option.type, types.String):
        own.default = f"${{{glance.GROUP}.{option.dest}}}"
        own.help = f"{option.help} As [{glance.GROUP}] says by default."
    return own
