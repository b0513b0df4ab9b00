# SPDX-License-Identifier: Apache-2.0
"""Wrappers of Nova's functions; ``test_nova_versions.py`` tests the real ones."""

import types

import pytest

from acstor_nova import host_context
from acstor_nova import nova_hooks
from acstor_nova import registration
from acstor_nova.evacuation import recovered_disk
from acstor_nova.snapshots import delta_snapshot

INSTANCE = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


class NotEndedError(Exception):
    """Stands for libvirt's error during a restart."""


@pytest.fixture
def nova(monkeypatch):
    """Return Nova's guest module for instances on mirrors, with a record of the calls."""
    done, host = [], object()

    class Guest:
        uuid = INSTANCE
        fails = False

        def poweroff(self):
            done.append("poweroff")
            if self.fails:
                raise NotEndedError

    def switch_off(where, instance_id, *, is_cancelled=False):
        assert (where, instance_id) == (host, INSTANCE)
        done.append("taken back" if is_cancelled else "told")

    monkeypatch.setattr(registration.nova_hooks, "check_hooks", lambda version, modules: None)
    monkeypatch.setattr(registration, "nova_version", lambda: 34)
    monkeypatch.setattr(registration, "_backend", lambda module: types.SimpleNamespace(host=host))
    monkeypatch.setattr(registration.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(host_context, "notify_power_off", switch_off)
    module = types.SimpleNamespace(Guest=Guest, done=done)
    registration._register_poweroff(module)
    return module


def test_power_off_is_reported_before_it_happens(nova):
    nova.Guest().poweroff()
    assert nova.done == ["told", "poweroff"]


def test_failed_power_off_is_reported_as_cancelled(nova, monkeypatch):
    monkeypatch.setattr(nova.Guest, "fails", True)
    with pytest.raises(NotEndedError):
        nova.Guest().poweroff()
    assert nova.done == ["told", "poweroff", "taken back"]


@pytest.mark.expect_log("cannot report the power-off")
def test_failing_report_does_not_change_novas_power_off(nova, monkeypatch):
    def fail(*args, **more):
        raise RuntimeError("a fault")

    monkeypatch.setattr(host_context, "notify_power_off", fail)
    nova.Guest().poweroff()
    monkeypatch.setattr(nova.Guest, "fails", True)
    with pytest.raises(NotEndedError):
        nova.Guest().poweroff()
    assert nova.done == ["poweroff", "poweroff"]


class Driver:
    """The part of Nova's driver that makes snapshots."""

    backend = types.SimpleNamespace(host=object())

    def __init__(self):
        self.image_backend = types.SimpleNamespace(backend=lambda: self.backend)
        self._host = types.SimpleNamespace(get_guest=lambda instance: f"guest of {instance.uuid}")
        self.done = []

    def _suspend_guest_for_snapshot(self, context, live_snapshot, current_power_state, instance):
        self.done.append("suspended")

    def _needs_suspend_resume_for_snapshot(self, live_snapshot, current_power_state):
        return not live_snapshot and current_power_state == 1

    def _create_snapshot_metadata(self, image_meta, instance, img_fmt, snp_name):
        return {"disk_format": img_fmt, "container_format": image_meta}

    def _live_snapshot(self, *args):
        self.done.append(args)


@pytest.fixture
def driver(monkeypatch):
    """Return Nova's driver with its wrappers and fake modules."""
    auth = types.SimpleNamespace(get_headers=lambda session: {"X-Auth-Token": session})
    api = types.SimpleNamespace(update=lambda *args, **more: args[0].append((args[1:], more)))
    modules = {
        "nova.virt.images": types.SimpleNamespace(IMAGE_API=api),
        "nova.image.glance": types.SimpleNamespace(
            _session_and_auth=lambda context: ("token of a session", auth)
        ),
        "nova.compute.utils": types.SimpleNamespace(disk_ops_semaphore="a turn"),
    }
    monkeypatch.setattr(registration.nova_hooks, "check_snapshot_hooks", lambda version: None)
    monkeypatch.setattr(registration, "nova_version", lambda: "34.0.0")
    monkeypatch.setattr(registration.importlib, "import_module", modules.__getitem__)
    made = type("LibvirtDriver", (Driver,), {})
    registration._register_delta_snapshots(types.SimpleNamespace(LibvirtDriver=made))
    delta_snapshot._pending_snapshot.set(None)
    return made()


def begin(driver, is_live=True, power_state=1):
    instance = types.SimpleNamespace(uuid=INSTANCE, image_meta="meta")
    driver._suspend_guest_for_snapshot("context", is_live, power_state, instance)
    assert driver.done[0] == "suspended"
    return delta_snapshot._pending_snapshot.get(), instance


def test_backend_gets_the_snapshot_context_from_nova(driver):
    made, instance = begin(driver)
    assert (made.is_live, made.is_suspended) == (True, False)
    assert made.record_of("raw") == {"disk_format": "raw", "container_format": "meta"}
    made.make_live("disk", "out", "qcow2")
    guest = f"guest of {INSTANCE}"
    wanted = ("context", instance, guest, "disk", "out", "qcow2", "qcow2", "meta")
    assert driver.done[1] == wanted
    assert made.hooks.token_headers("context") == {"X-Auth-Token": "token of a session"}
    updated = []
    made.hooks.update_image(updated, "image", {"disk_format": "raw"})
    assert updated == [(("image", {"disk_format": "raw"}), {"purge_props": False})]
    assert made.hooks.disk_semaphore() == "a turn"


@pytest.mark.parametrize(("power_state", "is_suspended"), [(1, True), (4, False)])
def test_backend_knows_whether_the_guest_is_suspended(driver, power_state, is_suspended):
    made, _ = begin(driver, is_live=False, power_state=power_state)
    assert (made.is_live, made.is_suspended) == (False, is_suspended)


def test_snapshots_of_other_backends_are_not_recorded(driver):
    driver.backend = object()
    assert begin(driver)[0] is None


@pytest.mark.expect_log("Nova makes this snapshot itself")
def test_failing_hook_leaves_the_snapshot_to_nova(driver, monkeypatch):
    monkeypatch.setattr(registration.importlib, "import_module", {}.__getitem__)
    assert begin(driver)[0] is None


@pytest.mark.expect_log("Nova uploads complete snapshots: .*takes")
def test_changed_snapshot_driver_is_not_wrapped(driver, monkeypatch):
    def check(version):
        raise ValueError("it takes other parameters")

    monkeypatch.setattr(nova_hooks, "check_snapshot_hooks", check)
    module = types.SimpleNamespace(LibvirtDriver=type("LibvirtDriver", (Driver,), {}))
    registration._register_delta_snapshots(module)
    assert module.LibvirtDriver._suspend_guest_for_snapshot is Driver._suspend_guest_for_snapshot


class RollbackError(Exception):
    """Stands for Nova's exception that leaves a server unchanged."""


@pytest.fixture
def moving(monkeypatch):
    """Return Nova's driver with a record of moves; by default a disk is unmovable."""

    class LibvirtDriver:
        def __init__(self):
            self.moved, self.backend = [], types.SimpleNamespace(host=object())
            self.image_backend = types.SimpleNamespace(backend=lambda: self.backend)

        def migrate_disk_and_power_off(self, context, instance, *args, **kwargs):
            self.moved.append((context, instance.uuid, args, kwargs))
            return "disk info"

    exception = types.SimpleNamespace(
        InstanceFaultRollback=RollbackError, MigrationPreCheckError=lambda reason: reason
    )
    monkeypatch.setattr(registration.nova_hooks, "check_migration_hooks", lambda version: None)
    monkeypatch.setattr(registration, "nova_version", lambda: "34.0.0")
    monkeypatch.setattr(registration.importlib, "import_module", {"nova.exception": exception}.get)
    monkeypatch.setattr(recovered_disk, "why_unmovable", lambda host, instance_id: "it lacks some")
    registration._register_moves(types.SimpleNamespace(LibvirtDriver=LibvirtDriver))
    return LibvirtDriver()


def test_unmovable_server_is_not_migrated(moving, monkeypatch):
    instance = types.SimpleNamespace(uuid=INSTANCE)
    with pytest.raises(RollbackError, match="it lacks some"):
        moving.migrate_disk_and_power_off("context", instance, "dest", timeout=1)
    assert moving.moved == []
    monkeypatch.setattr(recovered_disk, "why_unmovable", lambda host, instance_id: "")
    assert moving.migrate_disk_and_power_off("context", instance, "dest", timeout=1) == "disk info"
    assert moving.moved == [("context", INSTANCE, ("dest",), {"timeout": 1})]


def test_servers_on_other_backends_are_migrated(moving):
    moving.backend = object()
    moving.migrate_disk_and_power_off("context", types.SimpleNamespace(uuid=INSTANCE))
    assert moving.moved


@pytest.mark.expect_log("may migrate too early")
def test_changed_migration_driver_is_not_wrapped(monkeypatch):
    def check(version):
        raise ValueError("another one")

    def stock(self):
        pass

    monkeypatch.setattr(registration.nova_hooks, "check_migration_hooks", check)
    monkeypatch.setattr(registration, "nova_version", lambda: "34.0.0")
    made = type("LibvirtDriver", (), {"migrate_disk_and_power_off": stock})
    registration._register_moves(types.SimpleNamespace(LibvirtDriver=made))
    assert made.migrate_disk_and_power_off is stock
