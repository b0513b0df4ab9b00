# SPDX-License-Identifier: Apache-2.0
"""The Ansible control node: inventory, playbooks, and hosts reached by SSH.

A host has only Python and sshd on a loopback address.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host

FOLDER = runs.CHECKOUT / "packaging/ansible"
VENV = runs.CHECKOUT / ".cache/ansible"
WANTED = "ansible-core==2.19.14"
PLAY_S = 2400.0
SSH = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"

_RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.M)


class Played(NamedTuple):
    """The result of a playbook.

    :param changed: number of tasks with changes, by host
    :param failed: hosts with a failed task, or unreachable
    """

    changed: dict[str, int]
    failed: set[str]
    said: str


def install() -> None:
    """Make Ansible's virtualenv if it is missing.

    :raises errors.Unusable: it cannot be installed
    """
    stamp = VENV / WANTED
    if not stamp.is_file():
        runs.tool([sys.executable, "-m", "venv", VENV])
        runs.tool([VENV / "bin/pip", "install", "--quiet", WANTED])
        stamp.touch()


def serve_ssh(host: systemd_host.SystemdHost, address: str, key: pathlib.Path) -> dict[str, Any]:
    """Start sshd on a host; return the host's inventory entry."""
    port = local.unused_port()
    host.run("install", "-d", "-m", "700", "/root/.ssh", "/run/sshd")
    host.path("/root/.ssh/authorized_keys").write_text(key.with_suffix(".pub").read_text())
    sshd = ("/usr/sbin/sshd", "-D", "-o", f"ListenAddress={address}:{port}", "-o", "UsePAM=no")
    host.run("systemd-run", "--quiet", "--unit=lab-sshd", *sshd)
    return {
        "ansible_host": address,
        "ansible_port": port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": SSH,
        "ansible_python_interpreter": "/usr/bin/python3",
    }


class Control:
    """An SSH key, and a copy of the playbooks in ``packaging/ansible``.

    :param folder: an empty one
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.key, self._folder = folder / "key", folder
        runs.tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key])
        self._books = folder / FOLDER.relative_to(runs.CHECKOUT)
        shutil.copytree(FOLDER, self._books)

    def run(self, lines: Sequence[str]) -> None:
        """Run shell lines at the root of the source tree's copy.

        :raises errors.Unusable: one failed
        """
        runs.tool(["env", "-C", self._folder, "bash", "-ec", "\n".join(lines)])

    def edit(self, inventory: dict[str, Any]) -> None:
        """Replace the inventory."""
        path = self._books / "inventory.yml"
        assert path.is_file()
        path.write_text(json.dumps(inventory))

    def play(self, line: str, *arguments: str) -> Played:
        """Run a documented playbook command; return its result.

        :param arguments: further arguments
        """
        own = {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": self._folder / "home"}
        own["PATH"] = f"{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        program, *words = shlex.split(line)
        assert program == "ansible-playbook"
        done = runs.run_to_end(
            [VENV / "bin" / program, *words, *arguments],
            PLAY_S,
            cwd=self._books,
            env={name: str(value) for name, value in own.items()} | {"HOME": str(self._folder)},
        )
        rows = _RECAP.findall(done.stdout)
        if not rows:
            raise errors.Unusable(line, done.stdout[-3000:])
        changed = {host: int(count) for host, count, _, _ in rows}
        failed = {host for host, _, away, failed in rows if int(away) or int(failed)}
        assert bool(failed) == bool(done.returncode), done.stdout
        return Played(changed, failed, done.stdout)
