# SPDX-License-Identifier: Apache-2.0
"""Reads images, and what acstor made of them, from Glance by range requests as a service user.

The rule: what is attached was checked.  Asking for a blob's size asks Glance for
the image's record: it must be active and of a disk format that is read here, and an
artefact must be its own (:mod:`acstor_common.image.artefacts`), whatever its properties
claim.  Reads only read: guests go on with an image that was deactivated meanwhile, by the next
worker too.

Tokens come from keystoneauth, which blocks and therefore works in threads of its
own; bytes come over the connections of http_pool.py.
"""

import collections
import dataclasses
import functools
import logging
import re
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

import msgspec
import trio
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from oslo_config import cfg
from oslo_config import types

from acstor_agent.sources import base
from acstor_agent.sources import blocking_threads
from acstor_agent.sources import driver
from acstor_agent.sources import keystone_auth
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids

LOG = logging.getLogger(__name__)
GROUP = "source_glance"
SIGN_IN_THREADS = 2
RECORD_LIMIT_BYTES = 1 << 20
PLACES_LIMIT = 4096
INTERFACES = ("internal", "public")
"""Whose URL in the catalog is taken, the preferred first: DevStack has public ones alone."""
_SOME_INTERFACES = re.compile(r"^(internal|public|admin)(\s*,\s*(internal|public|admin))*$")
STREAMS = 6
"""Blobs that are read whole at a time, with connections of their own."""
STREAM_SILENCE_S = 30.0
"""So long Glance may be silent in the midst of a whole blob: to begin it again costs all of it."""
NO_RANGES_S = 300.0
"""For how long reads do not ask Glance for ranges that it does not give; who attaches asks anew."""
_NEW = frozenset({image_record.ACTIVE})
_IN_USE = frozenset({image_record.ACTIVE, image_record.DEACTIVATED})
"""Of images that are attached, and of those whose guests read on."""
ARTEFACTS = {
    base.BlobKind.CHUNK_MAP: (artefacts.Kind.CHUNK_MAP, chunk_map.VERSION),
    base.BlobKind.BOOT_IMAGE: (artefacts.Kind.BOOT_IMAGE, boot_image.VERSION),
}
CONVERTED = (artefacts.Kind.CONVERTED, artefacts.CONVERTED_VERSION)
"""What is read instead of an image of a format that is not read as it is."""
NO_RANGES = (
    "the store that holds the image does no range reads (Glance answered {status}): only file and "
    "cinder stores do. Where acstor-glance-gateway runs name the source gateway as well; or let "
    "Glance copy the image to a file store (import method copy-image)"
)
NOT_SEEN = (
    "Glance has no such image, or none that the service user may see: private images of other "
    "projects need the role acstor-reader and its policies"
)

T = TypeVar("T")


class ServiceEndpoint(NamedTuple):
    """What a request to Glance needs from Keystone.

    :param files: URL below which the bytes of images are, each as ``<its id>/file``
    """

    token: str
    endpoint: str
    project_id: str
    files: str


class Place(NamedTuple):
    """Where Glance has the bytes of a blob."""

    glance_id: ids.ImageId
    size_bytes: int
    os_hash: chunk_map.OsHash

    @classmethod
    def from_record(cls, record: image_record.Record, glance_id: ids.ImageId) -> "Place":
        """Return the place that Glance's record of it describes."""
        return cls(glance_id, image_record.size_bytes_of(record), image_record.os_hash_of(record))


class NoRanges(NamedTuple):
    """What is remembered of a blob of which Glance gives no ranges.

    :param until_s: so long reads do not ask for one
    """

    until_s: float
    why: str


