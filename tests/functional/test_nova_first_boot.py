# SPDX-License-Identifier: Apache-2.0
"""The first boot of a typical image: a compressed qcow2, in S3, on cold hosts.

Without a conversion or a command of acstor, a user creates an image and then a server, by
OpenStack's commands.  Real Glance, real S3, real Nova, a real Debian.

"""

import json
import pathlib
import re
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import pytest

from acstor_common.image import artefacts
from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart
from acstor_osc import nova_events
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import guest_files
from tests.lab import guest_image
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import client
from tests.lab.openstack import cloud
from tests.lab.openstack import image_stores
from tests.lab.openstack import record_polling
from tests.lab.openstack import uploads

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

PREPARED_S = 300.0
"""The listener boots the image once, under emulation and beside a whole OpenStack."""
BOOTED_S = 400.0


@pytest.fixture(scope="module")
def gateway(compute_lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Return the gateway of a cloud with its images in S3."""
    with image_stores.images_in_s3(compute_lab) as beside:
        yield beside


@pytest.fixture(scope="module")
def cluster(
    openstack_lab: cloud.Cloud, gateway: acstor_gateway.Gateway
) -> Iterator[nova_hosts.NovaHosts]:
    """Return the two compute hosts, whose agents find the gateway in Keystone's catalog."""
    # An emulated guest beside other tests has read nothing for a minute.
    patient = {tuned.BOOT_IDLE_S: BOOTED_S}
    with nova_hosts.running(openstack_lab, "glance,gateway", constants=patient) as running:
        yield running


@pytest.fixture
def image_id(
    cluster: nova_hosts.NovaHosts,
    glance: uploads.Images,
    listen: Callable[..., acstor_glance.Listener],
    lab_image: guest_image.GuestImage,
) -> Iterator[str]:
    """Have a tenant create the image, and wait until it is prepared."""
    listener = listen(boot_images="auto")  # the default
    made = created(
        cluster.lab,
        *("image", "create", "--disk-format", "qcow2", "--container-format", "bare"),
        *("--file", lab_image.compressed, f"debian-{uuid.uuid4()}"),
    )

    def is_ready() -> bool:
        return artefacts.boot_state_of(glance.image(made)) is artefacts.BootState.READY

    rows, database = record_polling.rows_of_image(made), cluster.lab.mariadb
    what = "the boot image"
    try:
        record_polling.wait_for(database, rows, is_ready, PREPARED_S, what, listener.log)
        check_boot_image(glance.record(made), glance, lab_image, listener.log())
        yield made
    finally:
        cluster.images.client.delete_image(made)
        is_gone = lambda: not glance.artefacts_of(made)  # noqa: E731
        runs.wait_for(is_gone, uploads.DEADLINE_S, "the artefacts' end", listener.log)


def check_boot_image(
    image: Mapping[str, Any],
    glance: uploads.Images,
    lab_image: guest_image.GuestImage,
    log: str,
) -> None:
    """Check that the boot image has the boot up to the login prompt, and little else."""
    built = re.search(r"boot image built: (\d+) chunks, .* until marker", log)
    assert built and 300 < int(built[1]) < 3000, log
    stored_bytes = glance.record(image[artefacts.Kind.BOOT_IMAGE.pointer])["size"]
    assert 100 * stored_bytes < 3 * lab_image.raw.stat().st_size


def test_compressed_qcow2_in_s3_boots_on_a_cold_host_from_its_boot_image(
    cluster: nova_hosts.NovaHosts,
    gateway: acstor_gateway.Gateway,
    image_id: str,
    lab_image: guest_image.GuestImage,
) -> None:
    images, compressed_bytes = cluster.images, lab_image.compressed.stat().st_size
    assert images.client.get(f"/images/{image_id}").json()["stores"] == "s3"
    downloads, before_bytes = images.downloads(image_id), read_through(gateway, image_id)
    server_id = created(
        cluster.lab,
        *("--os-compute-api-version", nova_hosts.NEWEST, "server", "create", "--nic", "none"),
        *("--flavor", "guest", "--image", image_id, f"server-{uuid.uuid4()}"),
    )
    server = nova_hosts.Server(cluster, server_id, image_id)
    try:
        server.wait("ACTIVE", deadline_s=BOOTED_S)
        runs.wait_for(lambda: is_booted(server), BOOTED_S, "the login prompt", server.console)
        host = server.host
        assert host.is_mirrored(image_id)
        assert [one.fallbacks() for one in cluster.hosts] == [{}, {}]
        assert images.downloads(image_id) == downloads, "nobody downloaded it for the boot"
        check_timeline(cluster.lab, host, server_id)
        boot_bytes = read_through(gateway, image_id) - before_bytes
        assert boot_bytes < compressed_bytes / 10, "the boot image has nearly all of the boot"
        assert host.run("cmp", host.agent.image_path(image_id), lab_image.raw) == ""
        assert read_through(gateway, image_id) - before_bytes > compressed_bytes / 2
        assert images.range_bytes(image_id) == 0, "Glance has no ranges of what is in S3"
        assert images.downloads(image_id) == downloads
    finally:
        server.delete()


def created(lab: cloud.Cloud, *words: str | pathlib.Path) -> str:
    """Have a tenant create something by the command ``openstack``; return its id."""
    done = client.openstack(lab, "tenant", *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    made: str = json.loads(done.stdout)["id"]
    return made


def read_through(gateway: acstor_gateway.Gateway, image_id: str) -> int:
    """Return how many bytes of the image the gateway served."""
    return sum(nova_hosts.given(gateway.log(), image_id, 206))


def is_booted(server: nova_hosts.Server) -> bool:
    return "login: " in server.console().partition(guest_files.MARKER)[2]


def check_timeline(lab: cloud.Cloud, host: nova_hosts.Host, server_id: str) -> None:
    """Check that the boot image had nearly all bytes of the boot; draw its timeline."""
    *_, reported = host.agent.timelines(server_id)
    compute = accounts.connect(lab.keystone.auth_url).compute
    events = nova_events.list_before(compute, server_id, reported)
    print(boot_chart.draw(reported, events))
    assert events, "Nova says what it did"
    assert reported.boot_image == "ready"
    share = boot_timeline.boot_image_share(reported.bytes)
    assert share is not None and share >= 0.95, reported.bytes
