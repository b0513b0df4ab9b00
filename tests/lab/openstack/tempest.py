# SPDX-License-Identifier: Apache-2.0
"""Tempest on a lab cloud: its configuration, its run, its results.

Tempest creates its own projects and users; its configuration has only Keystone's URL, images,
flavors, and missing features of this cloud.
"""

import contextlib
import datetime
import functools
import json
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Iterator
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import tempest_cloud
from tests.lab.openstack import tempest_results
from tests.tempest.acstor_tempest_plugin import guest

REGEX = r"^(tempest\.api\.(image|compute)\.|acstor_tempest_plugin\.)"
RESULTS = runs.CHECKOUT / "results"
_IMAGE_BYTES = 16 << 20
_MAP_DEADLINE_S = 120.0
_GROUPS = r"([^\.]*\.)*"  # tests of one class run in sequence
_VERSIONS = ("nova", "glance", "keystone", "openstack-placement", "tempest")


def _packages() -> pathlib.Path:
    return next(installed.VENV.glob("lib/*/site-packages"))


@contextlib.contextmanager
def _images(
    lab: cloud.Cloud, files: tempest_cloud.Files, is_mapped: bool
) -> Iterator[Sequence[str]]:
    """Upload the servers' two images, for a block; yield their ids."""
    client = lab.connect().image
    facts = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
    made = []
    try:
        for seed, name in enumerate(("tempest", "tempest-alt")):
            raw = files.files / f"{name}.raw"
            raw.write_bytes(guest.image(_IMAGE_BYTES, seed))
            runs.tool(["qemu-img", "convert", "-O", "qcow2", raw, raw.with_suffix(".qcow2")])
            made.append(client.create_image(name=name, data=raw.read_bytes(), **facts).id)
        for image_id in made if is_mapped else ():
            has_map = functools.partial(_has_map, client, image_id)
            runs.wait_for(has_map, _MAP_DEADLINE_S, f"the chunk map of {image_id}", str)
        yield made
    finally:
        for image_id in made:
            client.delete_image(image_id)


def _has_map(client: Any, image_id: str) -> bool:
    return bool(client.get_image(image_id).properties.get("acstor_chunk_map"))


def _sections(
    lab: cloud.Cloud,
    files: tempest_cloud.Files,
    way: str,
    folder: pathlib.Path,
    images: Sequence[str],
) -> ini.Sections:
    compute = lab.connect().compute
    first, second = (compute.find_flavor(name).id for name in tempest_cloud.FLAVORS)
    agents = [f"{host.host}:{tempest_cloud.metrics_url(host)}" for host in lab.computes]
    return {
        "DEFAULT": {"log_file": folder / "tempest.log", "debug": False},
        "auth": {
            "admin_username": "admin",
            "admin_password": api.PASSWORD,
            "admin_project_name": "admin",
            "admin_domain_name": "Default",
            "create_isolated_networks": False,
        },
        "identity": {"uri_v3": lab.keystone.auth_url, "region": api.REGION},
        "oslo_concurrency": {"lock_path": folder / "locks"},
        "service_available": {
            **dict.fromkeys(("neutron", "cinder", "swift", "horizon"), False),
            "acstor": way == "acstor",
        },
        "acstor": {"agent_metrics": ",".join(agents), "image_mib": _IMAGE_BYTES >> 20},
        "compute": {
            "image_ref": images[0],
            "image_ref_alt": images[1],
            "flavor_ref": first,
            "flavor_ref_alt": second,
            "min_compute_nodes": len(lab.computes),
            "max_microversion": "latest",
        },
        "compute-feature-enabled": {
            "resize": True,
            "block_migration_for_live_migration": True,
            "live_migrate_back_and_forth": True,
            "shelve_migrate": True,
            "stable_rescue": True,
            "hostname_fqdn_sanitization": True,
            "attach_encrypted_volume": False,
            "interface_attach": False,
            "metadata_service": False,
            "scheduler_enabled_filters": ",".join(tempest_cloud.FILTERS),
        },
        "image": {
            "http_image": f"{files.url}/tempest.raw",
            "http_qcow2_image": f"{files.url}/tempest.qcow2",
        },
        "validation": {"run_validation": False},
    }