class GlanceSource(driver.Driver):
    """The images of a cloud's Glance.

    :param session: a session of keystoneauth that signs in as the service user
    :param endpoint: Glance's URL; that of the catalog if None
    :param interfaces: which of the catalog's URLs are taken, the preferred first
    """

    group_name = GROUP

    def __init__(
        self,
        session: keystone_session.Session,
        limits: http_pool.Limits | None = None,
        endpoint: str | None = None,
        region_name: str | None = None,
        interfaces: Sequence[str] = INTERFACES,
    ) -> None:
        self._session, self._endpoint = session, endpoint
        self._region_name, self._interfaces = region_name, list(interfaces)
        limits = limits or http_pool.Limits()
        self._link = http_pool.HttpPool(self.group_name, limits)
        patient = max(limits.timeout_s, STREAM_SILENCE_S)
        self._streams = http_pool.HttpPool(
            self.group_name,
            dataclasses.replace(limits, connections=STREAMS, timeout_s=patient),
        )
        self._threads = blocking_threads.Threads(
            lambda: f"Keystone, for {self._where}", SIGN_IN_THREADS
        )
        self._places: collections.OrderedDict[base.Blob, Place] = collections.OrderedDict()
        self._no_ranges: collections.OrderedDict[base.Blob, NoRanges] = collections.OrderedDict()
        self._where = endpoint or "Glance"

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_glance``."""
        return [
            *keystone_auth.options(),
            cfg.StrOpt(
                "endpoint_override",
                help="Glance's URL without the version; the one of Keystone's catalog by default.",
            ),
            cfg.StrOpt("region_name", help="Region whose Glance is taken from the catalog."),
            cfg.Opt(
                "valid_interfaces",
                type=types.String(regex=_SOME_INTERFACES),
                default=",".join(INTERFACES),
                deprecated_name="interface",
                help="Which of the catalog's URLs of Glance is taken: the first of these that it "
                "has. They are internal, public and admin, with commas between them.",
            ),
            *http_pool.options(),
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "GlanceSource":
        """Make the source from the group ``source_glance``."""
        limits = http_pool.limits_of(group)
        session = keystone_session.Session(
            auth=keystone_auth.auth(group, cls.group_name),
            timeout=limits.timeout_s,
            verify=limits.ca_file or True,
        )
        return cls(
            session,
            limits,
            group.endpoint_override,
            group.region_name,
            interfaces_of(group),
        )

    @property
    def where(self) -> str:
        """Glance's URL, when it is known."""
        return self._where

    @property
    def in_flight(self) -> int:
        """One request per connection."""
        return self._link.connections

    async def size_bytes(self, blob: base.Blob) -> int:
        """Check that the blob may be used now, and return its size.

        A range of one byte is read, which shows whether the image's store does ranges.
        """
        return (await self._look(blob, f"the size of {blob.name}", _NEW)).size_bytes

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Do the same, for a blob of an image that was deactivated, too.

        The stamp is the id of what holds the bytes: what Glance holds under it never changes.
        """
        return await self._look(blob, f"a look at {blob.name}", _IN_USE)

    async def _look(self, blob: base.Blob, what: str, statuses: frozenset[str]) -> base.BlobState:
        place = await self._find(blob, what, statuses)
        try:
            if place.size_bytes == 0:
                return base.BlobState(0, place.glance_id)
            ask = self._link.size_bytes
            size_bytes = await self._of_file(blob, what, place, 0, 1, ask)
            return base.BlobState(size_bytes, place.glance_id)
        except errors.ChunkMissing:
            self._places.pop(blob, None)  # its bytes come from another source, if from any
            raise

    async def fill_run(self, run: driver.Run) -> None:
        """Read the run with one request; what is gone from its place is looked for next time."""
        blob, what = run.blob, run.what
        known = self._no_ranges.get(blob)
        if known is not None and trio.current_time() < known.until_s:
            raise errors.ChunkRefused(what, self._where, known.why)
        place = self._places.get(blob) or await self._find(blob, what, _IN_USE)
        if blob in self._places:  # what guests read is not what is forgotten
            self._places.move_to_end(blob)
        if place.size_bytes == 0:
            raise errors.ChunkMissing(what, self._where, "the image is empty")
        try:
            ask = functools.partial(self._link.fill_run, run)
            await self._of_file(blob, what, place, run.offset, run.length, ask)
        except http_range.RangeRefused as error:
            if error.status == 404 and place.glance_id != blob.image_id:
                self._places.pop(blob, None)  # another one may have taken its place
            raise

    def lacks_ranges(self, blob: base.Blob) -> bool:
        """Say whether Glance had no ranges of a blob when it was asked for one last."""
        return blob in self._no_ranges

    def known_location(self, blob: base.Blob) -> Place | None:
        """Return where a blob is, if that is known since it was looked for last."""
        return self._places.get(blob)

    async def find(self, blob: base.Blob, *, is_in_use: bool) -> Place:
        """Ask Glance where a blob is, and whether it may be used now.

        :param is_in_use: guests read it: it may be of an image that was deactivated
        :raises errors.ChunkUnavailable: it may not, or Glance does not say
        """
        what = f"the place of {blob.name}"
        return await self._find(blob, what, _IN_USE if is_in_use else _NEW)

    async def download_blob(self, blob: base.Blob, place: Place, take: http_pool.Take) -> None:
        """Give ``take`` all of a blob, part by part, as every store gives it.

        :raises errors.ChunkUnavailable: it cannot be had, or not all of it
        """
        what = f"all of {blob.name}"

        async def pour(ticket: ServiceEndpoint) -> None:
            url = f"{ticket.endpoint}/v2/images/{place.glance_id}/file"
            asked, headers = (
                http_range.RangeRequest(what, url, 0, 0),
                {"X-Auth-Token": ticket.token},
            )
            await self._streams.download_blob(asked, headers, place.size_bytes, take)

        try:
            await self._signed_in(what, pour)
        except http_range.RangeRefused as error:
            if error.status == 404:
                self._places.pop(blob, None)  # another one may have taken its place
            raise

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return Glance's hash of what it stores."""
        place = self._places.get(blob)
        return place.os_hash if place else chunk_map.UNKNOWN_OS_HASH

    def source_health(self) -> base.Health:
        """Return how many calls of Keystone and of the resolver hang."""
        hanging = self._threads.hanging, self._link.hanging, self._streams.hanging
        return base.Health(sum(one.calls for one in hanging), max(one.for_s for one in hanging))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._link.aclose()
        await self._streams.aclose()

    async def _of_file(
        self,
        blob: base.Blob,
        what: str,
        place: Place,
        offset: int,
        length: int,
        ask: Callable[[http_range.RangeRequest, dict[str, str]], Awaitable[T]],
    ) -> T:
        """Ask for a range of what Glance stores."""

        async def ask_for_range(ticket: ServiceEndpoint) -> T:
            url = f"{ticket.files}/{place.glance_id}/file"
            asked = http_range.RangeRequest(what, url, offset, length)
            return await ask(asked, {"X-Auth-Token": ticket.token})

        try:
            answer = await self._signed_in(what, ask_for_range)
        except http_range.RangeRefused as error:
            why = await self._why_refused(blob, place, error)
            if not why:
                raise
            raise errors.ChunkRefused(what, error.where, why) from error
        self._no_ranges.pop(blob, None)
        return answer

    async def _why_refused(
        self, blob: base.Blob, place: Place, error: http_range.RangeRefused
    ) -> str:
        """Say what a refusal of a range means, and what to do; empty: nothing beyond its words."""
        is_inside = error.asked.offset + error.asked.length <= place.size_bytes
        if error.status not in (200, 400) and not (error.status == 416 and is_inside):
            return ""
        why = NO_RANGES.format(status=error.status)
        self._no_ranges[blob] = NoRanges(trio.current_time() + NO_RANGES_S, why)
        while len(self._no_ranges) > PLACES_LIMIT:
            self._no_ranges.popitem(last=False)
        return why

    async def _find(self, blob: base.Blob, what: str, statuses: frozenset[str]) -> Place:
        """Ask Glance where the bytes of ``blob`` are, and whether they may be used."""
        self._places.pop(blob, None)
        image = await self._record(blob.image_id, what)
        if why := _why_not_served(image, statuses):
            raise errors.ChunkRefused(what, self._where, why)
        place = Place.from_record(image, blob.image_id)
        if blob.kind in ARTEFACTS:
            place = await self._find_artefact(image, *ARTEFACTS[blob.kind], what)
        elif image_record.is_convertible(image):
            place = await self._find_artefact(image, *CONVERTED, what)
        self._places[blob] = place
        while len(self._places) > PLACES_LIMIT:
            self._places.popitem(last=False)
        return place

    async def _find_artefact(
        self, image: image_record.Record, kind: artefacts.Kind, version: int, what: str
    ) -> Place:
        artefact_id = artefacts.pointer_of(image, kind)
        if artefact_id is None:
            state = artefacts.state_of(image)
            why = f"the image has no {kind.value} yet" + (f" (its state: {state})" if state else "")
            raise errors.ChunkMissing(what, self._where, why)
        artefact = await self._record(artefact_id, what)
        project_id = (await self._pass(what)).project_id
        try:
            artefacts.check_belongs(image, artefact, kind, project_id, version)
        except errors.ForeignArtefact as error:
            LOG.warning("%s", error)
            raise errors.ChunkMissing(what, self._where, str(error)) from error
        return Place.from_record(artefact, artefact_id)

    async def _record(self, image_id: ids.ImageId, what: str) -> image_record.Record:
        """Return what Glance says of an image."""

        async def ask_glance(ticket: ServiceEndpoint) -> image_record.Record:
            asked = http_range.RangeRequest(what, f"{ticket.endpoint}/v2/images/{image_id}", 0, 0)
            async with self._link.send_request(asked, {"X-Auth-Token": ticket.token}) as answer:
                if answer.status != 200:
                    raise http_range.refusal(asked, answer.status)
                text = await answer.read_body(RECORD_LIMIT_BYTES)
            try:
                return msgspec.json.decode(text, type=dict)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise asked.transient_error(
                    f"the answer is no record of an image: {error}"
                ) from error

        try:
            return await self._signed_in(what, ask_glance)
        except http_range.RangeRefused as error:
            if error.status == 404:
                raise errors.ChunkMissing(what, error.where, NOT_SEEN) from error
            raise

    async def _signed_in(self, what: str, ask: Callable[[ServiceEndpoint], Awaitable[T]]) -> T:
        """Ask with a token; once more with a new one, if Glance does not take it any more."""
        ticket = await self._pass(what)
        try:
            return await ask(ticket)
        except http_range.RangeRefused as error:
            if error.status != 401:
                raise
        return await ask(await self._pass(what, refused=ticket.token))

    async def _pass(self, what: str, refused: str | None = None) -> ServiceEndpoint:
        """Return what a request needs; keystoneauth signs in again only if it has to.

        :param refused: a token that Glance did not take
        """
        try:
            ticket = await self._threads.run(what, None, lambda: self._sign_in(refused))
        except (exceptions.ConnectionError, exceptions.HttpServerError) as error:
            why = f"Keystone is unreachable: {error}"
            raise errors.SourceUnreachable(what, self._where, why) from error
        except exceptions.ClientException as error:
            why = f"Keystone refuses the credentials: {error}. See [{self.group_name}]"
            raise errors.SourceRefused(what, self._where, why) from error
        self._where = ticket.endpoint
        return ticket

    def _sign_in(self, refused: str | None) -> ServiceEndpoint:
        """Do what blocks."""
        if refused is not None and self._session.get_token() == refused:
            self._session.invalidate()
        token = self._session.get_token()
        endpoint = self._endpoint or self._url_of("image", "an image service")
        project_id = self._session.get_project_id() or ""
        endpoint = endpoint.rstrip("/").removesuffix("/v2")
        return ServiceEndpoint(token or "", endpoint, project_id, f"{endpoint}/v2/images")

    def _url_of(self, service_type: str, what: str) -> str:
        """Return the catalog's URL of a service.

        :raises exceptions.EndpointNotFound: there is none; says what was looked for
        """
        url = self._session.get_endpoint(
            service_type=service_type, region_name=self._region_name, interface=self._interfaces
        )
        if not url:
            region = f" in the region {self._region_name}" if self._region_name else ""
            raise exceptions.EndpointNotFound(
                f"its catalog has no URL of {what} (service type {service_type}){region} with the "
                f"interface {' or '.join(self._interfaces)} ([{GROUP}] valid_interfaces)"
            )
        return str(url)


def interfaces_of(group: cfg.ConfigOpts.GroupAttr) -> list[str]:
    """Return which of the catalog's URLs a group of options wants, the preferred first."""
    return [name.strip() for name in group.valid_interfaces.split(",")]


def _why_not_served(image: image_record.Record, statuses: frozenset[str]) -> str:
    status = image_record.text_of(image, "status")
    if status not in statuses:
        return f"the image's status is {status or 'unknown'}, not active"
    return image_record.why_format_not_served(image)
