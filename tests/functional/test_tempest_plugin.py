# SPDX-License-Identifier: Apache-2.0
"""acstor's plug-in in the real Tempest; contributor/tempest says how to run its tests."""

import os
import pathlib
import shutil

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


def test_tempest_finds_the_scenarios_and_accepts_their_options(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed.has_tempest():
        pytest.skip(f"Tempest is not installed: {installed.REMEDY}")
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
