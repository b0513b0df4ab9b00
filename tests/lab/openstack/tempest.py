# SPDX-License-Identifier: Apache-2.0
"""Tempest on a lab cloud: its configuration, its run, its results.

Tempest creates its own projects and users; its configuration has only Keystone's URL, images,
flavors, and missing features of this cloud.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
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
_PROGRESS_S = 300.0
_GROUPS = r"([^\.]*\.)*"  # tests of one class run in sequence
_VERSIONS = ("nova", "glance", "keystone", "openstack-placement", "tempest")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How tests run.

    :ivar concurrency: tests at once
    :ivar stop_s: the run is cut then; by the monotonic clock
    :ivar test_s: longest time of a test; 0: unlimited
    """

    concurrency: int = 1
    stop_s: float = math.inf
    test_s: int = 0


def _packages() -> pathlib.Path:
    return next(installed.VENV.glob("lib/*/site-packages"))


def upload_images(lab: cloud.Cloud, files: tempest_cloud.Files, way: str) -> list[str]:
    """Upload the servers' two images; return their ids."""
    client = lab.connect().image
    facts = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
    made = []
    for seed, name in enumerate(tempest_cloud.FLAVORS):
        raw = files.files / f"{name}.raw"
        raw.write_bytes(guest.image(_IMAGE_BYTES, seed))
        runs.tool(["qemu-img", "convert", "-O", "qcow2", raw, raw.with_suffix(".qcow2")])
        made.append(client.create_image(name=name, data=raw.read_bytes(), **facts).id)
    for image_id in made if way == "acstor" else ():
        has_map = functools.partial(_has_map, client, image_id)
        runs.wait_for(has_map, _MAP_DEADLINE_S, f"the chunk map of {image_id}", str)
    return made


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


def _command(
    folder: pathlib.Path, name: str, *words: str | pathlib.Path, **options: Any
) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
    """Run a Tempest command in ``folder`` for a block."""
    environment = {
        "HOME": str(folder),
        "PATH": f"{installed.BIN}:{os.environ['PATH']}",
        "TEMPEST_CONFIG_DIR": str(folder / "etc"),
        **options.pop("env", {}),
    }
    argv = [installed.BIN / name, *words]
    record = folder / f"{name}{runs.RECORD_SUFFIX}"
    return runs.started(argv, record, cwd=folder, env=os.environ | environment, **options)


def _run(folder: pathlib.Path, name: str, *words: str, **options: Any) -> Any:
    """Run a Tempest command in ``folder`` to its end; return its output."""
    with _command(folder, name, *words, **options) as process:
        return process.communicate()


def make_workspace(folder: pathlib.Path, sections: ini.Sections) -> None:
    """Create a Tempest workspace with this configuration."""
    tests = {"test_path": _packages() / "tempest" / "test_discover", "top_dir": _packages()}
    ini.write(folder / ".stestr.conf", {"DEFAULT": {**tests, "group_regex": _GROUPS}})
    ini.write(folder / "etc" / "tempest.conf", sections)
    _run(folder, "stestr", "init")


def ids_of(folder: pathlib.Path, regex: str) -> dict[str, str]:
    """Return the matching tests: name to Tempest's id.

    :raises errors.Unusable: there are none, or Tempest cannot load them; has the reason
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    listed, why = _run(folder, "tempest", "run", "--list-tests", "--regex", regex, **pipes)
    ids = {line.partition("[")[0]: line for line in sorted(listed.decode().splitlines())}
    ids = {name: test_id for name, test_id in ids.items() if re.search(regex, name)}
    if not ids:
        raise errors.Unusable(f"tempest run --regex {regex}", why.decode()[-2000:])
    return ids


def list_tests(regex: str) -> dict[str, str]:
    """Return :func:`ids_of` without a cloud; install Tempest first."""
    installed.install_tempest()
    with tempfile.TemporaryDirectory() as folder:
        make_workspace(pathlib.Path(folder), {})
        return ids_of(pathlib.Path(folder), regex)


def _run_tests(folder: pathlib.Path, ids: Mapping[str, str], plan: Plan) -> bool:
    """Run tests; return whether all had time."""
    chosen = folder / "tests"
    chosen.write_text("".join(f"{test_id}\n" for test_id in ids.values()))
    words = ("--subunit", "--load-list", chosen, "--concurrency", str(plan.concurrency))
    env = {"OS_TEST_TIMEOUT": str(plan.test_s)}
    with (
        (folder / "stream").open("wb") as stream,
        _command(folder, "tempest", "run", *words, stdout=stream, env=env) as process,
    ):
        while (left_s := plan.stop_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(left_s, _PROGRESS_S))
                return True
            done = len(tempest_results.of_classes(outcomes_of(folder), list(ids)))
            print(f"acstor: {done} of {len(ids)} tests have a result", flush=True)
    return False


def outcomes_of(folder: pathlib.Path) -> dict[str, Any]:
    """Return the outcomes so far of the run in ``folder``, by test or class."""
    reader = [installed.BIN / "python", pathlib.Path(__file__).with_name("subunit_json.py")]
    with (folder / "stream").open("rb") as stream:
        done = subprocess.run(reader, stdin=stream, capture_output=True, check=True)
    tests: dict[str, Any] = json.loads(done.stdout)
    return tests


def _versions() -> dict[str, str]:
    found = {dist.name: dist.version for dist in metadata.distributions(path=[str(_packages())])}
    return {name: found[name] for name in _VERSIONS}


def run(way: str, ids: Mapping[str, str], plan: Plan) -> dict[str, Any]:
    """Run Tempest tests on a new cloud.

    :param way: one of :data:`tempest_cloud.WAYS`
    :param ids: of :func:`list_tests`
    :raises errors.Unusable: the cloud does not start; has the reason
    """
    with tempest_cloud.started(way) as (lab, files, run_folder):
        folder, images = run_folder / "tempest", upload_images(lab, files, way)
        make_workspace(folder, _sections(lab, files, way, folder, images))
        begin = time.monotonic()
        is_whole = _run_tests(folder, ids, plan)
        tests = tempest_results.of_classes(outcomes_of(folder), list(ids))
    return {
        "way": way,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "concurrency": plan.concurrency,
        "seconds": round(time.monotonic() - begin),
        "versions": _versions(),
        "listed": len(ids),
        "is_cut": not is_whole,
        "tests": tests,
    }
