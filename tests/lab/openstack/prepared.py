# SPDX-License-Identifier: Apache-2.0
"""Databases and keys of a new cloud, made once per list of versions, then copied.

They contain no ports of the run that made them; :func:`accounts.announce` writes the addresses
of a copy.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import glance
from tests.lab.openstack import installed
from tests.lab.openstack import keystone
from tests.lab.openstack import mariadb
from tests.lab.openstack import nova
from tests.lab.openstack import rabbitmq

PARTS = ("mariadb", "keystone")  # kept folders of a cloud
DATABASES = ("keystone", "glance", "placement", "nova_api", "nova_cell0", "nova_cell1")
_MAKERS = ("prepared.py", "accounts.py", "keystone.py", "glance.py", "mariadb.py", "nova.py")
_COMMAND_DEADLINE_S = 300.0


def _folder() -> pathlib.Path:
    """Return the folder of the state for these versions and this code."""
    here = pathlib.Path(__file__).parent
    texts = b"".join((here / name).read_bytes() for name in _MAKERS)
    key = hashlib.sha256(installed.key().encode() + texts).hexdigest()[:12]
    return runs.CACHE_FOLDER / f"openstack-{key}"


def restore(folder: pathlib.Path) -> None:
    """Copy the prepared databases to a cloud that has none.

    :raises errors.Unusable: making the databases failed; or the cloud has databases of other
        versions
    """
    stamp = folder / "prepared-by"
    if stamp.exists() and stamp.read_text() != _folder().name:
        raise errors.Unusable(
            f"{folder}", "its databases are those of other versions: run down --wipe first"
        )
    if not stamp.exists():
        kept = ensure()
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)  # of an interrupted copy
            subprocess.run(["cp", "-a", "--reflink=auto", kept / part, folder / part], check=True)
        stamp.write_text(_folder().name)


def ensure() -> pathlib.Path:
    """Return the folder of the prepared state; make it at first use.

    :raises errors.Unusable: a command of a service failed; has the end of its output
    """
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            print("acstor: preparing the databases of OpenStack, once", file=sys.stderr)
            with runs.Run() as run:
                run.folder.mkdir(exist_ok=True)
                _make(run.folder)
                _keep(run.folder, folder)
    return folder


def _keep(made: pathlib.Path, folder: pathlib.Path) -> None:
    unfinished = made / "kept"
    unfinished.mkdir()
    for part in PARTS:
        shutil.move(made / part, unfinished / part)
    os.rename(unfinished, folder)


def _make(folder: pathlib.Path) -> None:
    database = mariadb.MariaDB(folder)
    broker = rabbitmq.RabbitMQ(folder)  # only named in configurations, never started
    identity = keystone.Keystone(folder, database)
    images = glance.Glance(folder, database, broker, identity)
    needs = nova.Needs(database, broker, identity, images)
    placement, servers = nova.Placement(folder, needs), nova.NovaApi(folder, needs)
    database.start()
    try:
        database.wait_ready()
        for name in DATABASES:
            database.new_database(name)
        for service in (identity, images, placement, servers):
            service.configure()
        others = [*identity.commands(), *placement.commands(), *images.commands()]
        _run_side_by_side([servers.commands(), others], folder)
        identity.start()
        identity.wait_ready()
        accounts.register(identity.auth_url)
        identity.stop()
        database.execute("SET GLOBAL innodb_fast_shutdown = 0")
    finally:
        identity.kill()
        database.stop()


def _run_side_by_side(
    lines: Sequence[Sequence[Sequence[str | pathlib.Path]]], folder: pathlib.Path
) -> None:
    """Run lines of commands in parallel, the commands of a line in sequence."""
    failures: list[errors.Unusable] = []

    def run_line(number: int, line: Sequence[Sequence[str | pathlib.Path]]) -> None:
        try:
            for argv in line:
                _run(argv, folder / "log" / f"prepare-{number}.log")
        except errors.Unusable as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=run_line, args=(number, line)) for number, line in enumerate(lines)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _run(argv: Sequence[str | pathlib.Path], log_path: pathlib.Path) -> None:
    with log_path.open("ab") as log:
        done = subprocess.run(
            argv, stdout=log, stderr=log, timeout=_COMMAND_DEADLINE_S, check=False
        )
    if done.returncode:
        end = log_path.read_text(errors="replace")[-2000:]
        raise errors.Unusable(" ".join(map(str, argv[:4])), f"exit {done.returncode}: {end}")
