# SPDX-License-Identifier: Apache-2.0
"""The REST API of the decision service behind the lab's Keystone, on a database of its own.

The rule: it runs in the virtualenv of whoever runs the tests, as it would on a controller that has
nothing else of OpenStack.
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
    """The API as any WSGI server runs it."""

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
        """Return its configuration; the policies that differ from the defaults are written, too."""
        policy_file = self.conf_folder / "policy.yaml"
        policy_file.parent.mkdir(parents=True, exist_ok=True)
        policy_file.write_text(json.dumps(self._policies))
        return {
            "DEFAULT": {"transport_url": self._lab.rabbitmq.url},
            "acstor_decision": {"metrics_listen": ""},  # two clouds may run beside each other
            "glance": {"region_name": api.REGION},
            "oslo_policy": {"policy_file": policy_file},
            "database": {"connection": self._connection},
            "keystone_authtoken": api.token_check(self._lab.keystone.auth_url, "acstor"),
        }

    def environment(self) -> Mapping[str, str]:
        """Return where its configuration lies."""
        return {"ACSTOR_DECISION_CONF": str(self.conf_file)}

    def register(self) -> None:
        """Name it in Keystone's catalog, in place of an earlier one."""
        identity = accounts.connect(self._lab.keystone.auth_url).identity
        accounts.name_service(identity, SERVICE_TYPE, "acstor", self.url)


def openstack(
    lab: cloud.Cloud, user: str, *words: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Run ``openstack acstor …``, the command that operators use."""
    return client.openstack(lab, user, "acstor", *words)
