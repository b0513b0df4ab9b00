# SPDX-License-Identifier: Apache-2.0
"""Client of Glance with the API client's token, so Glance decides which images it sees."""

import contextlib
import logging
import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.service import bounded_responses
from acstor_common.service import session_options
from acstor_common.util import concurrency_limit

LOG = logging.getLogger(__name__)

GROUP = cfg.OptGroup(
    "glance", title="Requests to Glance, with the token of the client of the REST API"
)
TIMEOUT_S = 10
CALLERS = 4  # concurrent requests of a process: a quarter of the documented server's threads
AT_ONCE = 100  # images in one request; their IDs must fit into a URL

PAGE, MAX_PAGES = 1000, 20
"""Limits of the list of all images; Glance may return shorter pages."""

Records = dict[str, image_record.Image]


class ImageListing(NamedTuple):
    """A list of images; ``is_complete`` is False if there are more."""

    images: list[image_record.Image]
    is_complete: bool


class GlanceUnreachable(errors.AcstorError):
    """Glance does not respond, or its response is invalid."""

    def __init__(self, why: str, detail: str = "") -> None:  # ``detail`` may contain addresses
        super().__init__(why, detail)
        self.why, self.detail = why, detail or why

    def __str__(self) -> str:
        return f"Glance does not list its images: {self.why}"


def options() -> list[cfg.Opt]:
    """Return the options of requests to Glance."""
    return session_options.service_options(TIMEOUT_S, "image")


class GlanceClient:
    """Client of Glance; requests raise GlanceUnreachable if it does not respond."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._session = session_options.load_session(conf, GROUP.name)
        bounded_responses.bound(self._session, bounded_responses.MAX_LIST_BYTES)
        self._limit = concurrency_limit.ConcurrencyLimit("Glance", CALLERS, time)

    def get_images(self, wanted: Sequence[str], auth: plugin.BaseAuthPlugin | None) -> Records:
        """Return those of the images that ``auth`` may see, by ID; none without ``auth``."""
        if auth is None:
            return {}
        found: Records = {}
        for start in range(0, len(wanted), AT_ONCE):
            some = ",".join(wanted[start : start + AT_ONCE])
            for hidden in ("false", "true"):
                query = {"id": f"in:{some}", "os_hidden": hidden, "visibility": "all"}
                answer = self._get("/v2/images", auth, {**query, "limit": str(AT_ONCE)})
                found |= {image.id: image for image in _images_of(answer)}
        return found

    def list_images(self, auth: plugin.BaseAuthPlugin | None) -> ImageListing:
        """Return all images that ``auth`` may see and that are not hidden."""
        found: Records = {}
        markers: list[str] = []
        query = {"visibility": "all", "sort": "id:asc", "limit": str(PAGE)}
        if auth is None:
            return ImageListing([], True)
        for _ in range(MAX_PAGES):
            after = {"marker": markers[-1]} if markers else {}
            answer = self._get("/v2/images", auth, {**query, **after})
            if answer is None:
                markers.pop()
                continue
            found |= {image.id: image for image in _images_of(answer)}
            page = answer.get("images") if isinstance(answer, dict) else None
            if not page or "next" not in answer:
                return ImageListing([*found.values()], True)
            markers = [str(image.get("id", "")) for image in page]
        return ImageListing([*found.values()], False)

    def _get(self, path: str, auth: plugin.BaseAuthPlugin, query: dict[str, str]) -> Any:
        asking = loading.load_adapter_from_conf_options(
            self._conf, GROUP.name, session=self._session, auth=auth
        )
        try:
            with self._limit.hold_slot():
                return asking.get(path, params=query).json()
        except concurrency_limit.LimitReached as e:
            raise GlanceUnreachable(str(e)) from e
        except exceptions.ConnectTimeout as e:
            LOG.warning("Glance did not answer within [glance] timeout: %s", e)
            why = f"no answer within {self._session.timeout:g} s"
            raise GlanceUnreachable(why, f"{why} ([glance] timeout): {e}") from e
        except (exceptions.ClientException, ValueError) as e:
            if "marker" in query and isinstance(e, exceptions.BadRequest):
                return None  # the image was deleted
            LOG.warning("Glance: %s", e)
            raise GlanceUnreachable(type(e).__name__, str(e)) from e


def _images_of(answer: Any) -> Iterator[image_record.Image]:
    """Yield the images of a response, without chunk maps and boot images."""
    images: Iterable[Any] = answer.get("images", ()) if isinstance(answer, dict) else ()
    for image in images:
        if isinstance(image, dict) and artefacts.KIND not in image:
            with contextlib.suppress(ValueError):
                yield image_record.Image.from_record(image)
