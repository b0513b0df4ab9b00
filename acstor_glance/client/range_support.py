# SPDX-License-Identifier: Apache-2.0
"""Whether agents can read parts of an image: from Glance, or from the gateway beside it.

A store is asked for one byte of one image, not of each; all images of a cloud that lie in the
same stores are as this one.  What neither says clearly is not called well, and is not asked for
again and again.
"""

import enum
import http
from typing import Any
from typing import NamedTuple

import requests
from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

from acstor_common.image import image_record
from acstor_glance.client import glance_client

GATEWAY_TYPE = "acstor-gateway"
MOST_STORES = 64
"""Sets of stores that are remembered; of more than that each image is asked for."""
MOST_UNCLEAR = 3
"""Images of the same stores that are tried before these stores are taken for away."""
_NO_PARTS = (http.HTTPStatus.OK, http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.CONFLICT)
"""A store without ranges, as Glance and as the gateway say it."""
_BYTE = {"Range": "bytes=0-0"}


class RangeSupport(enum.StrEnum):
    """What a store gives."""

    RANGES = "ranges"
    WHOLE = "whole"  # no parts
    NOTHING = "nothing"  # neither: it is away, or the image's bytes are


class ProbeResult(NamedTuple):
    """What came of asking, and why it is not ranges."""

    readable: RangeSupport
    why: str = ""


class RangeProber:
    """Asks, and remembers it by the stores.

    :raises errors.Unusable: the options of the service user make no sense
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        own, session = conf.acstor_glance, glance_client.session_of(conf)
        interfaces = own.valid_interfaces or ["internal", "public"]
        place: dict[str, Any] = {"region_name": own.region_name, "interface": interfaces}
        self._glance = adapter.Adapter(
            session, "image", endpoint_override=own.endpoint_override, **place
        )
        self._gateway = _gateway(session, place)
        self._known: dict[str, ProbeResult] = {}
        self._unclear: dict[str, int] = {}

    def has_ranges(self, image: image_record.Record) -> ProbeResult:
        """Return whether parts of an active image can be read."""
        stores = stores_of(image)
        if (known := self._known.get(stores)) is not None:
            return known
        answer = self._ask(str(image["id"]))
        if answer.readable is RangeSupport.NOTHING:
            self._unclear[stores] = self._unclear.get(stores, 0) + 1
            if self._unclear[stores] < MOST_UNCLEAR:
                return answer
        if len(self._known) < MOST_STORES:
            self._known[stores] = answer
        return answer

    def _ask(self, image_id: str) -> ProbeResult:
        found = _byte(self._glance, f"/v2/images/{image_id}/file", "Glance")
        if found.readable is RangeSupport.WHOLE and self._gateway is not None:
            return _byte(self._gateway, f"/v1/images/{image_id}/file", "the gateway")
        return found


def stores_of(image: image_record.Record) -> str:
    """Return the names of the stores that an image is in; empty where Glance has only one."""
    return image_record.text_of(image, "stores")


def _gateway(session: keystone_session.Session, place: dict[str, Any]) -> adapter.Adapter | None:
    """Return the gateway of Keystone's catalog, if there is one."""
    found = adapter.Adapter(session, GATEWAY_TYPE, **place)
    try:
        return found if found.get_endpoint() else None
    except exceptions.ClientException:
        return None


def _byte(asked: adapter.Adapter, path: str, where: str) -> ProbeResult:
    try:
        answer = asked.get(path, headers=_BYTE, raise_exc=False, stream=True)
    except (exceptions.ClientException, requests.exceptions.RequestException) as exc:
        return ProbeResult(
            RangeSupport.NOTHING, f"{where} gives nothing of it: {glance_client.first_line(exc)}"
        )
    answer.close()
    if answer.status_code == http.HTTPStatus.PARTIAL_CONTENT:
        return ProbeResult(RangeSupport.RANGES)
    why = f"{where} answers {answer.status_code} when it is asked for a part of it"
    return ProbeResult(
        RangeSupport.WHOLE if answer.status_code in _NO_PARTS else RangeSupport.NOTHING, why
    )
