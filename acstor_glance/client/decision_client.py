# SPDX-License-Identifier: Apache-2.0
"""Client of the decision service's REST API, as acstor's service user."""

import functools
import logging
from typing import Any
from typing import TypeVar

import msgspec
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

from acstor_common import errors
from acstor_common.util import log_once
from acstor_common.wire import decision_messages
from acstor_glance.client import glance_client

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class DecisionClient:
    """Client of the service at ``decision_endpoint``, or in Keystone's catalog."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._transport_fault = log_once.LogOnce(LOG)

    @functools.cached_property
    def _session(self) -> keystone_session.Session:
        return glance_client.session_of(self._conf)

    def get(self, path: str, answer_type: type[T], max_bytes: int) -> T:
        """Return the decoded answer to a GET; raises errors.ImageServiceError or Unusable."""
        return self._request("GET", path, None, answer_type, max_bytes)

    def post(self, path: str, body: object, answer_type: type[T], max_bytes: int) -> T:
        """Return the decoded answer to a POST of ``body`` as JSON; raises as :meth:`get`."""
        return self._request("POST", path, body, answer_type, max_bytes)

    def _request(
        self, method: str, path: str, body: object, answer_type: type[T], max_bytes: int
    ) -> T:
        what = f"the decision service's {path}"
        try:
            with glance_client.translate_errors(what):
                try:
                    return self._send(method, path, body, answer_type, max_bytes)
                except exceptions.NotFound as exc:
                    raise errors.ImageGone(what, glance_client.first_line(exc)) from exc
        except errors.ImageServiceError:
            self.__dict__.pop("_session", None)  # Keystone's catalog may have changed
            raise

    def _send(
        self, method: str, path: str, body: object, answer_type: type[T], max_bytes: int
    ) -> T:
        own = self._conf.acstor_glance
        api = keystone_adapter.Adapter(
            self._session,
            service_type=decision_messages.SERVICE_TYPE,
            interface=own.valid_interfaces,
            region_name=own.region_name,
            endpoint_override=own.decision_endpoint,
        )
        response: Any = api.request(path, method, **({} if body is None else {"json": body}))
        self._transport_fault.log_warning(decision_messages.why_insecure(response.url or ""))
        try:
            return msgspec.json.decode(response.content[:max_bytes], type=answer_type)
        except msgspec.DecodeError as exc:
            raise exceptions.ClientException(f"invalid answer: {exc}") from exc
