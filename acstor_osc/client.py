# SPDX-License-Identifier: Apache-2.0
"""The REST API as the commands see it: paths in, plain data out, one kind of error.

What went wrong is told here, once, so that it says what to do.
"""

import copy
import http
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tqdm
from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session
from osc_lib import exceptions as osc_exceptions
from osc_lib.command import command

from acstor_osc import api_versions
from acstor_osc import output_columns

SERVICE_TYPE = "acstor"
LOOK_AGAIN_S = 1.0
TIMEOUT_S = 60.0
"""The longest that the API may be silent, unless api_timeout of clouds.yaml says otherwise."""
REQUEST_ID, REQUEST_ID_LENGTH = "X-OpenStack-Request-Id", 40


class Refused(osc_exceptions.CommandError):
    """The API does not do what it was asked for.

    :param status: HTTP's
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Asks the API in the name of whoever calls ``openstack``.

    :param asked: version of the API, as :func:`api_versions.parse` returns it
    """

    _asked, _sent = api_versions.MAJOR, api_versions.KNOWN[0]
    _timeout_s: float | None = None

    def __init__(
        self,
        session: keystone_session.Session,
        region: str | None,
        interface: str | None,
        asked: str = api_versions.MAJOR,
    ) -> None:
        self._region, self._interface = region, interface or "public"
        self._asked = asked
        if session.timeout is None:
            self._timeout_s = TIMEOUT_S
        self._adapter = adapter.Adapter(
            session, service_type=SERVICE_TYPE, region_name=region, interface=self._interface
        )

    def require_version(self, needed: str) -> "Client":
        """Return a client that asks for a version of the API which has what a command needs.

        :raises osc_exceptions.CommandError: an earlier version was asked for
        """
        made = copy.copy(self)
        made._sent = api_versions.version_to_send(self._asked, needed)
        return made

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return what is at a path.

        :raises osc_exceptions.CommandError: it cannot be had; says what to do
        """
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask("GET", path, params=wanted)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Ask for something to be done.

        :raises osc_exceptions.CommandError: it is not done; says what to do
        """
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


def _message(answer: Any) -> str:
    """Return what the API says about a request that it did not fulfil, and its id in the log."""
    request = output_columns.text(answer.headers.get(REQUEST_ID, "")[:REQUEST_ID_LENGTH])
    status = f"HTTP {answer.status_code}" + (f", {request}" if request else "")
    try:
        why = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API answered {answer.reason} for {answer.url} ({status})"
    if answer.status_code == http.HTTPStatus.NOT_ACCEPTABLE:
        why += f": choose one with {api_versions.OPTION}, or upgrade the service"
    return f"{output_columns.text(why)} ({status})"


def client_of(asking: command.Command, needed: str = "") -> Client:
    """Return the client of the one who gave a command.

    :param needed: version of the API that options of the command need; else that of the command,
        its attribute ``since``
    :raises osc_exceptions.CommandError: an earlier version was asked for
    """
    manager: Any = asking.app.client_manager  # openstackclient gives it what plug-ins make
    found: Client = manager.acstor
    return found.require_version(needed or getattr(asking, "since", api_versions.KNOWN[0]))


def wait_until_done(
    what: str, look: Callable[[], tuple[int, int]], deadline_s: float, look_with: str = ""
) -> None:
    """Show progress on a terminal until all of it is done.

    :param look: returns how much is done, and how much is to be done in all
    :param look_with: the command that tells how far it is
    :raises osc_exceptions.CommandError: it takes longer
    """
    end_s = time.monotonic() + deadline_s
    done, whole = look()
    with tqdm.tqdm(total=whole, initial=done, desc=what, disable=None) as bar:
        while done < whole:
            if time.monotonic() > end_s:
                raise osc_exceptions.CommandError(
                    f"{what}: {done} of {whole} after {deadline_s:g} s; it goes on without this "
                    "command" + (f" ({look_with})" if look_with else "")
                )
            time.sleep(LOOK_AGAIN_S)
            done, whole = look()
            bar.update(done - bar.n)
