# SPDX-License-Identifier: Apache-2.0
"""The decision service's REST API behind the lab's Keystone, with a new database.

It runs in the tests' virtualenv, as on a controller without other OpenStack services.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping

from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import client
from tests.lab.openstack import cloud
from tests.lab.openstack import ini

SERVICE_TYPE = "acstor"


class DecisionApi(api.Api):
    """The API under a WSGI server."""

    module = "acstor_decision.wsgi"
    conf_name = "acstor-decision.conf"
    home = sys.prefix

    def __init__(
        self,
        lab: cloud.Cloud,
        folder: pathlib.Path,
        connection: str,
        policies: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("acstor-decision-api", folder)
        self._lab, self._connection = lab, connection
        self._policies = policies or {}

    def sections(self) -> ini.Sections:
        """Return its configuration; write the policies that differ from the defaults."""
        policy_file = self.conf_folder / "policy.yaml"
        policy_file.parent.mkdir(parents=True, exist_ok=True)
        policy_file.write_text(json.dumps(self._policies))
        return {
            "DEFAULT": {"transport_url": self._lab.rabbitmq.url},
            "acstor_decision": {"metrics_listen": ""},  # two clouds may run at the same time
            "glance": {"region_name": api.REGION},
            "oslo_policy": {"policy_file": policy_file},
            "database": {"connection": self._connection},
            "keystone_authtoken": api.token_check(self._lab.keystone.auth_url, "acstor"),
        }

    def environment(self) -> Mapping[str, str]:
        """Return the environment with its configuration's path."""
        return {"ACSTOR_DECISION_CONF": str(self.conf_file)}

    def register(self) -> None:
        """Set it in Keystone's catalog."""
        identity = accounts.connect(self._lab.keystone.auth_url).identity
        accounts.name_service(identity, SERVICE_TYPE, "acstor", self.url)


def openstack(
    lab: cloud.Cloud, user: str, *words: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Run ``openstack acstor …``, the operators' command."""
    return client.openstack(lab, user, "acstor", *words)
