# SPDX-License-Identifier: Apache-2.0
"""Delta snapshots: when they are sent, and when Nova makes the snapshot itself."""

import contextlib
import dataclasses
import functools
import pathlib
import subprocess
import time
import types

import pytest
from oslo_config import cfg

from acstor_common.disks import disk_delta
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.wire import control_wire
from acstor_nova import conf as nova_conf
from acstor_nova import host_context
from acstor_nova.snapshots import delta_snapshot
from acstor_nova.snapshots import sparse_snapshot
from tests.fakes import gateway_server
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
SNAPSHOT = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
SIZE = 1 << 20
CHUNK = geometry.DEFAULT_CHUNK_BYTES
ZEROS = {
    "size_bytes": SIZE,
    "chunk_bytes": CHUNK,
    "zeros": bytes(2),
    "os_hash_algo": "sha512",
    "os_hash_value": "ab" * 64,
}
RECORD = {"disk_format": "qcow2", "container_format": "bare", "name": "not this"}
R = control_wire.Fallback


class WholeImageError(NotImplementedError):
    """Nova's class has no other method."""


class Stock:
    def __init__(self, instance=None, disk_name=None, path=None, disk_info_mapping=None):
        self.path = path

    def direct_snapshot(self, context, snapshot_name, image_format, image_id, base_image_id):
        raise WholeImageError


class LibvirtError(Exception):
    pass


