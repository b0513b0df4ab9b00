# SPDX-License-Identifier: Apache-2.0
"""Keystone token validation with limits, as a hung Keystone must not block every thread."""

import logging
import time
from collections.abc import Callable
from typing import Any
from typing import Final

import webob.exc
from keystoneauth1 import exceptions
from keystonemiddleware import auth_token
from keystonemiddleware.auth_token import _opts
from oslo_config import cfg

from acstor_common.util import concurrency_limit

LOG = logging.getLogger(__name__)

TIMEOUT_S: Final = 5
RETRIES: Final = 1  # instead of three: enough for a connection that Keystone closed when idle
CALLERS: Final = 4  # threads of a process that ask Keystone at a time
NO_KEYSTONE_URL: Final = (
    "this token cannot be validated: Keystone's catalog has no URL of Keystone itself for "
    "[keystone_authtoken] interface and region_name ({why}): change these options"
)

Unavailable = Callable[[str], webob.exc.HTTPServiceUnavailable]
"""Returns the 503 response with a text."""


def set_defaults() -> None:
    """Set the default timeout and retries of keystonemiddleware."""
    cfg.set_defaults(
        _opts._OPTS,  # list_opts returns copies
        http_connect_timeout=TIMEOUT_S,
        http_request_max_retries=RETRIES,
    )


class TokenCheck(auth_token.AuthProtocol):  # type: ignore[misc]  # without type hints
    """WSGI middleware that validates tokens; cached ones also while Keystone is unavailable."""

    def __init__(
        self, app: Any, conf: cfg.ConfigOpts, unavailable: Unavailable, is_gone: str
    ) -> None:
        set_defaults()
        super().__init__(app, {"oslo_config_config": conf})
        self._unavailable, self._is_gone = unavailable, is_gone
        self._limit = concurrency_limit.ConcurrencyLimit("Keystone", CALLERS, time)
        self._verify = self._identity_server.verify_token
        self._identity_server.verify_token = self._verify_in_turn

    def process_request(self, request: Any) -> Any:
        """Validate a request's token."""
        try:
            return super().process_request(request)
        except webob.exc.HTTPServiceUnavailable as e:
            raise self._unavailable(self._is_gone) from e
        except exceptions.EndpointNotFound as e:
            LOG.error("%s", NO_KEYSTONE_URL.format(why=e))
            raise self._unavailable(NO_KEYSTONE_URL.format(why=e)) from e

    def _verify_in_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Ask Keystone; fail as if it did not answer if too many threads wait."""
        try:
            with self._limit.hold_slot():
                return self._verify(*args, **kwargs)
        except concurrency_limit.LimitReached as e:
            raise exceptions.ConnectFailure(str(e)) from e
        except exceptions.ConnectTimeout as e:  # the library would report a defect
            why = f"{e} ([keystone_authtoken] http_connect_timeout)"
            raise exceptions.ConnectFailure(why) from e