def _run(folder: pathlib.Path, name: str, *words: str, **options: Any) -> Any:
    """Run a Tempest command in ``folder`` to its end; return its output."""
    environment = {
        "HOME": str(folder),
        "PATH": f"{installed.BIN}:{os.environ['PATH']}",
        "TEMPEST_CONFIG_DIR": str(folder / "etc"),
    }
    record = folder / f"{name}{runs.RECORD_SUFFIX}"
    process = subprocess.Popen(
        [installed.BIN / name, *words],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    runs.record(process.pid, record)
    try:
        return process.communicate()
    finally:
        runs.kill_recorded(record)  # its workers too, on an interrupt


def make_workspace(folder: pathlib.Path, sections: ini.Sections) -> None:
    """Create a Tempest workspace with this configuration."""
    tests = {"test_path": _packages() / "tempest" / "test_discover", "top_dir": _packages()}
    ini.write(folder / ".stestr.conf", {"DEFAULT": {**tests, "group_regex": _GROUPS}})
    ini.write(folder / "etc" / "tempest.conf", sections)
    _run(folder, "stestr", "init")


def names_of(folder: pathlib.Path, regex: str) -> list[str]:
    """Return the names of the matching tests.

    :raises errors.Unusable: there are none, or Tempest cannot load them; has the reason
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    listed, why = _run(folder, "tempest", "run", "--list-tests", "--regex", regex, **pipes)
    names = [line.partition("[")[0] for line in listed.decode().splitlines()]
    names = [name for name in names if re.search(regex, name)]
    if not names:
        raise errors.Unusable(f"tempest run --regex {regex}", why.decode()[-2000:])
    return names


def _outcomes(folder: pathlib.Path) -> dict[str, Any]:
    """Return the outcomes of the last run in ``folder``."""
    stream, _ = _run(folder, "stestr", "last", "--subunit", stdout=subprocess.PIPE)
    reader = [installed.BIN / "python", pathlib.Path(__file__).with_name("subunit_json.py")]
    done = subprocess.run(reader, input=stream, capture_output=True, check=True)
    tests: dict[str, Any] = json.loads(done.stdout)
    return tests


def _versions() -> dict[str, str]:
    found = {dist.name: dist.version for dist in metadata.distributions(path=[str(_packages())])}
    return {name: found[name] for name in _VERSIONS}


def run(way: str, regex: str, concurrency: int) -> dict[str, Any]:
    """Run the matching Tempest tests on a new cloud.

    :param way: one of :data:`tempest_cloud.WAYS`
    :raises errors.Unusable: the cloud does not start, or no test matches; has the reason
    """
    begin = time.monotonic()
    with runs.Run() as made:
        lab = cloud.Cloud(made.folder / "openstack")
        try:
            lab.start_compute_services()
            with tempest_cloud.set_up(lab, way) as files:
                print(f"acstor: the cloud is up after {time.monotonic() - begin:.0f} s", flush=True)
                return run_on(lab, files, way, made.folder / "tempest", regex, concurrency)
        finally:
            lab.stop()


def run_on(
    lab: cloud.Cloud,
    files: tempest_cloud.Files,
    way: str,
    folder: pathlib.Path,
    regex: str,
    concurrency: int = 1,
) -> dict[str, Any]:
    """Run the matching Tempest tests on a prepared cloud.

    :param folder: for Tempest's files
    :raises errors.Unusable: no test matches; has the reason
    """
    with _images(lab, files, is_mapped=way == "acstor") as images:
        make_workspace(folder, _sections(lab, files, way, folder, images))
        names = names_of(folder, regex)
        begin = time.monotonic()
        _run(folder, "tempest", "run", "--regex", regex, "--concurrency", str(concurrency))
    return {
        "way": way,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "regex": regex,
        "concurrency": concurrency,
        "seconds": round(time.monotonic() - begin),
        "versions": _versions(),
        "listed": len(names),
        "tests": tempest_results.of_classes(_outcomes(folder), names),
    }
