# SPDX-License-Identifier: Apache-2.0
"""Reads images and their artefacts from Glance by range requests.

Attaching checks an image's record: active, a supported disk format, artefacts of its own; reads do
not, so guests continue with a deactivated image. keystoneauth blocks, so it runs in threads.
"""

import dataclasses
import functools
import logging
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

import msgspec
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import blocking_threads
from acstor_agent.sources import driver
from acstor_agent.sources import keystone_auth
from acstor_agent.sources import range_refusals
from acstor_agent.sources import store_preference
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_agent.sources.http_client import http_response
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_common.service import session_options
from acstor_common.util import lru_table

LOG = logging.getLogger(__name__)
GROUP = "source_glance"
SIGN_IN_THREADS = 2
RECORD_LIMIT_BYTES = 1 << 20
LOCATIONS_LIMIT = 4096
STREAMS = 6  # concurrent whole downloads, on connections of their own
STREAM_SILENCE_S = 30.0  # in a whole download, which must restart from the beginning
_NEW = frozenset({image_record.ACTIVE})  # statuses of images to attach
_IN_USE = frozenset({image_record.ACTIVE, image_record.DEACTIVATED})  # and of those in use
ARTEFACTS = {
    base.BlobKind.CHUNK_MAP: (artefacts.Kind.CHUNK_MAP, chunk_map.VERSION),
    base.BlobKind.BOOT_IMAGE: (artefacts.Kind.BOOT_IMAGE, boot_image.VERSION),
}
CONVERTED = (artefacts.Kind.CONVERTED, artefacts.CONVERTED_VERSION)  # of other formats
NOT_SEEN = (
    "Glance has no such image, or none that the service user may see: private images of other "
    "projects need the role acstor-reader and its policies"
)

T = TypeVar("T")


class ServiceEndpoint(NamedTuple):
    """Token and URLs for requests to Glance."""

    token: str
    endpoint: str
    project_id: str
    files: str  # URL below which the bytes of images are
    query: str = ""  # names preferred stores
    records: str = ""  # URL below which the records of images are
    has_grants: bool = False  # requests need a grant


class BlobLocation(NamedTuple):
    """Where Glance has the bytes of a blob."""

    glance_id: ids.ImageId
    size_bytes: int
    os_hash: chunk_map.OsHash

    @classmethod
    def from_image(cls, image: image_record.Image) -> "BlobLocation":
        """Return the place of an image's own bytes."""
        return cls(image.id, image.size_bytes, image.os_hash)


