# SPDX-License-Identifier: Apache-2.0
"""Fixtures of functional tests beside :mod:`tests.lab.fixtures`: images and more services.

A service of OpenStack is started by the first test that needs it and then shared. A test creates
and deletes its own images and servers, and leaves each service running. A service that a test
killed is started again for the next test.

"""

import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import cloud
from tests.lab.openstack import installed
from tests.lab.openstack import machine
from tests.lab.openstack import mariadb as mariadb_lab
from tests.lab.openstack import uploads


@pytest.fixture(scope="session")
def lab_image() -> guest_image.GuestImage:
    """The guest image of the lab, if this machine has it; tests do not build it."""
    try:
        recipe, _mirror = guest_image.this_system()
    except errors.Unusable as e:
        pytest.skip(str(e))
    folder = runs.CACHE_FOLDER / recipe.key
    if not folder.is_dir():
        pytest.skip("no guest image; python -m tests.lab.guest_image builds it")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86 is not installed")
    return guest_image.GuestImage(folder)


@pytest.fixture
def guest_image_id(images: local.ImageFolder, lab_image: guest_image.GuestImage) -> ids.ImageId:
    """Put a copy of the lab's image into the source."""
    return images.adopt(lab_image.raw)


@pytest.fixture(scope="module")
def host() -> Iterator[machine.Machine]:
    """A host with libvirt."""
    from tests.lab import domain  # libvirt's module is not installed where no test needs it

    with domain.libvirt_host() as running:
        yield running


@pytest.fixture
def mariadb(openstack_lab: cloud.Cloud) -> mariadb_lab.MariaDB:
    """A database server; it needs nothing else of OpenStack."""
    if shutil.which("mariadbd", path="/usr/sbin") is None:
        pytest.skip("MariaDB is not installed: run tools/install.sh")
    openstack_lab.start_database()
    return openstack_lab.mariadb


def require_openstack() -> None:
    """Skip the test where OpenStack's services are not installed."""
    if not installed.is_ready():
        pytest.skip(f"the services of OpenStack are not installed: {installed.REMEDY}")


@pytest.fixture
def keystone_glance(openstack_lab: cloud.Cloud) -> cloud.Cloud:
    """Keystone and Glance, with the broker and the database that they need."""
    require_openstack()
    openstack_lab.start_image_services()
    return openstack_lab


@pytest.fixture
def nova(keystone_glance: cloud.Cloud) -> cloud.Cloud:
    """The whole OpenStack: Nova with two compute hosts beside Keystone and Glance."""
    nova_hosts.configure({host: {} for host in keystone_glance.computes})
    keystone_glance.start_compute_services()
    return keystone_glance


@pytest.fixture
def glance(keystone_glance: cloud.Cloud) -> Iterator[uploads.Images]:
    """Upload images; delete them when the test ends."""
    tester = uploads.Images(keystone_glance)
    try:
        yield tester
    finally:
        keystone_glance.start_image_services()
        tester.clean_up()


@pytest.fixture(scope="module")
def image_services(openstack_lab: cloud.Cloud) -> cloud.Cloud:
    """Keystone and Glance, for other changes that a module makes until it ends."""
    require_openstack()
    openstack_lab.start_image_services()
    return openstack_lab


@pytest.fixture(scope="module")
def importing(
    image_services: cloud.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    """Return the state folder of a Glance that prepares imported images, until the module ends."""
    folder = tmp_path_factory.mktemp("importing")
    with image_services.glance.changed(acstor_glance.plugin_sections(image_services, folder)):
        yield folder


@pytest.fixture
def listen(
    glance: uploads.Images, tmp_path: pathlib.Path
) -> Iterator[Callable[..., acstor_glance.Listener]]:
    """Return a function that starts a listener; the listener ends with the test."""
    listeners: list[acstor_glance.Listener] = []

    def start(name: str = "listener", **options: Any) -> acstor_glance.Listener:
        own = {tuned.NOTIFICATION_POOL: f"test-{tmp_path.name}"}
        options["constants"] = {**own, **options.get("constants", {})}
        listener = acstor_glance.Listener(name, glance.lab, tmp_path, **options)
        listeners.append(listener)
        listener.start()
        listener.wait_ready()
        return listener

    try:
        yield start
    finally:
        for listener in listeners:
            listener.stop()


@pytest.fixture(scope="module")
def compute_lab(openstack_lab: cloud.Cloud) -> cloud.Cloud:
    """The OpenStack with its compute services."""
    require_openstack()
    openstack_lab.start_compute_services()
    return openstack_lab


@pytest.fixture(scope="module")
def cluster(compute_lab: cloud.Cloud) -> Iterator[nova_hosts.NovaHosts]:
    """The two compute hosts with acstor."""
    with nova_hosts.running(compute_lab) as running:
        yield running
