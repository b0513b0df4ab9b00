# SPDX-License-Identifier: Apache-2.0
"""The machine that Ansible runs on: its inventory, its playbooks, and hosts that it reaches by SSH.

The rule: a host has a Python and a sshd on an address of the loopback, and nothing else of Ansible.
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
    """What a playbook did.

    :param changed: how many tasks changed something, by host
    :param failed: hosts on which a task failed, or that were not reached
    """

    changed: dict[str, int]
    failed: set[str]
    said: str


def install() -> None:
    """Make Ansible's virtualenv if it is not there.

    :raises errors.Unusable: it cannot be installed here
    """
    stamp = VENV / WANTED
    if not stamp.is_file():
        runs.tool([sys.executable, "-m", "venv", VENV])
        runs.tool([VENV / "bin/pip", "install", "--quiet", WANTED])
        stamp.touch()


def serve_ssh(host: systemd_host.SystemdHost, address: str, key: pathlib.Path) -> dict[str, Any]:
    """Start a sshd there, and return what an inventory says of the host."""
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
    """A key, and a copy of the source tree's playbooks below ``packaging/ansible``.

    :param folder: an empty one
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.key, self._folder = folder / "key", folder
        runs.tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key])
        self._books = folder / FOLDER.relative_to(runs.CHECKOUT)
        shutil.copytree(FOLDER, self._books)

    def run(self, lines: Sequence[str]) -> None:
        """Run lines of a shell at the root of the source tree's copy.

        :raises errors.Unusable: one failed
        """
        runs.tool(["env", "-C", self._folder, "bash", "-ec", "\n".join(lines)])

    def edit(self, inventory: dict[str, Any]) -> None:
        """Write other hosts and variables into the inventory, which is there."""
        path = self._books / "inventory.yml"
        assert path.is_file()
        path.write_text(json.dumps(inventory))

    def play(self, line: str, *arguments: str) -> Played:
        """Run a playbook by a command line that an operator gives, and return what it did.

        :param arguments: more of them
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
