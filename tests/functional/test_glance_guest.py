# SPDX-License-Identifier: Apache-2.0
"""A real guest boots from a real Glance, with all artefacts that acstor makes of an image.

The listener hashes the image and boots it once for its boot image; an agent takes both, and the
image's bytes, from Glance.  ``test_nova_first_boot`` does so in each run.
"""

import pathlib
import re
import shutil
from collections.abc import Callable

import pytest

from acstor_common.image import artefacts
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import uploads

pytestmark = [
    pytest.mark.nightly,
    hosts.needs_fuse,
    pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed"),
    pytest.mark.timeout(1200),  # a guest boots twice, under emulation if there is no KVM
]
Listen = Callable[..., acstor_glance.Listener]
LIFE_S = 500.0
EASY = ("boot", "zero")
"""Origins that need neither disk nor network."""


def upload_file(glance: uploads.Images, path: pathlib.Path) -> ids.ImageId:
    """Upload an image that is too large for memory."""
    image_id = ids.parse_image_id(glance.create().id)
    octets = {"Content-Type": "application/octet-stream"}
    with path.open("rb") as data:
        answer = glance.tenant.put(f"/images/{image_id}/file", data=data, headers=octets)
    assert answer.status_code == 204, answer.text
    return image_id


def wait_boot_image_loaded(agent: agents.Agent, image_id: ids.ImageId) -> None:
    def is_ready() -> bool:
        shown = agent.status()["images"][image_id]["boot_image"]
        return bool(shown and shown["state"] == "ready")

    agents.request(agent.control_socket, "attach-image", image_id=image_id)
    runs.wait_for(is_ready, uploads.DEADLINE_S, "the boot image", agent.log)


def test_guest_boots_from_glance_with_the_listeners_boot_image(
    glance: uploads.Images,
    listen: Listen,
    lab_image: guest_image.GuestImage,
    tmp_path: pathlib.Path,
) -> None:
    store = glance.lab.glance.images
    patient = {tuned.BUILD_LONGEST_S: LIFE_S}
    listener = listen(boot_images="built", file_store_dirs=store, constants=patient)
    with glance.lab.glance.changed({"fs": {"filesystem_thin_provisioning": True}}):
        image_id = upload_file(glance, lab_image.raw)
    pointer = artefacts.Kind.BOOT_IMAGE.pointer
    runs.wait_for(
        lambda: pointer in glance.record(image_id), LIFE_S, "the boot image", listener.log
    )
    built = re.search(r"boot image built: (\d+) chunks, .* until marker", listener.log())
    assert built and 300 < int(built[1]) < 3000, listener.log()
    stored_bytes = glance.record(glance.record(image_id)[pointer])["size"]
    assert 100 * stored_bytes < 3 * lab_image.raw.stat().st_size

    user = api.credentials(glance.lab.keystone.auth_url, "acstor")
    given = {"sources": "glance", "sections": {"source_glance": user}}
    with local.agent(tmp_path / "host", local.ImageFolder(tmp_path / "none"), **given) as agent:
        agent.wait_ready()
        wait_boot_image_loaded(agent, image_id)
        path = agent.image_path(image_id)
        disk = guest.make_overlay(tmp_path / "disk.qcow2", path, "raw", path.stat().st_size)
        with guest.Guest(agent.host, disk) as booting:
            booting.wait_booted(LIFE_S)
            read = agent.status()["images"][image_id]["read"]
            from_memory = read["boot"]["bytes"]
            elsewhere = sum(read[origin]["bytes"] for origin in read if origin not in EASY)
            assert from_memory > 20 * geometry.MIB
            assert from_memory > 4 * elsewhere
            booting.check_progress(LIFE_S)
