# SPDX-License-Identifier: Apache-2.0
"""Client of Glance as acstor's service user, with acstor's errors and records; thread-safe."""

import contextlib
import heapq
import http
import itertools
import json
import logging
import operator
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import Any

import glanceclient
import requests
from glanceclient import exc as glance_errors
from keystoneauth1 import exceptions as keystone_errors
from keystoneauth1 import loading
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_common.service import session_options
from acstor_glance import conf as glance_conf

LOG = logging.getLogger(__name__)

PAGE_IMAGES = 100
PIECE_BYTES = 1 << 20
_PATCH = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
_TEMPORARY = frozenset({408, 409, 413, 429, 500, 502, 503, 504})

FORMAT_VERSIONS = {
    artefacts.Kind.CHUNK_MAP: chunk_map.VERSION,
    artefacts.Kind.BOOT_IMAGE: boot_image.VERSION,
    artefacts.Kind.CONVERTED: artefacts.CONVERTED_VERSION,
}


def session_of(conf: cfg.ConfigOpts) -> keystone_session.Session:
    """Return a session of the service user, without contacting Keystone; raises Unusable."""
    group = glance_conf.GROUP.name
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
        session = session_options.load_session(conf, group, auth)
    except (keystone_errors.ClientException, cfg.Error) as exc:
        raise errors.Unusable(
            f"[{group}]", str(exc), "See auth_type and the options that follow it"
        ) from exc
    if auth is None:
        raise errors.Unusable(
            f"[{group}] auth_type", "is not set", "Name the service user that reads the images"
        )
    bounded_responses.bound(session, bounded_responses.MAX_LIST_BYTES)
    return session


def connect(conf: cfg.ConfigOpts) -> "GlanceClient":
    """Return a client of Glance, without contacting it; raises as :func:`session_of`."""
    session = session_of(conf)
    own = conf.acstor_glance
    client = glanceclient.Client(
        "2",
        session=session,
        region_name=own.region_name,
        interface=(own.valid_interfaces or ["public"])[0],
        endpoint_override=own.endpoint_override,
    )
    return GlanceClient(client, session.get_project_id)