class GlanceSource(driver.Driver):
    """The images of a cloud's Glance; ``endpoint`` None: from the catalog."""

    group_name = GROUP

    def __init__(
        self,
        session: keystone_session.Session,
        limits: http_pool.HttpLimits | None = None,
        endpoint: str | None = None,
        catalog: keystone_auth.Catalog = keystone_auth.DEFAULT_CATALOG,
        *,
        range_retry_s: float = range_refusals.RETRY_S,
    ) -> None:
        self._session, self._endpoint = session, endpoint
        self._catalog = catalog
        limits = limits or http_pool.HttpLimits()
        self._pool = http_pool.HttpPool(self.group_name, limits)
        patient = max(limits.timeout_s, STREAM_SILENCE_S)
        self._streams = http_pool.HttpPool(
            self.group_name, dataclasses.replace(limits, connections=STREAMS, timeout_s=patient)
        )
        self._locations = lru_table.LruTable[base.Blob, BlobLocation](LOCATIONS_LIMIT)
        self._range_refusals = range_refusals.RangeRefusals(range_retry_s)
        self._where = endpoint or "Glance"
        self._threads = blocking_threads.BlockingThreads(
            f"Keystone, for {self._where}", SIGN_IN_THREADS
        )
        self._sign_ins = keystone_auth.SerialCalls()
        self._preference = store_preference.StorePreference()

    def prefer_location(self, levels: Sequence[str]) -> None:
        """Prefer the stores whose names are levels of the host's location."""
        self._preference = store_preference.StorePreference(levels)

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_glance``."""
        return [
            *keystone_auth.options(),
            cfg.StrOpt(
                "endpoint_override",
                help="Glance's URL without the version; the one of Keystone's catalog by default.",
            ),
            *keystone_auth.catalog_options(),
            *http_pool.options(),
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "GlanceSource":
        """Create the source from the group ``source_glance``."""
        return cls(*cls._conf_arguments(group))

    @classmethod
    def _conf_arguments(
        cls, group: cfg.ConfigOpts.GroupAttr
    ) -> tuple[keystone_session.Session, http_pool.HttpLimits, str | None, keystone_auth.Catalog]:
        limits = http_pool.limits_of(group)
        session = keystone_session.Session(
            auth=keystone_auth.auth(group, cls.group_name),
            timeout=limits.timeout_s,
            verify=limits.ca_file or True,
        )
        bounded_responses.bound(session)
        catalog = keystone_auth.Catalog.from_conf(group)
        return session, limits, group.endpoint_override or None, catalog

    @property
    def location(self) -> str:
        """Glance's URL, once it is known."""
        return self._where

    @property
    def max_concurrent_reads(self) -> int:
        """The limit of connections, each with one request at a time."""
        return self._pool.connections

    async def size_bytes(self, blob: base.Blob) -> int:
        """Check that the blob may be attached, read one byte of it, and return its size."""
        return (await self._look(blob, f"the size of {blob.file_name}", _NEW)).size_bytes

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Do as :meth:`size_bytes`, also for deactivated images; the stamp is Glance's ID."""
        return await self._look(blob, f"the state of {blob.file_name}", _IN_USE)

    async def _look(self, blob: base.Blob, what: str, statuses: frozenset[str]) -> base.BlobState:
        location = await self._find(blob, what, statuses)
        try:
            if location.size_bytes == 0:
                return base.BlobState(0, location.glance_id)
            ask = self._pool.size_bytes
            size_bytes = await self._of_file(blob, what, location, 0, 1, ask)
            return base.BlobState(size_bytes, location.glance_id)
        except errors.ChunkMissing:
            self._locations.pop(blob, None)  # its bytes may come from another source
            raise

    async def fill_run(self, run: driver.BlobRun) -> None:
        """Read the run with one request; after 404 the next read looks the blob up again."""
        blob, what = run.blob, run.description
        if why := self._range_refusals.why_not_asked(blob):
            raise errors.ChunkRefused(what, self._where, why)
        location = self._locations.get_as_used(blob) or await self._find(blob, what, _IN_USE)
        if location.size_bytes == 0:
            raise errors.ChunkMissing(what, self._where, "the image is empty")
        try:
            ask = functools.partial(self._pool.fill_run, run)
            await self._of_file(blob, what, location, run.offset, run.length, ask)
        except http_range.RangeRefused as error:
            if error.status == 404 and location.glance_id != blob.image_id:
                self._locations.pop(blob, None)  # it may have been replaced
            raise

    def lacks_ranges(self, blob: base.Blob) -> bool:
        """Return whether Glance refused a range of a blob last time."""
        return blob in self._range_refusals

    def cached_location(self, blob: base.Blob) -> BlobLocation | None:
        """Return the location of a blob from the last look-up."""
        return self._locations.get(blob)

    async def find(self, blob: base.Blob, *, is_in_use: bool) -> BlobLocation:
        """Look up a blob in Glance, and check that it may be used.

        :param is_in_use: accept a deactivated image
        :raises errors.ChunkUnavailable: it may not, or Glance is unreachable
        """
        what = f"a look-up of {blob.file_name}"
        return await self._find(blob, what, _IN_USE if is_in_use else _NEW)

    async def download_blob(
        self, blob: base.Blob, location: BlobLocation, receive: http_response.ReceivePart
    ) -> None:
        """Pass a whole blob to ``receive`` in parts, from any store, or raise ChunkUnavailable."""
        what = f"the data of {blob.file_name}"

        async def pour(ticket: ServiceEndpoint) -> None:
            query = self._preference.query_of(blob, ticket.query)
            url = f"{ticket.endpoint}/v2/images/{location.glance_id}/file{query}"
            asked = http_range.RangeRequest(what, url, 0, 0)
            headers = await self._headers(ticket, asked, blob.image_id, location.glance_id)
            await self._streams.download_blob(asked, headers, location.size_bytes, receive)

        try:
            await self._signed_in(what, pour)
        except http_range.RangeRefused as error:
            if self._preference.suspend(blob, error):
                return await self.download_blob(blob, location, receive)
            if error.status == 404:
                self._locations.pop(blob, None)  # it may have been replaced
            raise

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return Glance's hash of the stored bytes."""
        location = self._locations.get(blob)
        return location.os_hash if location else chunk_map.UNKNOWN_OS_HASH

    def source_health(self) -> base.Health:
        """Return how many calls of Keystone and of the resolver hang."""
        hanging = self._threads.hanging, self._pool.hanging, self._streams.hanging
        return base.Health(sum(call.calls for call in hanging), max(call.for_s for call in hanging))

    @property
    def rtt_s(self) -> float:
        """Least round-trip time of the connections for ranges."""
        return self._pool.rtt_s

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()
        await self._streams.aclose()

    async def _of_file(
        self,
        blob: base.Blob,
        what: str,
        location: BlobLocation,
        offset: int,
        length: int,
        ask: Callable[[http_range.RangeRequest, dict[str, str]], Awaitable[T]],
    ) -> T:
        async def ask_for_range(ticket: ServiceEndpoint) -> T:
            query = self._preference.query_of(blob, ticket.query)
            url = f"{ticket.files}/{location.glance_id}/file{query}"
            asked = http_range.RangeRequest(what, url, offset, length)
            headers = await self._headers(ticket, asked, blob.image_id, location.glance_id)
            return await ask(asked, headers)

        try:
            answer = await self._signed_in(what, ask_for_range)
        except http_range.RangeRefused as error:
            if self._preference.suspend(blob, error):
                return await self._of_file(blob, what, location, offset, length, ask)
            why = await self._why_refused(blob, location, error)
            if not why:
                raise
            raise errors.ChunkRefused(what, error.where, why) from error
        self._range_refusals.clear_refusal(blob)
        return answer

    async def _why_refused(
        self, blob: base.Blob, location: BlobLocation, error: http_range.RangeRefused
    ) -> str:
        """Return what a refusal of a range means, and the remedy; empty: nothing to add."""
        return self._range_refusals.record_refusal(blob, location.size_bytes, error)

    async def _find(self, blob: base.Blob, what: str, statuses: frozenset[str]) -> BlobLocation:
        self._locations.pop(blob, None)
        image = await self._record(blob.image_id, what)
        if why := _why_not_served(image, statuses):
            raise errors.ChunkRefused(what, self._where, why)
        location = BlobLocation.from_image(image)
        if blob.kind in ARTEFACTS:
            location = await self._find_artefact(image, *ARTEFACTS[blob.kind], what)
        elif image.is_convertible:
            location = await self._find_artefact(image, *CONVERTED, what)
        self._locations[blob] = location
        return location

    async def _find_artefact(
        self, image: image_record.Image, kind: artefacts.Kind, version: int, what: str
    ) -> BlobLocation:
        artefact_id = artefacts.pointer_of(image, kind)
        if artefact_id is None:
            state = artefacts.state_of(image)
            why = f"the image has no {kind.value} yet" + (f" (its state: {state})" if state else "")
            raise errors.ChunkMissing(what, self._where, why)
        artefact = await self._record(artefact_id, what, of_image=image.id)
        project_id = (await self._pass(what)).project_id
        try:
            artefacts.check_belongs(image, artefact, kind, project_id, version)
        except errors.ForeignArtefact as error:
            LOG.warning("%s", error)
            raise errors.ChunkMissing(what, self._where, str(error)) from error
        return BlobLocation.from_image(artefact)

    async def _headers(
        self,
        ticket: ServiceEndpoint,
        asked: http_range.RangeRequest,
        image_id: ids.ImageId,
        glance_id: ids.ImageId,
    ) -> dict[str, str]:
        """Return headers for a request of an image, or of its artefact ``glance_id``."""
        return {"X-Auth-Token": ticket.token}

    async def _record(
        self, image_id: ids.ImageId, what: str, of_image: ids.ImageId | None = None
    ) -> image_record.Image:
        async def ask_glance(ticket: ServiceEndpoint) -> image_record.Image:
            asked = http_range.RangeRequest(what, f"{ticket.records}/{image_id}", 0, 0)
            headers = await self._headers(ticket, asked, of_image or image_id, image_id)
            async with self._pool.send_request(asked, headers) as answer:
                if answer.status != 200:
                    raise http_range.status_error(asked, answer.status)
                text = await answer.read_body(RECORD_LIMIT_BYTES)
            try:
                return image_record.Image.from_record(msgspec.json.decode(text, type=dict))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise asked.transient_error(
                    f"the answer is not an image record: {error}"
                ) from error

        try:
            return await self._signed_in(what, ask_glance)
        except http_range.RangeRefused as error:
            if error.status == 404:
                raise errors.ChunkMissing(what, error.where, NOT_SEEN) from error
            raise

    async def _signed_in(self, what: str, ask: Callable[[ServiceEndpoint], Awaitable[T]]) -> T:
        """Call ``ask`` with a token, and again with a new one after 401."""
        ticket = await self._pass(what)
        try:
            return await ask(ticket)
        except http_range.RangeRefused as error:
            if error.status != 401:
                raise
        return await ask(await self._pass(what, refused=ticket.token))

    async def _pass(self, what: str, refused: str | None = None) -> ServiceEndpoint:
        """Return token and URLs; authenticates if needed, or if a token was ``refused``."""
        sign_in = functools.partial(self._sign_ins.run_call, self._sign_in, refused)
        try:
            ticket = await self._threads.run(what, None, sign_in)
        except (exceptions.ConnectionError, exceptions.HttpServerError) as error:
            why = f"Keystone is unreachable: {error}"
            raise errors.SourceUnreachable(what, self._where, why) from error
        except exceptions.ClientException as error:
            why = f"Keystone refuses the credentials: {error}. See [{self.group_name}]"
            raise errors.SourceRefused(what, self._where, why) from error
        self._where = ticket.endpoint
        self._threads.location = f"Keystone, for {self._where}"
        return ticket

    def _sign_in(self, refused: str | None) -> ServiceEndpoint:
        if refused is not None and self._session.get_token() == refused:
            self._session.invalidate()
        token = self._session.get_token()
        endpoint = self._endpoint or self._catalog.url_of(
            self._session, "image", "an image service"
        )
        project_id = self._session.get_project_id() or ""
        endpoint = session_options.unversioned(endpoint)
        query = self._preference.find_stores(self._session, token or "", endpoint)
        images = f"{endpoint}/v2/images"
        return ServiceEndpoint(token or "", endpoint, project_id, images, query, images)


def _why_not_served(image: image_record.Image, statuses: frozenset[str]) -> str:
    if image.status not in statuses:
        return f"the image's status is {image.status or 'unknown'}, not active"
    return image_record.why_format_not_served(image)
