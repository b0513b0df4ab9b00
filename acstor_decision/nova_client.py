# SPDX-License-Identifier: Apache-2.0
"""Client of Nova with the service's credentials: servers, metadata, aggregates.

Few threads wait for Nova, since hosts' samples need threads too; hosts share these places fairly.
Servers are not cached, because a server's former host must not register checkpoints of it.
"""

import copy
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_common.service import conf as common_conf
from acstor_common.service import session_options
from acstor_common.util import concurrency_limit
from acstor_common.util import log_once

LOG = logging.getLogger(__name__)

GROUP = cfg.OptGroup("nova", title="Requests to Nova, as the service's own user")
TIMEOUT_S = 15
CALLERS = 16  # concurrent requests: a quarter of the threads of oslo.messaging
WAITING = 16  # threads that wait for a place, for WAIT_S at most
WAIT_S = 3.0
MAX_PAGES = 16
"""Pages of one host's servers; Nova returns 1,000 on each by default."""
PAGE = 100  # servers of an image on a page: the first one on a host of acstor is enough
_HOST = "OS-EXT-SRV-ATTR:host"
_TASK = "OS-EXT-STS:task_state"


@dataclasses.dataclass(eq=False)
class NovaUnreachable(errors.AcstorError):
    """Nova does not respond, or its response is invalid."""

    why: str
    text = "Nova did not report the host of the server: {why}"


class NovaBusy(NovaUnreachable):
    """Too many requests to Nova are in progress; the caller may retry soon."""

    text = "no request was sent to Nova, retry later: {why}"


class Server(NamedTuple):
    """Nova's record of a server; ``host`` is empty if it is on none."""

    host: str
    project_id: str


class Aggregate(NamedTuple):
    """A host aggregate."""

    hosts: Collection[str]
    metadata: Mapping[str, Any]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of requests to Nova, except those of auth plug-ins."""
    loading.register_auth_conf_options(conf, GROUP.name)
    common_conf.register(conf, GROUP, options())


def auth_options() -> list[cfg.Opt]:
    """Return the options of password authentication, for the sample."""
    found = [*loading.get_auth_common_conf_options()]
    for opt in loading.get_auth_plugin_conf_options("v3password"):  # their help is short
        own = copy.copy(opt)
        own.help = f"{(opt.help or opt.name).rstrip('.')}, for authentication with Keystone."
        found.append(own)
    return found


def options() -> list[cfg.Opt]:
    """Return the options of requests to Nova."""
    return session_options.service_options(TIMEOUT_S, "compute")


class NovaClient:
    """Client of Nova; thread-safe. Requests raise NovaUnreachable without a response."""

    def __init__(
        self, conf: cfg.ConfigOpts, callers: int = CALLERS, wait_s: float = WAIT_S
    ) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._limit = concurrency_limit.ConcurrencyLimit("Nova", callers, time, wait_s, WAITING)
        self._trouble = log_once.LogOnce(LOG)
        self._adapter: Any = None

    @property
    def is_configured(self) -> bool:
        """Return whether [nova] has an authentication type."""
        return bool(self._conf[GROUP.name].auth_type)

    def get_server(self, instance_id: ids.ImageId, requester: str = "") -> Server | None:
        """Return Nova's record of a server, asked on behalf of ``requester``; None: unknown."""
        answer = self._get(f"/servers/{instance_id}", requester)
        if answer is None:
            return None
        try:
            server = answer["server"]
            return Server(_host_of(server), str(server["tenant_id"]))
        except _ODD as e:
            raise NovaUnreachable(f"{type(e).__name__}: {e}") from e

    def list_aggregates(self) -> list[Aggregate]:
        """Return all host aggregates."""
        answer = self._get("/os-aggregates") or {}
        try:
            return [
                Aggregate(frozenset(aggregate["hosts"]), dict(aggregate["metadata"]))
                for aggregate in answer["aggregates"]
            ]
        except _ODD as e:
            raise NovaUnreachable(f"{type(e).__name__}: {e}") from e

    def metadata_on(self, host: str) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of all servers on a host, by server ID."""
        found: dict[str, Mapping[str, Any]] = {}
        wanted = {"host": host, "all_tenants": "1"}
        for _ in range(MAX_PAGES):
            answer = self._get("/servers/detail", host, **wanted) or {}
            try:
                page = answer["servers"]
                its = {
                    str(server["id"]): dict(server["metadata"])
                    for server in page
                    if _host_of(server) == host
                }
            except _ODD as e:
                raise NovaUnreachable(f"{type(e).__name__}: {e}") from e
            found |= its
            if not answer.get("servers_links"):
                break
            wanted["marker"] = str(page[-1]["id"])
        return found

    def is_image_used(
        self, image_id: ids.ImageId, is_member: Callable[[str], bool], requester: str = ""
    ) -> bool:
        """Return whether a server of the image is on acstor's hosts, or has a task anywhere."""
        wanted = {"image": image_id, "all_tenants": "1", "limit": str(PAGE)}
        for _ in range(MAX_PAGES):
            answer = self._get("/servers/detail", requester, **wanted) or {}
            try:
                page = answer["servers"]
                # Nova ignores a filter that a user may not use.
                its = [server for server in page if (server["image"] or {}).get("id") == image_id]
                if any(server[_TASK] or is_member(_host_of(server)) for server in its):
                    return True
                if not answer.get("servers_links"):
                    break
                wanted["marker"] = str(page[-1]["id"])
            except _ODD as e:
                raise NovaUnreachable(f"{type(e).__name__}: {e}") from e
        return False

    def _get(self, path: str, requester: str = "", **query: str) -> dict[str, Any] | None:
        try:
            with self._limit.hold_slot(requester):
                answer = self._answer(path, query)
        except concurrency_limit.LimitReached as e:
            raise NovaBusy(str(e)) from e
        except NovaUnreachable as e:
            configured = session_options.describe(GROUP.name, self._conf[GROUP.name])
            self._trouble.log_warning(f"Nova does not answer: {e.why} ({configured})")
            raise
        self._trouble.log_warning("")
        return answer

    def _answer(self, path: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        try:
            answer = self._opened().get(path, params=query, raise_exc=False)
            if answer.status_code == 404:
                return None
            if answer.status_code != 200:
                raise NovaUnreachable(f"HTTP {answer.status_code}")
            return dict(answer.json())
        except (exceptions.ClientException, *_ODD) as e:
            raise NovaUnreachable(f"{type(e).__name__}: {e}") from e

    def _opened(self) -> Any:
        if not self.is_configured:
            raise NovaUnreachable("[nova] auth_type is not set")
        with self._lock:
            if self._adapter is None:
                auth = loading.load_auth_from_conf_options(self._conf, GROUP.name)
                session = loading.load_session_from_conf_options(self._conf, GROUP.name, auth=auth)
                bounded_responses.bound(session, bounded_responses.MAX_LIST_BYTES)
                self._adapter = loading.load_adapter_from_conf_options(
                    self._conf, GROUP.name, session=session, auth=auth
                )
            return self._adapter


_ODD = (ValueError, LookupError, TypeError, AttributeError)
"""Errors that a malformed response causes."""


def _host_of(server: dict[str, Any]) -> str:
    if _HOST not in server:
        raise NovaUnreachable("Nova does not show hosts to the user of [nova]")
    return str(server[_HOST] or "")