class GlanceClient:
    """Images and artefacts in Glance; ImageServiceError if Glance or Keystone fails or refuses."""

    def __init__(self, client: Any, find_project_id: Any) -> None:
        self._client, self._find_project_id = client, find_project_id

    @property
    def project_id(self) -> str:
        """The service user's project, which owns artefacts."""
        with translate_errors("the service user's project"):
            project_id = self._find_project_id()
        if not project_id:
            raise errors.ImageServiceRefused(
                "the service user's project", "its token has no project scope: set project_name"
            )
        return str(project_id)

    def get_image(self, image_id: str) -> image_record.Image:
        """Return an image; raises errors.ImageGone."""
        with translate_errors(f"image {image_id}"):
            return _parsed(image_id, self._client.images.get(image_id))

    def read_or_none(self, image_id: str) -> image_record.Image | None:
        """Return an image; None if it does not exist."""
        try:
            return self.get_image(image_id)
        except errors.ImageGone:
            return None

    def list_images(self, sorted_by: str = "", **filters: Any) -> Iterator[image_record.Image]:
        """Yield all images page by page, with other projects', community and hidden ones.

        :param sorted_by: ``id`` or ``name``, ascending; default: newest first, hidden ones last
        """
        everybodys = {"visibility": "all", **filters}  # the default leaves community images out
        parts = [
            self._listed(sorted_by, {"os_hidden": is_hidden, **everybodys})
            for is_hidden in ("false", "true")
        ]
        if sorted_by:
            yield from heapq.merge(*parts, key=operator.attrgetter(sorted_by))
        else:
            yield from itertools.chain(*parts)

    def _listed(self, sorted_by: str, query: dict[str, Any]) -> Iterator[image_record.Image]:
        order = {"sort_key": sorted_by, "sort_dir": "asc"} if sorted_by else {}
        with translate_errors("list of images"):
            found = self._client.images.list(page_size=PAGE_IMAGES, filters=query, **order)
            for record in found:
                with contextlib.suppress(ValueError):  # acstor has no use for other IDs
                    yield image_record.Image.from_record(record)

    def list_artefacts(
        self, of_image: str | None = None, kind: str | None = None, sorted_by: str = ""
    ) -> Iterator[image_record.Image]:
        """Yield artefacts, of one image or kind if given; sorted as :meth:`list_images`."""
        project_id = self.project_id
        filters = {"owner": project_id}
        if of_image:
            filters[artefacts.OF_IMAGE] = of_image
        if kind:
            filters[artefacts.KIND] = kind
        for record in self.list_images(sorted_by, **filters):
            if artefacts.is_artefact(record, project_id):
                yield record

    def list_project_artefacts(self, project: str) -> Iterator[image_record.Image]:
        """Yield the artefacts of a project's images."""
        filters = {"owner": self.project_id, artefacts.OF_PROJECT: project}
        for record in self.list_images(**filters):
            if artefacts.is_artefact(record, self.project_id):
                yield record

    def artefact_of(
        self, image: image_record.Image, kind: artefacts.Kind
    ) -> image_record.Image | None:
        """Return the artefact that ``image`` points to if it belongs to it, else None."""
        pointer = artefacts.pointer_of(image, kind)
        found = self.read_or_none(pointer) if pointer else None
        if found is None:
            return None
        why = artefacts.why_foreign(image, found, kind, self.project_id, FORMAT_VERSIONS[kind])
        if why:
            LOG.info("%s", errors.ForeignArtefact(image.id, kind.value, found.id, why))
            return None
        return found

    def read_converted(self, image: image_record.Image) -> image_record.Image | None:
        """Return the conversion that an image of another format points to, if any."""
        pointer = artefacts.pointer_of(image, artefacts.Kind.CONVERTED)
        is_one = pointer is not None and image.is_convertible
        return self.read_or_none(pointer) if pointer and is_one else None

    def list_locations(self, image_id: str) -> list[tuple[str, str]]:
        """Return URL (with passwords) and store of each active location; older Glances refuse."""
        with translate_errors(f"locations of image {image_id}"):
            try:
                _response, found = self._client.http_client.get(f"/v2/images/{image_id}/locations")
            except glance_errors.HTTPNotFound as exc:
                why = "Glance returns none to this user; before its API 2.17 it returns none at all"
                raise errors.ImageServiceRefused(f"locations of image {image_id}", why) from exc
        return [
            (str(place.get("url", "")), str((place.get("metadata") or {}).get("store", "")))
            for place in found or ()
            if place.get("status", image_record.ACTIVE) == image_record.ACTIVE
        ]

    def local_path(self, image: image_record.Image, folders: Sequence[str]) -> pathlib.Path | None:
        """Return an image's file if it is below one of ``folders`` and has its size."""
        try:
            locations = self.list_locations(image.id) if folders else []
        except errors.ImageServiceRefused:
            return None  # Glance is older, or hides locations from this user
        urls = (url for url, _store in locations if url.startswith("file://"))
        if not (url := next(urls, "")):
            return None
        path = pathlib.Path(url.removeprefix("file://")).resolve()
        is_below = any(path.is_relative_to(pathlib.Path(folder).resolve()) for folder in folders)
        is_whole = is_below and path.is_file() and path.stat().st_size == image.size_bytes
        return path if is_whole else None

    @contextlib.contextmanager
    def open_image_data(self, image_id: str) -> Iterator[Iterator[bytes]]:
        """Yield an iterator over the image's bytes; the block's end closes the connection."""
        what = f"bytes of image {image_id}"
        with translate_errors(what):
            # glanceclient's images.data hides the response, which then could not be closed early.
            response, _body = self._client.http_client.get(f"/v2/images/{image_id}/file")
        with contextlib.closing(response):
            yield _pieces(response, what)

    def publish_artefact(
        self,
        kind: artefacts.Kind,
        image: image_record.Image,
        file: IO[bytes],
        revision: int = 1,
        *,
        artefact_properties: Mapping[str, str] | None = None,
        image_properties: Mapping[str, str] | None = None,
    ) -> ids.ImageId:
        """Store ``file`` as an artefact, point the image to it, delete earlier ones.

        A kill leaves the old or the new artefact in force; a reconcile deletes the other.

        :param image_properties: properties of the image that change together with its pointer
        :raises ValueError: the image has no hash yet
        """
        made = artefacts.new_artefact(
            image, kind, self.project_id, FORMAT_VERSIONS[kind], revision, artefact_properties
        )
        artefact_id = self.create_image(made, file)
        try:
            self.set_properties(image.id, {kind.pointer: artefact_id, **(image_properties or {})})
        except errors.AcstorError:
            self._delete_quietly(artefact_id)
            raise
        self.delete_others(kind, image.id, artefact_id)
        return artefact_id

    def create_image(self, record: dict[str, Any], file: IO[bytes]) -> ids.ImageId:
        """Create an image with the bytes of ``file``; delete it if the upload fails."""
        image_id = self._create(record)
        try:
            with translate_errors(f"upload of {record['name']}"):
                self._client.images.upload(image_id, file)
        except errors.AcstorError:
            self._delete_quietly(image_id)
            raise
        return image_id

    def list_members(self, image_id: str) -> list[str]:
        """Return the projects with which an image is shared, accepted or not."""
        with translate_errors(f"members of image {image_id}"):
            return [str(m["member_id"]) for m in self._client.image_members.list(image_id)]

    def delete_others(self, kind: artefacts.Kind, image_id: str, artefact_id: ids.ImageId) -> None:
        """Delete an image's other artefacts of a kind, but not the one in force."""
        others = [old for old in self.list_artefacts(image_id) if artefacts.kind_of(old) is kind]
        in_force = artefacts.pointer_of(self.get_image(image_id), kind)
        for old in others:
            if old.id not in (artefact_id, in_force):
                self.delete_artefact(old.id)

    def set_properties(self, image_id: str, properties: dict[str, str]) -> None:
        """Set properties of an image; an empty value removes the property."""
        now = self.get_image(image_id)
        changes = [
            {"op": "add", "path": f"/{name}", "value": value}
            for name, value in properties.items()
            if value and now.text(name) != value
        ]
        changes += [
            {"op": "remove", "path": f"/{name}"}
            for name, value in properties.items()
            if not value and name in now.properties
        ]
        if changes:
            self._patch(image_id, changes)

    def set_protection(
        self, image: image_record.Image, tags: Sequence[str], is_protected: bool | None
    ) -> image_record.Image:
        """Set tags and protection (None: keep) of an image just read; return the changed one."""
        changes: list[dict[str, Any]] = [{"op": "replace", "path": "/tags", "value": list(tags)}]
        if is_protected is not None:
            changes.append({"op": "replace", "path": "/protected", "value": is_protected})
        try:
            return self._patch(image.id, changes)
        except errors.ImageServiceUnreachable as exc:
            if getattr(exc.__cause__, "code", None) == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise errors.ImageServiceRefused(exc.what, f"{exc.why} (too many tags?)") from exc
            raise

    def _patch(self, image_id: str, changes: Sequence[dict[str, Any]]) -> image_record.Image:
        with translate_errors(f"properties of image {image_id}"):
            _response, record = self._client.http_client.patch(
                f"/v2/images/{image_id}", headers=_PATCH, data=json.dumps(changes)
            )
        return _parsed(image_id, record)

    def delete_artefact(self, image_id: str) -> None:
        """Delete an artefact, if it still exists."""
        try:
            with translate_errors(f"image {image_id}"):
                self._client.images.delete(image_id)
        except errors.ImageGone:
            LOG.debug("image %s was already deleted", image_id)

    def _create(self, record: dict[str, Any]) -> ids.ImageId:
        with translate_errors(f"creation of {record['name']}"):
            _response, made = self._client.http_client.post("/v2/images", data=record)
        return ids.parse_image_id(made["id"])

    def _delete_quietly(self, artefact_id: str) -> None:
        try:
            self.delete_artefact(artefact_id)
        except errors.ImageServiceError as exc:
            LOG.info("left for the next reconcile: %s", exc)


