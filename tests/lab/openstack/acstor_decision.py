# SPDX-License-Identifier: Apache-2.0
"""The REST API of the decision service behind the lab's Keystone, on a database of its own.

The rule: it runs in the virtualenv of whoever runs the tests, as it would on a controller that has
nothing else of OpenStack.
"""

import pathlib
import sys
from collections.abc import Mapping

from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import ini

SERVICE_TYPE = "acstor"


class DecisionApi(api.Api):
    """The API as any WSGI server runs it."""

    module = "acstor_decision.wsgi"
    conf_name = "acstor-decision.conf"
    home = sys.prefix

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path, connection: str) -> None:
        super().__init__("acstor-decision-api", folder)
        self._lab, self._connection = lab, connection

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return {
            "database": {"connection": self._connection},
            "keystone_authtoken": api.token_check(self._lab.keystone.auth_url, "acstor"),
        }

    def environment(self) -> Mapping[str, str]:
        """Return where its configuration lies."""
        return {"ACSTOR_DECISION_CONF": str(self.conf_file)}

    def register(self) -> None:
        """Name it in Keystone's catalog, in place of an earlier one."""
        identity = accounts.connect(self._lab.keystone.auth_url).identity
        for old in identity.services(type=SERVICE_TYPE):
            identity.delete_service(old)
        service = identity.create_service(name="acstor", type=SERVICE_TYPE)
        identity.create_endpoint(
            service_id=service.id, interface="public", url=self.url, region_id=api.REGION
        )
