# SPDX-License-Identifier: Apache-2.0
"""Probes whether Glance, or the gateway beside it, serves ranges of an image.

One byte of one image is read for all images in the same stores.
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
"""Limit of remembered sets of stores; images in others are each probed."""
MOST_UNCLEAR = 3
"""Images of the same stores to try before these stores count as unavailable."""
_NO_PARTS = (http.HTTPStatus.OK, http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.CONFLICT)
"""Answers of Glance and of the gateway for a store without range reads."""
_BYTE = {"Range": "bytes=0-0"}


class RangeSupport(enum.StrEnum):
    """Range support of a store."""

    RANGES = "ranges"
    WHOLE = "whole"  # no ranges
    NOTHING = "nothing"  # the store or the image's bytes are unavailable


class ProbeResult(NamedTuple):
    """Range support of an image's stores, and the reason if it is not RANGES."""

    readable: RangeSupport
    why: str = ""


class RangeProber:
    """Probes stores, and remembers the results."""

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

    def has_ranges(self, image: image_record.Image) -> ProbeResult:
        """Return whether an active image can be read in ranges."""
        stores = stores_of(image)
        if (known := self._known.get(stores)) is not None:
            return known
        answer = self._ask(image.id)
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


def stores_of(image: image_record.Image) -> str:
    """Return the names of an image's stores; empty where Glance has only one."""
    return image.text("stores")


def _gateway(session: keystone_session.Session, place: dict[str, Any]) -> adapter.Adapter | None:
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
