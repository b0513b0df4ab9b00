# SPDX-License-Identifier: Apache-2.0
"""The command ``openstack``, as users and operators of the lab's cloud run it."""

import os
import pathlib
import subprocess
import sys

from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import cloud


def openstack(
    lab: cloud.Cloud, user: str, *words: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Run ``openstack …`` for one of :data:`accounts.USERS`; the status is for the caller."""
    options = api.credentials(lab.keystone.auth_url, user, accounts.USERS[user].project)
    given = {f"OS_{name.upper()}": str(value) for name, value in options.items()}
    return subprocess.run(
        [pathlib.Path(sys.prefix) / "bin/openstack", *words],
        env={**os.environ, **given, "OS_IDENTITY_API_VERSION": "3", "OS_REGION_NAME": api.REGION},
        capture_output=True,
        text=True,
        check=False,
    )