class Nova:
    """A host with Nova, and a server with a disk on a mirror."""

    def __init__(self, folder, url):
        self.folder, self.events = folder, []
        self.status = "queued"
        self.is_live = self.is_suspended = False
        self.conf = cfg.ConfigOpts()
        nova_conf.register_opts(self.conf)
        for opt in (
            cfg.BoolOpt("snapshot_compression", default=False),
            cfg.StrOpt("snapshots_directory", default=str(folder / "snapshots")),
        ):
            self.conf.register_opt(opt, group="libvirt")
        self.conf([], default_config_files=[], default_config_dirs=[])
        self.socket = folder / "control.sock"
        self.conf.set_override("control_socket", str(self.socket), group="acstor")
        self.conf.set_override("gateway_url", url, group="acstor")
        mirror = folder / "images" / f"{IMAGE}.raw"
        mirror.parent.mkdir()
        mirror.write_bytes(bytes(SIZE))
        self.disk = self.make_disk("disk", mirror)
        qemu_io = ["qemu-io", "-c", "write -P 7 64k 128k", self.disk]
        subprocess.run(qemu_io, check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.host = host_context.HostContext(
            host_context.NovaFunctions(self.conf, None, self.get_image, None, None)
        )
        self.headers = {"X-Auth-Token": "token"}
        self.hooks = delta_snapshot.SnapshotHooks(
            token_headers=lambda context: {**self.headers},
            update_image=lambda context, image_id, record: self.said("update", image_id, record),
            disk_semaphore=lambda: contextlib.nullcontext(),
        )
        self.backend = type(
            "Acstor", (delta_snapshot.DeltaSnapshotBase, Stock), {"host": self.host}
        )

    def said(self, *event):
        self.events.append(event)

    def get_image(self, context, image_id):
        assert (context, image_id) == ("token", SNAPSHOT)
        self.said("asked", self.status)
        return image_record.Image(status=self.status) if self.status else None

    def make_disk(self, name, base):
        link, disk = self.folder / f"{name}-base", self.folder / name
        link.symlink_to(base)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", link, disk]
        subprocess.run(command, check=True, timeout=60)
        return disk

    def make_live(self, disk_path, out_path, image_format):
        """Copy the disk and convert the copy, like Nova's driver."""
        assert pathlib.Path(out_path).parent.stat().st_mode & 0o777 == 0o701
        self.said("live", disk_path)
        copy = pathlib.Path(f"{out_path}.delta")
        copy.write_bytes(pathlib.Path(disk_path).read_bytes())
        if self.is_live == "fails":
            raise LibvirtError("no such domain")
        sparse_snapshot.extract_image(
            self.host, self.fail, str(copy), "qcow2", out_path, image_format
        )
        assert not pathlib.Path(out_path).exists()

    @staticmethod
    def fail(*args):
        raise AssertionError(args)

    def snapshot(self, image_format="qcow2", disk=None):
        made = delta_snapshot.PendingSnapshot(
            hooks=self.hooks,
            is_live=bool(self.is_live),
            is_suspended=self.is_suspended,
            record_of=lambda image_format: {**RECORD, "disk_format": image_format},
            make_live=self.make_live,
        )
        delta_snapshot.begin_snapshot(made)
        root = self.backend(None, "disk", str(disk or self.disk))
        return root.direct_snapshot("token", "name", image_format, SNAPSHOT, IMAGE)

    def is_made_as_ever(self, **more):
        with pytest.raises(WholeImageError):
            self.snapshot(**more)
        folder = self.folder / "snapshots"
        assert not folder.exists() or not list(folder.iterdir())
        return self.host.fallbacks.counts_by_reason


@pytest.fixture
def gateway():
    with gateway_server.running() as running:
        yield running


@pytest.fixture
def nova(tmp_path, gateway):
    return Nova(tmp_path, gateway.url)


@pytest.fixture
def agent(nova):
    answers = {
        control_wire.Zeros: scripted_agent.done(ZEROS),
        control_wire.CountFallback: scripted_agent.done(),
    }
    with scripted_agent.running(nova.socket, answers) as running:
        yield running


def test_snapshot_succeeds_without_the_base_property(nova, agent, gateway):
    def update(context, image_id, record):
        if "properties" in record:
            raise RuntimeError("the quota of properties is exceeded")

    nova.hooks = dataclasses.replace(nova.hooks, update_image=update)
    assert nova.snapshot() is None
    assert len(gateway.composed) == 1 and not nova.host.fallbacks.counts_by_reason


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_delta_is_uploaded_instead_of_novas_snapshot(nova, agent, gateway, is_live, image_format):
    nova.is_live = is_live
    assert nova.snapshot(image_format) is None
    wanted = {"disk_format": image_format, "container_format": "bare"}
    live = [("live", str(nova.disk))] if is_live else []
    base = {"properties": {"direct_base_image_ref": f"{IMAGE} {SNAPSHOT}"}}
    assert nova.events == [("update", SNAPSHOT, wanted), ("update", SNAPSHOT, base), *live]
    ((path, raw),) = gateway.composed
    assert path == f"/v1/images/{SNAPSHOT}/delta?format={image_format}"
    head = disk_delta.Reader("test").read_head(raw[: disk_delta.HEADER_BYTES])
    assert (head.base, head.data_bytes, head.virtual_size) == (IMAGE, 2 * CHUNK, SIZE)
    assert head.os_hash == ("sha512", b"\xab" * 64)
    assert not nova.host.fallbacks.counts_by_reason


def test_no_gateway_or_mirror_leaves_the_snapshot_to_nova(nova, gateway, tmp_path):
    downloaded = tmp_path / "downloaded"
    downloaded.write_bytes(bytes(SIZE))
    assert not nova.is_made_as_ever(disk=nova.make_disk("other", downloaded))
    assert not nova.is_made_as_ever(disk=downloaded)
    nova.conf.set_override("gateway_url", "", group="acstor")
    assert not nova.is_made_as_ever()
    assert not gateway.asked


def test_unannounced_snapshot_is_made_by_nova(nova, gateway):
    with pytest.raises(WholeImageError):
        nova.backend(None, "disk", str(nova.disk)).direct_snapshot("token", "n", "raw", "i", "b")
    assert not gateway.asked


@pytest.mark.expect_log(r"not made from a delta: its format is vmdk \[snapshot-format")
@pytest.mark.expect_log(r"not made from a delta: it must be compressed \[snapshot-format")
def test_other_formats_and_compression_are_made_by_nova(nova, agent, gateway):
    assert nova.is_made_as_ever(image_format="vmdk") == {R.SNAPSHOT_FORMAT: 1}
    nova.conf.set_override("snapshot_compression", True, group="libvirt")
    assert nova.is_made_as_ever() == {R.SNAPSHOT_FORMAT: 2}
    assert not gateway.asked
    assert nova.snapshot("raw") is None


@pytest.mark.expect_log(r"Nova has suspended the guest for it \[guest-suspended")
def test_snapshot_of_a_suspended_guest_is_made_by_nova(nova, agent, gateway):
    nova.is_suspended = True
    assert nova.is_made_as_ever() == {R.GUEST_SUSPENDED: 1}
    assert not gateway.asked


@pytest.mark.expect_log(r"no answer from the gateway .*\[gateway-unreachable")
@pytest.mark.parametrize("is_live", [False, True])
def test_unreachable_gateway_leaves_the_snapshot_to_nova(nova, agent, is_live):
    nova.is_live = is_live
    nova.conf.set_override("gateway_url", "http://127.0.0.1:9", group="acstor")
    assert nova.is_made_as_ever() == {R.GATEWAY_UNREACHABLE: 1}
    assert not nova.events


@pytest.mark.expect_log("delta-unreadable")
def test_missing_token_leaves_the_snapshot_to_nova(nova, agent, gateway):
    nova.headers = None
    assert nova.is_made_as_ever() == {R.DELTA_UNREADABLE: 1}
    assert not gateway.asked


@pytest.mark.expect_log(r"\(403\): it is deactivated \[gateway-refused")
def test_unreadable_base_leaves_the_snapshot_to_nova(nova, agent, gateway):
    gateway.refuse("GET", 403, "it is deactivated")
    assert nova.is_made_as_ever() == {R.GATEWAY_REFUSED: 1}
    assert not nova.events


@pytest.mark.expect_log(r"\(200\): the base was deleted \[gateway-refused")
@pytest.mark.parametrize("is_live", [False, True])
def test_nova_makes_the_snapshot_after_glance_resets_the_image(
    nova, agent, gateway, monkeypatch, is_live
):
    nova.is_live = is_live
    gateway.lines = [{"error": {"message": "the base was deleted"}}]
    nova.status = "saving"

    def sleep(seconds):
        nova.status = "queued" if seconds else nova.status

    # Not in the module ``time`` itself: threads of other tests also sleep.
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(delta_snapshot, "time", clock)
    assert nova.is_made_as_ever() == {R.GATEWAY_REFUSED: 1}
    assert nova.events[-2:] == [("asked", "saving"), ("asked", "queued")]


@pytest.mark.expect_log("gateway-unreachable")
def test_wait_for_a_hanging_upload_is_bounded(nova, agent, gateway):
    gateway.lines = []
    nova.status = "saving"
    nova.host.timeouts = host_context.Timeouts(upload_end_s=0.05, upload_poll_s=0.02)
    assert nova.is_made_as_ever() == {R.GATEWAY_UNREACHABLE: 1}


@pytest.mark.expect_log("gateway-unreachable")
def test_deleted_image_leaves_the_error_to_nova(nova, agent, gateway):
    gateway.lines = []
    nova.status = None
    assert nova.is_made_as_ever() == {R.GATEWAY_UNREACHABLE: 1}


def test_active_image_counts_as_success_after_a_gateway_failure(nova, agent, gateway):
    gateway.lines = []
    nova.status = "active"
    assert nova.snapshot() is None
    assert not nova.host.fallbacks.counts_by_reason


@pytest.mark.expect_log("agent-unreachable")
def test_unreachable_agent_leaves_the_snapshot_to_nova(nova, gateway):
    assert nova.is_made_as_ever() == {R.AGENT_UNREACHABLE: 1}
    assert not gateway.composed


@pytest.mark.expect_log(r"the agent does not report its base's hash \[agent-refused")
@pytest.mark.expect_log(r"no such image \[agent-refused")
def test_missing_hash_from_the_agent_leaves_the_snapshot_to_nova(nova, agent, gateway):
    older = {key: value for key, value in ZEROS.items() if not key.startswith("os_hash")}
    agent.answers[control_wire.Zeros] = scripted_agent.done(older)
    assert nova.is_made_as_ever() == {R.AGENT_REFUSED: 1}
    agent.answers[control_wire.Zeros] = scripted_agent.failed("ChunkMissing", "no such image")
    assert nova.is_made_as_ever() == {R.AGENT_REFUSED: 2}
    assert not gateway.composed


@pytest.mark.expect_log(r"no such domain \[delta-unreadable")
def test_driver_failure_leaves_the_snapshot_to_nova(nova, agent, gateway):
    nova.is_live = "fails"
    assert nova.is_made_as_ever() == {R.DELTA_UNREADABLE: 1}
    assert not gateway.composed


@pytest.mark.expect_log(r"at most 0 changes \[delta-unreadable")
def test_too_many_changes_leave_the_snapshot_to_nova(nova, agent, gateway, monkeypatch):
    table = disk_delta.ExtentTable
    monkeypatch.setattr(table, "from_runs", functools.partial(table.from_runs, max_extents=0))
    assert nova.is_made_as_ever() == {R.DELTA_UNREADABLE: 1}


@pytest.mark.expect_log(r"it is not based on image .*\[delta-unreadable")
def test_copy_on_another_image_is_not_sent(nova, agent, gateway, tmp_path):
    other = tmp_path / "images" / f"{SNAPSHOT}.raw"
    other.write_bytes(bytes(SIZE))
    nova.make_live = lambda *args: sparse_snapshot.extract_image(
        nova.host, nova.fail, str(nova.make_disk("copy", other)), "qcow2", "out", "raw"
    )
    nova.is_live = True
    assert nova.is_made_as_ever() == {R.DELTA_UNREADABLE: 1}
    assert not gateway.composed


def test_other_conversions_are_not_intercepted(nova, agent):
    """Only this snapshot's conversion is replaced by the upload of a delta."""
    nova.is_live = True
    nova.snapshot()
    asked = []
    sparse_snapshot.extract_image(
        nova.host, lambda *args: asked.append(args), "d", "raw", "o", "raw"
    )
    assert asked == [("d", "raw", "o", "raw")]
