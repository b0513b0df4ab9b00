# SPDX-License-Identifier: Apache-2.0
"""Reads images through acstor's gateway, which serves ranges of all images.

Records come from Glance, as for the source ``glance``; configured after that, the gateway is asked
only for images of which Glance serves no ranges. If the user has the role ``acstor-host``, records
come from the gateway, and each request has a grant of the decision service (``host_grants``).
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import msgspec
from keystoneauth1 import identity
from keystoneauth1 import session as keystone_session
from oslo_config import cfg
from oslo_config import types

from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_agent.sources import host_grants
from acstor_agent.sources import keystone_auth
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.service import session_options
from acstor_common.wire import image_grants

GROUP = "source_gateway"
SERVICE_TYPE = "acstor-gateway"
WORDS_LIMIT_BYTES = 16 << 10
FORBIDDEN, CONFLICT = 403, 409
NO_BUS = "a user with the role acstor-host reads by grants, which need [DEFAULT] transport_url"


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
        self._grants: host_grants.HostGrants | None = None

    def use_grants(self, grants: host_grants.HostGrants | None) -> None:
        """Use this host's grants if the user needs them."""
        self._grants = grants

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
        if error.status not in (FORBIDDEN, CONFLICT):
            return ""
        asked = http_range.RangeRequest(error.what, error.where, 0, 1)

        async def ask(ticket: glance.ServiceEndpoint) -> bytes:
            headers = await self._headers(ticket, asked, blob.image_id, location.glance_id)
            async with self._pool.send_request(asked, headers) as answer:
                return await answer.read_body(WORDS_LIMIT_BYTES)

        try:
            fault = msgspec.json.decode(await self._signed_in(error.what, ask), type=Fault)
        except (errors.ChunkUnavailable, msgspec.DecodeError, UnicodeError):
            return ""
        return fault.error.message

    async def _pass(self, what: str, refused: str | None = None) -> glance.ServiceEndpoint:
        ticket = await super()._pass(what, refused)
        self._where = ticket.files.removesuffix("/v1/images")
        return ticket

    def _sign_in(self, refused: str | None) -> glance.ServiceEndpoint:
        ticket = super()._sign_in(refused)
        url = self._url or self._catalog.url_of(self._session, SERVICE_TYPE, "a gateway")
        files = f"{session_options.unversioned(url)}/v1/images"
        ticket = ticket._replace(files=files, query="")  # it goes by the weights of its own stores
        return ticket._replace(records=files, has_grants=True) if self._has_grants() else ticket

    def _has_grants(self) -> bool:
        auth = self._session.auth
        if not isinstance(auth, identity.BaseIdentityPlugin):
            return False
        return image_grants.HOST_ROLE in (auth.get_access(self._session).role_names or ())

    async def _headers(
        self,
        ticket: glance.ServiceEndpoint,
        asked: http_range.RangeRequest,
        image_id: ids.ImageId,
        glance_id: ids.ImageId,
    ) -> dict[str, str]:
        headers = await super()._headers(ticket, asked, image_id, glance_id)
        if not ticket.has_grants:
            return headers
        if self._grants is None:
            raise errors.SourceRefused(asked.what, self._where, NO_BUS)
        path = "/v1" + asked.where.removeprefix(ticket.files.removesuffix("/images"))
        target = image_grants.target_of(path, asked.header if asked.length else "")
        return headers | await self._grants.headers_of(asked.what, image_id, target)

    async def _of_file(
        self, blob: base.Blob, what: str, location: glance.BlobLocation, *more: Any
    ) -> Any:
        with self._forgetting_refused(blob.image_id):
            return await super()._of_file(blob, what, location, *more)

    async def _record(
        self, image_id: ids.ImageId, what: str, of_image: ids.ImageId | None = None
    ) -> image_record.Image:
        with self._forgetting_refused(of_image or image_id):
            return await super()._record(image_id, what, of_image)

    @contextlib.contextmanager
    def _forgetting_refused(self, image_id: ids.ImageId) -> Iterator[None]:
        try:
            yield
        except errors.ChunkRefused:
            if self._grants is not None:
                self._grants.forget_refused(image_id)
            raise


def _as_of_glance(option: cfg.Opt) -> cfg.Opt:
    own = copy.copy(option)
    if option.type is str or isinstance(option.type, types.String):
        own.default = f"${{{glance.GROUP}.{option.dest}}}"
        own.help = f"{option.help} The default is that of [{glance.GROUP}]."
    return own
