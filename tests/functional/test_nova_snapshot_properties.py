# SPDX-License-Identifier: Apache-2.0
"""Properties of snapshots that the real Nova takes from an instance's system metadata."""

import json
import os

import pytest

from acstor_nova import imagebackend
from tests.lab import runs
from tests.lab.openstack import installed

SHOW_PROPERTIES = """
import json, sys, types
from nova.compute import utils
metadata = {sys.argv[1]: "hash", "image_hw_disk_bus": "virtio"}
server = types.SimpleNamespace(project_id="p", system_metadata=metadata)
made = utils.initialize_instance_snapshot_metadata(server, server, "s")
print(json.dumps(made["properties"]))
"""


@pytest.mark.skipif(not installed.is_ready(), reason=f"Nova is not installed: {installed.REMEDY}")
def test_snapshot_does_not_inherit_the_recorded_hash_of_the_image() -> None:
    """Tempest's test_nova_image_snapshot_dependency: Glance refused to create the snapshot."""
    argv = [installed.BIN / "python", "-c", SHOW_PROPERTIES, imagebackend.METADATA_KEY]
    shown = json.loads(runs.tool([os.fspath(word) for word in argv]).splitlines()[-1])
    assert shown == {"hw_disk_bus": "virtio"}
