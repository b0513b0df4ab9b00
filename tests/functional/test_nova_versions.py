# SPDX-License-Identifier: Apache-2.0
"""acstor registers with every published release of Nova in the table.

A release's own wheel comes first on the path, in a process of the virtualenv of the OpenStack
services; Nova reads its configuration there as nova-compute does.  So the tests check the hooks in
running code.

"""

import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable

import pytest

from acstor_nova import enable
from acstor_nova import nova_hooks
from acstor_nova import registration
from acstor_nova.evacuation import recovering_backend
from tests.lab import runs
from tests.lab.openstack import installed

WHEELS = runs.CHECKOUT / ".cache" / "nova-wheels"
RELEASES = {31: "31.3.1", 32: "32.2.1", 33: "33.0.2", 34: "34.0.0"}
PYTHONS = os.environ.get("ACSTOR_TEST_NOVA_PYTHONS", "").split()
"""Other Python programs to test: each of a virtualenv with Nova and acstor[nova]."""
NO_PYTHON = pytest.param("", marks=pytest.mark.skip(reason="ACSTOR_TEST_NOVA_PYTHONS names none"))
CONF = enable.TEXT
PROGRAM = """
import json, logging, sys
from nova import config
from nova.conf import CONF
config.parse_args(["nova-compute", "--config-file", sys.argv[1]])
logging.basicConfig(stream=sys.stderr)
from nova.compute import manager
from nova import exception
from nova.virt.libvirt import driver, imagebackend
made = imagebackend.Backend(True)

def refused(name):
    CONF.set_override("enabled", True, group="ephemeral_storage_encryption")
    try:
        made.BACKEND[name](path="/nowhere/disk")
    except exception.InternalError as e:
        return str(e)
    finally:
        CONF.clear_override("enabled", group="ephemeral_storage_encryption")

classes = {name: [base.__module__ + "." + base.__name__ for base in made.BACKEND[name].__mro__]
           for name in ("acstor", "qcow2") if name in made.BACKEND}
print(json.dumps({
    "from": imagebackend.__file__,
    "images_type": CONF.libvirt.images_type,
    "classes": classes,
    "precache": driver.LibvirtDriver.cache_image.__code__.co_filename,
    "clean_up": driver.LibvirtDriver.manage_image_cache.__code__.co_filename,
    "evacuations": manager.ComputeManager._rebuild_default_impl.__code__.co_filename,
    "snapshots": driver.libvirt_utils.extract_snapshot.__code__.co_filename,
    "composed": driver.LibvirtDriver._suspend_guest_for_snapshot.__code__.co_filename,
    "moves": driver.LibvirtDriver.migrate_disk_and_power_off.__code__.co_filename,
    "power": driver.libvirt_guest.Guest.poweroff.__code__.co_filename,
    "encrypted": {name: refused(name) for name in classes},
    "offers_luks": [made.BACKEND[name].SUPPORTS_LUKS for name in classes],
    "python": sys.executable,
}))
"""
OURS = [
    "acstor_nova.evacuation.recovering_backend.RecoveringBase",
    "acstor_nova.snapshots.delta_snapshot.DeltaSnapshotBase",
    "acstor_nova.imagebackend.MirrorBase",
]
STOCK = f"{registration.IMAGEBACKEND}.Qcow2"

pytestmark = pytest.mark.skipif(
    not installed.is_ready(),
    reason=f"the services of OpenStack are not installed: {installed.REMEDY}",
)


def wheel_of(release: str) -> pathlib.Path:
    """Return a published wheel, downloaded once."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    path = WHEELS / f"nova-{release}-py3-none-any.whl"
    with (WHEELS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            # A release may need another Python than this one; only its code matters here.
            wanted = ["--only-binary=:all:", "--python-version", "3.12", f"nova=={release}"]
            runs.tool([*pip, "--dest", WHEELS, *wanted])
    return path


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], pathlib.Path]:
    """Return a function that unpacks a release once and returns its folder, with compiled files."""

    @functools.cache
    def unpack(version: int) -> pathlib.Path:
        folder = tmp_path_factory.mktemp(f"nova-{version}")
        with zipfile.ZipFile(wheel_of(RELEASES[version])) as wheel:
            wanted = re.compile(r"nova/(?!tests/|locale/)|nova-[^/]*dist-info/")
            wheel.extractall(folder, [name for name in wheel.namelist() if wanted.match(name)])
        return folder

    return unpack


@pytest.fixture
def copy(released: Callable[[int], pathlib.Path], tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the newest release for a test to change."""
    return shutil.copytree(released(max(RELEASES)), tmp_path / "nova")


