# SPDX-License-Identifier: Apache-2.0
"""An OpenStack API under a WSGI server, and common configuration of services.

APIs listen on the loopback only; each service authenticates as a user of its own.
"""

import http.client
import pathlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from collections.abc import Sequence

from tests.lab.openstack import configured
from tests.lab.openstack import daemon
from tests.lab.openstack import installed

PASSWORD = "acstor-lab"
REGION = "RegionOne"
_REQUEST_DEADLINE_S = 20.0


def credentials(auth_url: str, user: str, project: str = "service") -> dict[str, object]:
    """Return a user's credentials as options of keystoneauth."""
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
    """Return a service's options of keystonemiddleware."""
    return {
        **credentials(auth_url, user),
        "www_authenticate_uri": auth_url,
        "service_token_roles": "service",
        "service_token_roles_required": True,
    }


class Api(configured.Configured):
    """One API; an environment variable has its configuration's folder."""

    module = ""
    folder_variable = ""
    home: str | pathlib.Path = installed.VENV  # of its virtualenv
    more_arguments: Sequence[str] = ()

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        super().__init__(name, folder)
        self.port = daemon.port_of(folder, name)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{daemon.LOOPBACK}:{self.port}"

    def environment(self) -> Mapping[str, str]:
        """Return the environment with its configuration's path."""
        return {self.folder_variable: str(self.conf_folder)}

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the WSGI server's command line."""
        return [
            installed.BIN / "uwsgi",
            *("--home", self.home),
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
        """Return whether it answers HTTP requests, with any status."""
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                self.url, timeout=_REQUEST_DEADLINE_S
            ).close()
        except urllib.error.HTTPError as answer:
            return answer.code < http.client.INTERNAL_SERVER_ERROR
        except OSError:
            return False
        return True