def _parsed(image_id: str, record: Mapping[str, Any]) -> image_record.Image:
    try:
        return image_record.Image.from_record(record)
    except ValueError as exc:
        raise errors.ImageServiceRefused(f"image {image_id}", str(exc)) from exc


def _pieces(response: requests.Response, what: str) -> Iterator[bytes]:
    with translate_errors(what):
        yield from response.iter_content(PIECE_BYTES)


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate errors of keystoneauth, glanceclient and requests into acstor's."""
    try:
        yield
    except glance_errors.HTTPNotFound as exc:
        raise errors.ImageGone(what, "it is missing, or the service user may not see it") from exc
    except (
        glance_errors.CommunicationError,
        glance_errors.InvalidEndpoint,
        keystone_errors.ConnectionError,
        keystone_errors.CatalogException,
        keystone_errors.DiscoveryFailure,
        keystone_errors.NotFound,  # of Keystone: it says nothing of the image
        requests.exceptions.RequestException,
    ) as exc:
        raise errors.ImageServiceUnreachable(what, first_line(exc)) from exc
    except glance_errors.HTTPException as exc:
        raise _of_status(what, exc.code, exc) from exc
    except keystone_errors.HttpError as exc:
        raise _of_status(what, exc.http_status, exc) from exc
    except (keystone_errors.ClientException, glance_errors.ClientException) as exc:
        raise errors.ImageServiceRefused(what, first_line(exc)) from exc
    except (KeyError, AttributeError, ValueError) as exc:  # of glanceclient
        why = f"its answer is malformed: {type(exc).__name__}: {first_line(exc)}"
        raise errors.ImageServiceUnreachable(what, why) from exc


def _of_status(what: str, status: object, exc: Exception) -> errors.ImageServiceError:
    if status in _TEMPORARY:
        return errors.ImageServiceUnreachable(what, first_line(exc))
    why = first_line(exc)
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        why += "; the service user needs a role with the rights of an administrator in Glance"
    return errors.ImageServiceRefused(what, why)


def first_line(exc: Exception) -> str:
    """Return the first line of an error's text; glanceclient quotes whole HTML pages."""
    text = str(exc).strip().splitlines()
    return text[0][:300] if text else type(exc).__name__
