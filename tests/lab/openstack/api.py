# SPDX-License-Identifier: Apache-2.0
"""An API service of OpenStack under a WSGI server, and what such services share in configuration.

The rule: a service's own options are written before those that a test adds, so a test may change
any of them (:meth:`Api.changed`).
"""

import contextlib
import http.client
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import installed

PASSWORD = "acstor-lab"
REGION = "RegionOne"
_REQUEST_DEADLINE_S = 20.0


def credentials(auth_url: str, user: str, project: str = "service") -> dict[str, object]:
    """Return the options of keystoneauth with which ``user`` signs in."""
    return {
        "auth_type": "password",
        "auth_url": auth_url,
        "username": user,
        "password": PASSWORD,
        "project_name": project,
        "user_domain_id": "default",
        "project_domain_id": "default",
    }


def token_check(auth_url: str, user: str) -> dict[str, object]:
    """Return the options of keystonemiddleware for a service that signs in as ``user``."""
    return {
        **credentials(auth_url, user),
        "www_authenticate_uri": auth_url,
        "service_token_roles": "service",
        "service_token_roles_required": True,
    }


class Api(daemon.Daemon):
    """One API; its configuration is one file in a folder of its own."""

    module = ""
    conf_name = ""
    folder_variable = ""
    more_arguments: Sequence[str] = ()

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        super().__init__(name, folder)
        self.port = daemon.port_of(folder, name)
        self.conf_folder = folder / "etc" / name
        self._changes: ini.Sections = {}

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{daemon.LOOPBACK}:{self.port}"

    @property
    def conf_file(self) -> pathlib.Path:
        """The file that says how it is configured."""
        return self.conf_folder / self.conf_name

    def sections(self) -> ini.Sections:
        """Return its configuration without changes."""
        raise NotImplementedError

    @contextlib.contextmanager
    def changed(self, changes: ini.Sections) -> Iterator[None]:
        """Let it run with these options instead of its own, until the block is over.

        :raises errors.Unusable: it does not start with them; shows the end of its log
        """
        self._changes = changes
        try:
            self.restart()
            yield
        finally:
            self._changes = {}
            self.restart()

    def configure(self) -> None:
        """Write its configuration."""
        ini.write(self.conf_file, self.sections(), self._changes)

    def environment(self) -> Mapping[str, str]:
        """Return where its configuration lies."""
        return {self.folder_variable: str(self.conf_folder)}

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the WSGI server in the foreground."""
        return [
            installed.BIN / "uwsgi",
            *("--home", installed.VENV),
            *("--http-socket", f"{daemon.LOOPBACK}:{self.port}"),
            *("--module", f"{self.module}:application"),
            *("--processes", "1", "--threads", "8"),
            *("--buffer-size", "65535", "--add-header", "Connection: close"),
            *("--worker-reload-mercy", "5"),
            *("--hook-master-start", "unix_signal:15 gracefully_kill_them_all"),
            *("--master", "--enable-threads", "--lazy-apps", "--need-app", "--die-on-term"),
            *self.more_arguments,
        ]

    def is_ready(self) -> bool:
        """Say whether it answers HTTP requests, with whatever status."""
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                self.url, timeout=_REQUEST_DEADLINE_S
            ).close()
        except urllib.error.HTTPError as answer:
            return answer.code < http.client.INTERNAL_SERVER_ERROR
        except OSError:
            return False
        return True
