# SPDX-License-Identifier: Apache-2.0
"""Releases of Nova with the libraries of their day: hooks, weigher and disks.

Nova's own classes make the disk and its configuration, for a scripted agent; libvirt does not run.

"""

import json
import os
from xml.etree import ElementTree

import pytest

from acstor_common.wire import control_wire
from acstor_nova import imagebackend
from tests.fakes import http_server
from tests.fakes import nova_backend
from tests.fakes import scripted_agent
from tests.functional import test_nova_versions
from tests.functional import test_nova_weigher
from tests.lab import nova_releases
from tests.lab import runs
from tests.lab import tiers
from tests.lab.openstack import installed

IMAGE, SERVER = nova_backend.IMAGE, nova_backend.INSTANCE
RECORD = {
    "id": IMAGE,
    "disk_format": "raw",
    "container_format": "bare",
    "status": "active",
    "size": nova_backend.SIZE,
    "properties": {},
    "os_hash_algo": "sha512",
    "os_hash_value": "ab" * 64,
}
PROGRAM = """
import json, os, sys, types
from nova import config
from nova.conf import CONF
config.parse_args(["nova-compute", "--config-file", sys.argv[1]])
try:
    import libvirt
except ImportError:  # Nova does not require it; a guest imports it and calls nothing of it here
    sys.modules["libvirt"] = types.ModuleType("libvirt")
from nova import context, objects, privsep
privsep.sys_admin_pctxt.set_client_mode(False)
objects.register_all()
from nova.virt import images
from nova.virt.libvirt import guest, imagebackend, imagecache
image, server = sys.argv[2:4]

class Glance:
    def get(self, context, image_id):
        return json.loads(sys.argv[4])

class Domain:
    def UUIDString(self):
        return server

    def destroy(self):
        pass

def download(target, **kwargs):
    raise AssertionError("Nova downloads the image")

images.IMAGE_API = Glance()
admin = context.get_admin_context()
flavor = objects.Flavor(extra_specs={}, root_gb=1, ephemeral_gb=0, swap=0)
instance = objects.Instance(
    admin, uuid=server, image_ref=image, system_metadata=json.loads(sys.argv[5]), metadata={},
    task_state=None, flavor=flavor)
os.makedirs(os.path.join(CONF.instances_path, server), exist_ok=True)
mapping = {"bus": "virtio", "dev": "vda", "type": "disk"}
made = imagebackend.Backend(True).by_name(instance, "disk", disk_info_mapping=mapping)
made.cache(fetch_func=download, context=admin, filename=imagecache.get_cache_fname(image),
           size=1 << 21, image_id=image, trusted_certs=None)
guest.Guest(Domain()).poweroff()
print(json.dumps({
    "base": os.path.join(CONF.instances_path, "_base", imagecache.get_cache_fname(image)),
    "disk": made.path,
    "xml": made.libvirt_info("none", {}).to_xml(),
    "noted": instance.system_metadata,
}))
"""

needs_services = test_nova_weigher.needs_services
released = test_nova_versions.released
older = pytest.mark.parametrize("version", nova_releases.RELEASES)


def make_disk(nova, python, folder, noted):
    """Let this Nova make a server's disk; return its report and the agent's requests.

    :param noted: what Nova has noted of the server

    """
    mirror = folder / "mirror/images" / f"{IMAGE}.raw"
    mirror.parent.mkdir(parents=True, exist_ok=True)
    mirror.write_bytes(bytes(nova_backend.SIZE))
    conf_file = folder / "nova.conf"
    conf_file.write_text(
        f"{test_nova_versions.CONF}\n"
        f"control_socket = {folder}/control.sock\nmount_point = {folder}/mirror\n"
        f"[DEFAULT]\ninstances_path = {folder}/instances\n"
        f"[oslo_concurrency]\nlock_path = {folder}/locks\n"
    )
    answers = {
        control_wire.AttachImage: nova_backend.attached("raw", nova_backend.SIZE),
        control_wire.PowerOff: scripted_agent.done(),
    }
    with scripted_agent.running(folder / "control.sock", answers) as agent:
        given = [json.dumps(RECORD), json.dumps(noted)]
        argv = [python, "-c", PROGRAM, conf_file, IMAGE, SERVER, *given]
        found, _ = test_nova_versions.run_nova(nova, argv)
    os.unlink(folder / "control.sock")
    return found, agent.asked


def check_disk(nova, python, folder, noted=None):
    """Check that this Nova makes, describes and switches off a disk; return what it noted."""
    found, asked = make_disk(nova, python, folder, noted or {})
    assert os.readlink(found["base"]) == f"{folder}/mirror/images/{IMAGE}.raw"
    info = json.loads(runs.tool(["qemu-img", "info", "--output=json", found["disk"]]))
    assert (info["format"], info["virtual-size"]) == ("qcow2", 1 << 21)
    assert info["backing-filename"] == found["base"]
    disk = ElementTree.fromstring(found["xml"])
    assert disk.find("driver").attrib["cache"] == imagebackend.CACHEMODE
    assert disk.find("source").attrib["file"] == found["disk"]
    attach = control_wire.AttachImage
    assert [type(one) for one in asked] == [attach, control_wire.PowerOff, attach]
    assert asked[-1].os_hash_value == RECORD["os_hash_value"]
    return found["noted"]


@needs_services
@pytest.mark.parametrize("version", tiers.first_now(reversed(test_nova_versions.RELEASES)))
def test_release_makes_a_disk_on_the_mirror(released, version, tmp_path):
    check_disk(released(version), installed.BIN / "python", tmp_path)


@needs_services
@pytest.mark.parametrize("releases", tiers.first_now([(31, 34), (34, 31)]))
def test_release_starts_a_disk_that_another_release_made(released, releases, tmp_path):
    noted = {}
    for version in releases:
        noted = check_disk(released(version), installed.BIN / "python", tmp_path, noted)


@pytest.mark.nightly
@older
def test_release_with_its_libraries_makes_a_disk_on_the_mirror(released, version, tmp_path):
    check_disk(released(version), nova_releases.require(version), tmp_path)


@pytest.mark.nightly
@older
def test_release_with_its_libraries_registers_acstor(released, version):
    python = nova_releases.require(version)
    nova = released(version)
    found, log = test_nova_versions.start_nova(nova, program=str(python))
    assert found["python"] == str(python)
    test_nova_versions.check_taken(nova, found, log)


@pytest.mark.nightly
@older
@pytest.mark.parametrize("has_eventlet", [False, True])
def test_release_with_its_libraries_prefers_the_host_that_caches_the_image(
    released, version, has_eventlet
):
    python = nova_releases.require(version)
    page = {
        f"v1/images/{test_nova_weigher.IMAGE}/locality": test_nova_weigher.table(
            warm=(1.0, 0.5, 0.0)
        )
    }
    with http_server.serve(page) as server:
        found, _ = test_nova_weigher.weigh(
            released(version), server.url, has_eventlet=has_eventlet, python=python
        )
    test_nova_weigher.check_preferred(found)
