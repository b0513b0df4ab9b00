# SPDX-License-Identifier: Apache-2.0
"""Client of the REST API; all errors become CommandError with a remedy."""

import copy
import http
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import requests
import tqdm
from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from osc_lib import exceptions as osc_exceptions
from osc_lib.command import command

from acstor_common.service import bounded_responses
from acstor_osc import api_versions
from acstor_osc import output_columns

SERVICE_TYPE = "acstor"
POLL_INTERVAL_S = 1.0
TIMEOUT_S = 60.0  # timeout of a request, unless clouds.yaml has api_timeout
REQUEST_ID, REQUEST_ID_LENGTH = "X-OpenStack-Request-Id", 40


class Refused(osc_exceptions.CommandError):
    """The API returned the HTTP error ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Client of the API with the user's credentials; ``timeout_s`` unless the session has one."""

    _asked, _sent = api_versions.MAJOR, api_versions.KNOWN[0]
    _timeout_s: float | None = None

    def __init__(
        self,
        session: keystone_session.Session,
        region: str | None,
        interface: str | None,
        asked: str = api_versions.MAJOR,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._region, self._interface = region, interface or "public"
        self._asked = asked  # of :func:`api_versions.parse`
        if session.timeout is None:
            self._timeout_s = timeout_s
        self._adapter = adapter.Adapter(
            _bounded(session),
            service_type=SERVICE_TYPE,
            region_name=region,
            interface=self._interface,
        )

    def require_version(self, needed: str) -> "Client":
        """Return a client that requests this version; CommandError: the user wants an older one."""
        made = copy.copy(self)
        made._sent = api_versions.version_to_send(self._asked, needed)
        return made

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the resource at a path, or raise CommandError with a remedy."""
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask("GET", path, params=wanted)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Request an action; return the response, or raise CommandError with a remedy."""
        return self._ask("POST", path, json=body or {})

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        more["headers"] = {"OpenStack-API-Version": f"{SERVICE_TYPE} {self._sent}"}
        if self._timeout_s is not None:
            more["timeout"] = self._timeout_s
        try:
            answer = self._adapter.request(path, method, raise_exc=False, **more)
        except exceptions.EndpointNotFound as e:
            where = f" in the region {self._region}" if self._region else ""
            raise osc_exceptions.CommandError(
                f"Keystone's catalog has no {self._interface} URL of a service of type "
                f"{SERVICE_TYPE}{where}: is the REST API of acstor installed and registered? "
                "(openstack catalog list; --os-interface, --os-region-name)"
            ) from e
        except (exceptions.ConnectFailure, exceptions.ConnectTimeout) as e:
            raise osc_exceptions.CommandError(
                f"the REST API of acstor does not answer: {e}. Is it running?"
            ) from e
        if answer.status_code >= 400:
            raise Refused(answer.status_code, _message(answer))
        return answer.json()


def _bounded(session: keystone_session.Session) -> keystone_session.Session:
    """Return a copy with bounded responses; other services' commands keep the session."""
    made = copy.copy(session)
    made.session = requests.Session()
    bounded_responses.bound(made, bounded_responses.MAX_LIST_BYTES)
    return made


def _message(answer: Any) -> str:
    request = output_columns.text(answer.headers.get(REQUEST_ID, "")[:REQUEST_ID_LENGTH])
    status = f"HTTP {answer.status_code}" + (f", {request}" if request else "")
    try:
        why = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API answered {answer.reason} for {answer.url} ({status})"
    if answer.status_code == http.HTTPStatus.NOT_ACCEPTABLE:
        why += f": choose one with {api_versions.OPTION}, or upgrade the service"
    return f"{output_columns.text(why)} ({status})"


def client_of(running: command.Command, needed: str = "") -> Client:
    """Return the client for a command, or raise CommandError: the user wants an earlier version.

    :param needed: version of the API that options need; default: the command's attribute ``since``
    """
    manager: Any = running.app.client_manager  # openstackclient sets it from the plug-ins
    found: Client = manager.acstor
    return found.require_version(needed or getattr(running, "since", api_versions.KNOWN[0]))


def wait_until_done(
    what: str, progress: Callable[[], tuple[int, int]], deadline_s: float, command_line: str = ""
) -> None:
    """Wait until work is done, with a progress bar on a terminal; CommandError: too late.

    :param progress: returns the done and the total amount
    :param command_line: command that shows the progress
    """
    end_s = time.monotonic() + deadline_s
    done, whole = progress()
    with tqdm.tqdm(total=whole, initial=done, desc=what, disable=None) as bar:
        while done < whole:
            if time.monotonic() > end_s:
                raise osc_exceptions.CommandError(
                    f"{what}: {done} of {whole} after {deadline_s:g} s; it goes on without this "
                    "command" + (f" ({command_line})" if command_line else "")
                )
            time.sleep(POLL_INTERVAL_S)
            done, whole = progress()
            bar.update(done - bar.n)
