# SPDX-License-Identifier: Apache-2.0
"""The command ``openstack``, run by users and operators of the lab's cloud.

Its imports take five times as long as its work, so a fork server of multiprocessing imports them
once, and each command is a fork of it.  A fork shares only the modules: arguments, environment,
output and status are its own.
"""

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_common import errors
from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import cloud

DEADLINE_S = 300.0
_SHARED = ("openstackclient.shell", "acstor_osc.plugin", "openstack.connection")


def openstack(
    lab: cloud.Cloud, user: str, *words: str | pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Run ``openstack …`` as one of :data:`accounts.USERS`; return status and output.

    :raises errors.Unusable: it does not end
    """
    options = api.credentials(lab.keystone.auth_url, user, accounts.USERS[user].project)
    given = {f"OS_{name.upper()}": str(value) for name, value in options.items()}
    environment = {
        **os.environ,
        **given,
        "OS_IDENTITY_API_VERSION": "3",
        "OS_REGION_NAME": api.REGION,
    }
    argv = ["openstack", *map(str, words)]
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(list(_SHARED))
    with tempfile.TemporaryDirectory() as folder:
        streams = (pathlib.Path(folder, "out"), pathlib.Path(folder, "err"))
        command = forks.Process(target=_run, args=(argv, environment, streams))
        command.start()
        command.join(DEADLINE_S)
        if command.exitcode is None:
            command.kill()
            command.join()
            raise errors.Unusable(" ".join(argv), f"it does not end in {DEADLINE_S:g} s")
        out, err = (stream.read_text() for stream in streams)
        return subprocess.CompletedProcess(argv, command.exitcode, out, err)


def _run(
    argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[pathlib.Path]
) -> None:
    """Run the command in this forked process."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(argv)
    from cliff import app
    from openstackclient import shell

    app.App.NAME = argv[0]  # its import takes it from the fork server
    sys.exit(shell.main())
