# SPDX-License-Identifier: Apache-2.0
"""acstor's plug-in in the real Tempest; contributor/tempest says how to run its tests."""

import os
import pathlib
import shutil
import subprocess

import pytest

from tests.lab import runs
from tests.lab.openstack import installed
from tests.lab.openstack import tempest
from tests.tempest.acstor_tempest_plugin import guest

SCENARIOS = {
    "test_guest_data_survives_a_reboot",
    "test_image_in_qcow2_is_served_without_conversion",
    "test_image_of_another_format_is_downloaded_and_counted",
    "test_server_boots_without_a_download",
    "test_server_keeps_its_disk_in_a_live_migration",
    "test_snapshot_equals_the_disk_and_boots",
}
SHOW_OPTIONS = """
from tempest import config
print(config.CONF.service_available.acstor, dict(config.CONF.acstor.agent_metrics))
"""
CUT_RUN = """
import subunit, sys
stream = subunit.StreamResultToBytes(sys.stdout.buffer)
for name, status in (("T.old", "exists"), ("T.a[id-1]", "inprogress"), ("T.a[id-1]", "success"),
                     ("T.b", "inprogress"), ("T.b", "fail"), ("T.c", "inprogress")):
    stream.status(test_id=name, test_status=status)
"""
needs_tempest = pytest.mark.skipif(
    not installed.has_tempest(), reason=f"Tempest is not installed: {installed.REMEDY}"
)


@needs_tempest
def test_test_that_runs_when_its_run_is_cut_has_no_result(tmp_path: pathlib.Path) -> None:
    python = installed.BIN / "python"
    stream = subprocess.run([python, "-c", CUT_RUN], stdout=subprocess.PIPE, check=True).stdout
    (tmp_path / "stream").write_bytes(stream)
    found = tempest.outcomes_of(tmp_path)
    assert {name: test["outcome"] for name, test in found.items()} == {
        "T.a": "passed",
        "T.b": "failed",
    }


@needs_tempest
def test_tempest_finds_the_scenarios_and_accepts_their_options(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tempest.make_workspace(
        tmp_path,
        {
            "service_available": {"acstor": True},
            "acstor": {"agent_metrics": "h1:http://192.0.2.1:9464/metrics"},
        },
    )
    names = tempest.ids_of(tmp_path, r"^acstor_tempest_plugin\.")
    assert {name.rpartition(".")[2] for name in names} == SCENARIOS
    monkeypatch.setenv("TEMPEST_CONFIG_DIR", os.fspath(tmp_path / "etc"))
    shown = runs.tool([installed.BIN / "python", "-c", SHOW_OPTIONS])
    assert shown.splitlines()[-1] == "True {'h1': 'http://192.0.2.1:9464/metrics'}"


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
@pytest.mark.parametrize("disk_format", ["qcow2", "vdi"])
def test_images_of_other_formats_have_the_bytes_of_the_disk(
    tmp_path: pathlib.Path, disk_format: str
) -> None:
    disk, image, raw = guest.image(17 * guest.MIB, seed=1), tmp_path / "image", tmp_path / "raw"
    image.write_bytes({"qcow2": guest.qcow2, "vdi": guest.vdi}[disk_format](disk))
    runs.tool(["qemu-img", "check", "-q", "-f", disk_format, image])
    runs.tool(["qemu-img", "convert", "-f", disk_format, "-O", "raw", image, raw])
    assert raw.read_bytes() == disk
