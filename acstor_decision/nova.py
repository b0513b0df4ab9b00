# SPDX-License-Identifier: Apache-2.0
"""Nova, asked by the service itself: which host a server is on, and whether it exists.

The one rule: what Nova does not say clearly is not known, and nothing is done on account of it.
"""

import copy
import threading
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from acstor_common import conf as common_conf
from acstor_common import errors
from acstor_common import ids

GROUP = cfg.OptGroup("nova", title="Requests to Nova, as the service's own user")
KNOWN_S = 20.0
"""For so long what Nova said of a server is believed: hosts register every few minutes."""
MAX_KNOWN = 4096
TIMEOUT_S = 15.0


class NovaUnreachable(errors.AcstorError):
    """Nova does not answer, or not as it should."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"Nova does not say where the server is: {self.why}"


class Server(NamedTuple):
    """What Nova says of a server; ``host`` is empty if it is on none."""

    host: str
    project_id: str


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of requests to Nova; those of the way to log in come with that."""
    loading.register_auth_conf_options(conf, GROUP.name)
    common_conf.register(conf, GROUP, options())


def auth_options() -> list[cfg.Opt]:
    """Return the options of the usual way to log in, for the sample."""
    found = [*loading.get_auth_common_conf_options()]
    for opt in loading.get_auth_plugin_conf_options("v3password"):  # their help is short
        told = copy.copy(opt)
        told.help = f"{(opt.help or opt.name).rstrip('.')}, to sign in at Keystone."
        found.append(told)
    return found


def options() -> list[cfg.Opt]:
    """Return the options of requests to Nova."""
    found = [*loading.get_session_conf_options()]
    found += loading.get_adapter_conf_options(include_deprecated=False)
    cfg.set_defaults(found, service_type="compute", valid_interfaces=["internal", "public"])
    return found


class Nova:
    """What Nova tells; may be asked by many threads.

    :param conf: with the options of :func:`options`
    """

    def __init__(self, conf: cfg.ConfigOpts, clock: Callable[[], float] = time.monotonic) -> None:
        self._conf, self._clock = conf, clock
        self._lock = threading.Lock()
        self._adapter: Any = None
        self._known: dict[str, tuple[float, Server]] = {}

    @property
    def is_there(self) -> bool:
        """Say whether there is a way to Nova: [nova] says as whom it is asked."""
        return bool(self._conf[GROUP.name].auth_type)

    def server(self, instance_id: ids.ImageId, *, now: bool = False) -> Server | None:
        """Return what Nova says of a server; None if it knows none.

        :param now: whatever it said some seconds ago
        :raises NovaUnreachable: it cannot be known
        """
        with self._lock:
            known = self._known.get(instance_id)
        if not now and known is not None and self._clock() - known[0] < KNOWN_S:
            return known[1]
        found = self._ask(instance_id)
        with self._lock:
            self._known.pop(instance_id, None)
            if found is not None:
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[instance_id] = (self._clock(), found)
        return found

    def _ask(self, instance_id: ids.ImageId) -> Server | None:
        try:
            answer = self._opened().get(f"/servers/{instance_id}", raise_exc=False)
            if answer.status_code == 404:
                return None
            if answer.status_code != 200:
                raise NovaUnreachable(f"HTTP {answer.status_code}")
            server = answer.json()["server"]
            if "OS-EXT-SRV-ATTR:host" not in server:
                raise NovaUnreachable("[nova] is a user to whom Nova does not tell hosts")
            return Server(str(server["OS-EXT-SRV-ATTR:host"] or ""), str(server["tenant_id"]))
        except (exceptions.ClientException, ValueError, KeyError, TypeError) as e:
            raise NovaUnreachable(f"{type(e).__name__}: {e}") from e

    def _opened(self) -> Any:
        if not self.is_there:
            raise NovaUnreachable("[nova] auth_type is not set")
        with self._lock:
            if self._adapter is None:
                auth = loading.load_auth_from_conf_options(self._conf, GROUP.name)
                session = loading.load_session_from_conf_options(
                    self._conf, GROUP.name, auth=auth, timeout=TIMEOUT_S
                )
                self._adapter = loading.load_adapter_from_conf_options(
                    self._conf, GROUP.name, session=session, auth=auth
                )
            return self._adapter