def run_nova(
    nova: pathlib.Path, argv: list[str | pathlib.Path], path: str = ""
) -> tuple[dict, str]:
    """Run a program with this Nova; return its report and its log."""
    done = subprocess.run(
        argv,
        cwd=nova,  # Python searches it first
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": path or f"{nova}:{runs.CHECKOUT}",
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def start_nova(
    nova: pathlib.Path, conf: str = CONF, *, has_acstor: bool = True, program: str = ""
) -> tuple[dict, str]:
    """Let this Nova read a configuration with acstor; return its report and its log.

    :param program: another Python than that of the services

    """
    conf_file = nova / "nova.conf"
    conf_file.write_text(conf)
    python = [program or installed.BIN / "python"]
    path = f"{nova}:{runs.CHECKOUT}"
    if not has_acstor:  # -S: nor by a link into a checkout
        python, path = [*python, "-S"], f"{nova}:{installed.packages()}"
    return run_nova(nova, [*python, "-c", PROGRAM, conf_file], path)


def test_table_lists_exactly_the_tested_releases():
    assert set(nova_hooks.HOOKS) == set(RELEASES)


def check_taken(nova: pathlib.Path, found: dict, log: str) -> None:
    """Check that this Nova uses all of acstor."""
    assert found["from"].startswith(str(nova))
    assert found["images_type"] == "acstor"
    for classes in found["classes"].values():
        assert classes[1:5] == [*OURS, STOCK]
    for what in ("precache", "clean_up", "snapshots", "composed", "moves", "power"):
        assert found[what] == registration.__file__, what
    assert found["evacuations"] == recovering_backend.__file__
    for words in (
        "acstor is disabled",
        "Nova uploads complete snapshots",
        "start from their images",
    ):
        assert words not in log
    check_encryption_refused(found)


def check_encryption_refused(found: dict) -> None:
    """Check that encrypted disks are Nova's error for operators, and find no host for users."""
    for words in found["encrypted"].values():
        assert "ephemeral storage encryption is supported only for LVM" in words
    assert not any(found["offers_luks"])


@pytest.mark.parametrize("version", RELEASES)
def test_release_registers_acstor(released, version):
    nova = released(version)
    check_taken(nova, *start_nova(nova))


@pytest.mark.parametrize("python", PYTHONS or [NO_PYTHON])
@pytest.mark.parametrize("version", RELEASES)
def test_release_registers_acstor_with_another_python(released, version, python):
    nova = released(version)
    found, log = start_nova(nova, program=python)
    assert found["python"] == python
    check_taken(nova, found, log)


def refused(found: dict, log: str) -> str:
    """Return why acstor was refused; Nova must have used its own class."""
    assert found["images_type"] == "acstor"
    assert found["classes"]["acstor"][0] == found["classes"]["qcow2"][0] == STOCK
    return re.search(r"acstor is disabled; Nova works as with images_type = qcow2: (.*)", log)[1]


def test_unknown_version_is_refused_and_nova_starts_without_acstor(copy):
    metadata = next(copy.glob("nova-*.dist-info")) / "METADATA"
    text = metadata.read_text()
    metadata.write_text(re.sub(r"^Version: .*$", "Version: 35.0.0", text, count=1, flags=re.M))
    assert "Nova 35.0.0: acstor was tested with versions 31 to 34 only" in refused(
        *start_nova(copy)
    )


@pytest.mark.parametrize(
    ("seam", "damage", "why"),
    [
        ("virt/libvirt/imagebackend.py", "Image.cache = lambda self, fetch: None", "takes"),
        ("virt/images.py", "del do_image_deep_inspection", "does not exist"),
    ],
)
def test_changed_hook_is_refused_and_nova_starts_without_acstor(copy, seam, damage, why):
    with (copy / "nova" / seam).open("a") as file:
        file.write(f"\n{damage}\n")
    assert why in refused(*start_nova(copy))


def test_changed_snapshot_hook_disables_only_flattened_snapshots(copy):
    with (copy / "nova" / "virt/libvirt/driver.py").open("a") as file:
        file.write("\nLibvirtDriver._live_snapshot = lambda self: None\n")
    found, log = start_nova(copy)
    assert "LibvirtDriver._live_snapshot takes ('self',)" in log
    assert found["composed"] != registration.__file__ == found["precache"]
    assert found["classes"]["acstor"][1:4] == OURS


@pytest.mark.parametrize("version", RELEASES)
def test_nova_without_acstor_starts_with_the_enabling_file(released, version):
    """As after a stock nova-compute replaces one with acstor."""
    nova = released(version)
    found, log = start_nova(nova, has_acstor=False)
    assert found["images_type"] == "default"
    assert list(found["classes"]) == ["qcow2"]
    assert found["classes"]["qcow2"][0] == STOCK
    assert "could not load configuration from 'acstor'" in log


def test_backend_named_in_a_configuration_file_is_kept(released):
    nova = released(max(RELEASES))
    found, _ = start_nova(nova, f"{CONF}\n[libvirt]\nimages_type = qcow2\n")
    assert found["images_type"] == "qcow2"
    assert found["classes"]["qcow2"][0] == STOCK
    found, _ = start_nova(nova, f"{CONF}\n[libvirt]\nimages_type = acstor\n")
    assert found["images_type"] == "acstor"
    assert found["classes"]["qcow2"][1:5] == [*OURS, STOCK]


def test_nova_without_acstor_configured_is_unchanged(released):
    nova = released(max(RELEASES))
    found, _ = start_nova(nova, "[libvirt]\nimages_type = qcow2\n")
    assert list(found["classes"]) == ["qcow2"]
    assert found["classes"]["qcow2"][0] == STOCK
    assert registration.__file__ not in (found["precache"], found["power"])
