# SPDX-License-Identifier: Apache-2.0
"""Servers that boot from mirrors: bytes that their guests read and wrote, and downloads.

Nova's status *active* proves nothing about the disk, so these servers run a guest that reports what
it reads (:mod:`acstor_tempest_plugin.guest`).

"""

import io
import random
import time

from tempest import config
from tempest import test
from tempest.common import waiters
from tempest.lib import decorators
from tempest.lib.common.utils import data_utils
from tempest.lib.common.utils import test_utils

from acstor_tempest_plugin import guest
from acstor_tempest_plugin import metrics

CONF = config.CONF

FALLBACKS = "acstor_nova_fallbacks_total"
READ = "acstor_read_bytes_total"
FETCHED = "acstor_fetched_bytes_total"
READ_WHOLE_BYTES = 2 << 30  # the size of a raw snapshot that is read into memory


class ServersTest(test.BaseTestCase):
    """Each test uploads an image of its own, which no host has cached."""

    credentials = ("primary", "admin")

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.service_available.acstor:
            raise cls.skipException("the compute hosts do not use acstor")
        if not CONF.acstor.agent_metrics:
            raise cls.skipException("[acstor] agent_metrics does not say where counters are")
        if not CONF.compute_feature_enabled.console_output:
            raise cls.skipException("the console cannot be read")

    @classmethod
    def setup_credentials(cls):
        cls.set_network_resources()
        super().setup_credentials()

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.images = cls.os_primary.image_client_v2
        cls.servers = cls.os_primary.servers_client
        cls.snapshots = cls.os_primary.compute_images_client
        cls.admin_images = cls.os_admin.image_client_v2  # tenants need not see acstor's properties
        cls.admin_servers = cls.os_admin.servers_client

    def counters(self) -> metrics.Counters:
        return metrics.Counters(CONF.acstor.agent_metrics)

    def new_disk(self) -> bytes:
        return guest.image(CONF.acstor.image_mib * guest.MIB, random.getrandbits(64))

    def upload(self, data: bytes, disk_format: str) -> str:
        image_id = self.images.create_image(
            name=data_utils.rand_name(CONF.resource_name_prefix + "-acstor"),
            container_format="bare",
            disk_format=disk_format,
            visibility="private",
        )["id"]
        self.addCleanup(test_utils.call_and_ignore_notfound_exc, self.images.delete_image, image_id)
        self.images.store_image_file(image_id, io.BytesIO(data))
        return image_id

    def prepared(self, data: bytes, disk_format: str = "raw") -> str:
        """Upload an image, wait until acstor serves it, and return its id."""
        image_id = self.upload(data, disk_format)

        def is_ready() -> bool:
            return bool(self.admin_images.show_image(image_id).get("acstor_chunk_map"))

        if not test_utils.call_until_true(is_ready, CONF.acstor.prepare_timeout, 1):
            self.fail(f"no chunk map: {self.admin_images.show_image(image_id)}")
        return image_id

    def boot(self, image_id: str) -> str:
        """Create a server, and return its id once it is active."""
        made = self.servers.create_server(
            name=data_utils.rand_name(CONF.resource_name_prefix + "-acstor"),
            imageRef=image_id,
            flavorRef=CONF.compute.flavor_ref,
        )["server"]
        self.addCleanup(waiters.wait_for_server_termination, self.servers, made["id"])
        self.addCleanup(
            test_utils.call_and_ignore_notfound_exc, self.servers.delete_server, made["id"]
        )
        waiters.wait_for_server_status(self.servers, made["id"], "ACTIVE")
        return made["id"]

    def host_of(self, server_id: str) -> str:
        return self.admin_servers.show_server(server_id)["server"]["OS-EXT-SRV-ATTR:host"]

    def hard_reboot(self, server_id: str) -> None:
        self.servers.reboot_server(server_id, type="HARD")
        waiters.wait_for_server_status(self.servers, server_id, "ACTIVE")

    def assert_says(self, server_id: str, disk: bytes) -> None:
        """Wait until the guest has booted from this disk and has read the expected bytes."""
        expected = guest.says(disk)
        ends_s = time.monotonic() + CONF.acstor.boot_timeout
        said = ""
        while f"{expected[0]}\n" not in said or not guest.DONE.search(said.split(expected[0])[1]):
            if time.monotonic() > ends_s:
                self.fail(f"the guest of {server_id} said {said!r}, not {expected}")
            time.sleep(1)
            console = self.servers.get_console_output(server_id)["output"]
            said = console.replace("\r\n", "\n")
        lines = said.splitlines()
        begin = lines.index(expected[0])
        self.assertEqual(expected, lines[begin : begin + len(expected)])

    @decorators.idempotent_id("b3d2c1b6-4a3e-4b5b-8f0e-6d5a9a1f0c11")
    def test_server_boots_without_a_download(self):
        disk = self.new_disk()
        image_id = self.prepared(disk)
        before = self.counters()
        server_id = self.boot(image_id)
        now = self.counters()
        self.assertEqual(before.total(FALLBACKS), now.total(FALLBACKS), "Nova downloads by itself")
        self.assertLess(now.total(FETCHED, image=image_id, origin="source"), len(disk))
        self.assert_says(server_id, guest.booted(disk, 1))
        host = self.host_of(server_id)
        self.assertGreater(self.counters().total(READ, host, image=image_id), 0)

    @decorators.idempotent_id("0f4b7f34-0d27-4f0e-9b0b-7a0c0f5d2e22")
    def test_guest_data_survives_a_reboot(self):
        disk = self.new_disk()
        server_id = self.boot(self.prepared(disk))
        self.assert_says(server_id, guest.booted(disk, 1))
        self.hard_reboot(server_id)
        self.assert_says(server_id, guest.booted(disk, 2))

    @decorators.idempotent_id("7d0f3a52-3c55-4a7e-a6b4-2f5b1c0e3d33")
    def test_snapshot_equals_the_disk_and_boots(self):
        disk = self.new_disk()
        server_id = self.boot(self.prepared(disk))
        disk = guest.booted(disk, 1)
        self.assert_says(server_id, disk)
        made = self.snapshots.create_image(
            server_id, name=data_utils.rand_name(CONF.resource_name_prefix + "-acstor")
        )
        snapshot_id = data_utils.parse_image_id(made.response["location"])
        self.addCleanup(
            test_utils.call_and_ignore_notfound_exc, self.images.delete_image, snapshot_id
        )
        waiters.wait_for_image_status(self.images, snapshot_id, "active")
        snapshot = self.images.show_image(snapshot_id)
        if snapshot["disk_format"] == "raw" and snapshot["size"] <= READ_WHOLE_BYTES:
            kept = self.images.show_image_file(snapshot_id).data
            self.assertEqual(disk, kept[: len(disk)])
            self.assertFalse(any(kept[len(disk) :]), "behind the image a new disk is empty")
        self.assert_says(self.boot(snapshot_id), guest.booted(disk, 1))

    @decorators.idempotent_id("e1c8a5d2-0f3b-4d7a-9c46-8b2e7d1f6a66")
    def test_image_in_qcow2_is_served_without_conversion(self):
        disk = self.new_disk()
        image_id = self.prepared(guest.qcow2(disk), "qcow2")
        before = self.counters()
        server_id = self.boot(image_id)
        self.assert_says(server_id, guest.booted(disk, 1))
        now = self.counters()
        self.assertEqual(before.total(FALLBACKS), now.total(FALLBACKS), "Nova downloads by itself")
        self.assertGreater(now.total(READ, self.host_of(server_id), image=image_id), 0)

    @decorators.idempotent_id("5a9f7c1d-8b8e-4c39-9d1e-1f6f8c4a4e44")
    def test_image_of_another_format_is_downloaded_and_counted(self):
        disk = self.new_disk()
        image_id = self.upload(guest.vdi(disk), "vdi")
        before = self.counters()
        server_id = self.boot(image_id)
        self.assert_says(server_id, guest.booted(disk, 1))
        now = self.counters()
        host = self.host_of(server_id)
        counted = [seen.total(FALLBACKS, host, reason="disk-format") for seen in (before, now)]
        self.assertGreater(counted[1], counted[0])
        self.assertEqual(0, now.total(READ, image=image_id))

    @decorators.idempotent_id("c64e1f0b-52cf-4a07-8df2-9f1d6b7e5f55")
    def test_server_keeps_its_disk_in_a_live_migration(self):
        if not CONF.compute_feature_enabled.live_migration or CONF.compute.min_compute_nodes < 2:
            self.skipTest("this cloud does not move servers while they run")
        disk = self.new_disk()
        server_id = self.boot(self.prepared(disk))
        self.assert_says(server_id, guest.booted(disk, 1))
        before = self.host_of(server_id)
        self.admin_servers.live_migrate_server(
            server_id,
            host=None,
            block_migration=CONF.compute_feature_enabled.block_migration_for_live_migration,
            disk_over_commit=False,
        )
        waiters.wait_for_server_status(self.servers, server_id, "ACTIVE")
        self.assertNotEqual(before, self.host_of(server_id))
        self.hard_reboot(server_id)
        self.assert_says(server_id, guest.booted(disk, 2))
