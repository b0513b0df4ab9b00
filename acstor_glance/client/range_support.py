# SPDX-License-Identifier: Apache-2.0
"""Probes whether Glance, or the gateway beside it, serves ranges of images by store."""

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
MAX_STORES = 64
MAX_FAILURES = 3  # images of the same stores to try before these stores count as unavailable
_NO_RANGES = (http.HTTPStatus.OK, http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.CONFLICT)
"""Answers of Glance and of the gateway for a store without range reads."""
_FIRST_BYTE = {"Range": "bytes=0-0"}


class RangeSupport(enum.StrEnum):
    """Range support of a store."""

    RANGES = "ranges"
    WHOLE = "whole"  # no ranges
    UNAVAILABLE = "unavailable"  # the store or the image's bytes are unavailable


class ProbeResult(NamedTuple):
    """Range support of an image's stores, and the reason if it is not RANGES."""

    support: RangeSupport
    why: str = ""


class RangeProber:
    """Probes stores, and remembers the results."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        own, session = conf.acstor_glance, glance_client.session_of(conf)
        interfaces = own.valid_interfaces or ["internal", "public"]
        adapter_options: dict[str, Any] = {"region_name": own.region_name, "interface": interfaces}
        self._glance = adapter.Adapter(
            session, "image", endpoint_override=own.endpoint_override, **adapter_options
        )
        self._gateway = _gateway(session, adapter_options)
        self._known: dict[str, ProbeResult] = {}
        self._failures: dict[str, int] = {}

    def has_ranges(self, image: image_record.Image) -> ProbeResult:
        """Return whether an active image can be read in ranges."""
        stores = stores_of(image)
        if (known := self._known.get(stores)) is not None:
            return known
        answer = self._ask(image.id)
        if answer.support is RangeSupport.UNAVAILABLE:
            self._failures[stores] = self._failures.get(stores, 0) + 1
            if self._failures[stores] < MAX_FAILURES:
                return answer
        if len(self._known) < MAX_STORES:
            self._known[stores] = answer
        return answer

    def _ask(self, image_id: str) -> ProbeResult:
        found = _byte(self._glance, f"/v2/images/{image_id}/file", "Glance")
        if found.support is RangeSupport.WHOLE and self._gateway is not None:
            return _byte(self._gateway, f"/v1/images/{image_id}/file", "the gateway")
        return found


def stores_of(image: image_record.Image) -> str:
    """Return the names of an image's stores; empty where Glance has only one."""
    return image.text("stores")


def _gateway(
    session: keystone_session.Session, adapter_options: dict[str, Any]
) -> adapter.Adapter | None:
    found = adapter.Adapter(session, GATEWAY_TYPE, **adapter_options)
    try:
        return found if found.get_endpoint() else None
    except exceptions.ClientException:
        return None


def _byte(service: adapter.Adapter, path: str, service_name: str) -> ProbeResult:
    try:
        answer = service.get(path, headers=_FIRST_BYTE, raise_exc=False, stream=True)
    except (exceptions.ClientException, requests.exceptions.RequestException) as exc:
        return ProbeResult(
            RangeSupport.UNAVAILABLE,
            f"{service_name} returns no data: {glance_client.first_line(exc)}",
        )
    answer.close()
    if answer.status_code == http.HTTPStatus.PARTIAL_CONTENT:
        return ProbeResult(RangeSupport.RANGES)
    why = f"{service_name} answers {answer.status_code} to a range request"
    return ProbeResult(
        RangeSupport.WHOLE if answer.status_code in _NO_RANGES else RangeSupport.UNAVAILABLE, why
    )
