# SPDX-License-Identifier: Apache-2.0
"""The virtualenv of the OpenStack services, ``.venv-openstack``.

It has exactly the versions of ``requirements.txt``, and this checkout's acstor as editable, so the
services load the current plug-ins.
"""

import fcntl
import hashlib
import pathlib
import subprocess
import sys

from acstor_common import errors
from tests.lab import runs

VENV = runs.CHECKOUT / ".venv-openstack"
BIN = VENV / "bin"
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
EXTRAS = "gateway,glance,nova"
TEMPEST_REQUIREMENTS = REQUIREMENTS.with_name("requirements-tempest.txt")
CINDER_REQUIREMENTS = REQUIREMENTS.with_name("requirements-cinder.txt")
TEMPEST_PLUGIN = runs.CHECKOUT / "tests" / "tempest"
REMEDY = "run tools/openstack-lab.sh install"
_RELEASES = VENV / ".releases-installed"
_CHECKOUT = VENV / ".checkout-installed"
_TEMPEST = VENV / ".tempest-installed"
_CINDER = VENV / ".cinder-installed"
_LOG = runs.CHECKOUT / ".cache" / "logs" / "openstack-pip.log"
_SYSTEM_PYTHON = "/usr/bin/python3"
_SYSTEM_PACKAGES = pathlib.Path("/usr/lib/python3/dist-packages")
_AT_START = """\
import atexit, gc; gc.set_threshold(10_000, 20, 100); atexit.register(gc.freeze)
"""
"""Start-up code of its processes: garbage collection takes half of a start."""


def key() -> str:
    """Return a key of this list of versions, for file names."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]


def _checkout_key() -> str:
    files = [runs.CHECKOUT / name for name in ("pyproject.toml", "setup.cfg")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _has(stamp: pathlib.Path, value: str) -> bool:
    return stamp.is_file() and stamp.read_text() == value


def packages() -> pathlib.Path:
    """Return the folder of the installed packages; acstor is a link in it."""
    return next(VENV.glob("lib/python3*/site-packages"))


def is_ready() -> bool:
    """Return whether the virtualenv has the wanted versions."""
    return _has(_RELEASES, key())


def _run(*argv: str | pathlib.Path) -> None:
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    with _LOG.open("ab") as log:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if done.returncode:
        end = _LOG.read_text(errors="replace")[-2000:]
        raise errors.Unusable(" ".join(map(str, argv)), f"exit {done.returncode}: {end}")


def _pip(*arguments: str | pathlib.Path) -> None:
    _run("bash", runs.CHECKOUT / "tools" / "pip-install.sh", VENV, *arguments)


def _install_releases() -> None:
    print(f"acstor: installing the OpenStack services in {VENV}", file=sys.stderr)
    _run(_SYSTEM_PYTHON, "-m", "venv", "--clear", VENV)
    _pip("--no-deps", "--requirement", REQUIREMENTS)
    _RELEASES.write_text(key())


def _install_checkout() -> None:
    _pip("--editable", f"{runs.CHECKOUT}[{EXTRAS}]", "--constraint", REQUIREMENTS)
    _CHECKOUT.write_text(_checkout_key())


def _link_ceph() -> None:
    """Link the distribution's Ceph bindings, which are in no package index."""
    folder = packages()
    for name in ("rados", "rbd"):
        for file in _SYSTEM_PACKAGES.glob(f"{name}.cpython-*.so"):
            link = folder / file.name
            if not link.is_symlink():
                link.symlink_to(file)


def _tune_garbage_collector() -> None:
    """Make processes collect garbage rarely, and not at exit."""
    (packages() / "acstor-lab.pth").write_text(_AT_START)


def install() -> None:
    """Make or update the virtualenv; do nothing if its inputs are unchanged.

    :raises errors.Unusable: a package cannot be installed; has pip's output
    """
    with REQUIREMENTS.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready():
            _install_releases()
        if not _has(_CHECKOUT, _checkout_key()):
            _install_checkout()
        _link_ceph()
        _tune_garbage_collector()


def has_cinder() -> bool:
    """Return whether the virtualenv has Cinder."""
    return is_ready() and _has(_CINDER, CINDER_REQUIREMENTS.read_text())


def install_cinder() -> None:
    """Make the virtualenv, and add Cinder.

    :raises errors.Unusable: a package cannot be installed; has pip's output
    """
    install()
    with CINDER_REQUIREMENTS.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not has_cinder():
            _pip("--no-deps", "--requirement", CINDER_REQUIREMENTS)
            _CINDER.write_text(CINDER_REQUIREMENTS.read_text())


def _tempest_key() -> str:
    files = (TEMPEST_REQUIREMENTS, TEMPEST_PLUGIN / "pyproject.toml")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def has_tempest() -> bool:
    """Return whether the virtualenv has Tempest and this checkout's plug-in."""
    return is_ready() and _has(_TEMPEST, _tempest_key())


def install_tempest() -> None:
    """Make the virtualenv, and add Tempest and acstor's plug-in for it.

    :raises errors.Unusable: a package cannot be installed; has pip's output
    """
    install()
    with TEMPEST_REQUIREMENTS.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _has(_TEMPEST, _tempest_key()):
            _pip("--no-deps", "--requirement", TEMPEST_REQUIREMENTS)
            _pip("--no-deps", "--editable", TEMPEST_PLUGIN)
            _TEMPEST.write_text(_tempest_key())
