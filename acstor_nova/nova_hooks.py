# SPDX-License-Identifier: Apache-2.0
"""Lists the internal names of Nova that acstor uses, and checks them.

Every process of Nova loads it: it imports only the standard library until a check fails.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

IMAGEBACKEND = "nova.virt.libvirt.imagebackend"
DRIVER = "nova.virt.libvirt.driver"
MANAGER = "nova.compute.manager"
UTILS = "nova.virt.libvirt.utils"
GUEST = "nova.virt.libvirt.guest"
CONFIG = "nova.virt.libvirt.config"


@dataclasses.dataclass(frozen=True)
class NovaHook:
    """A name in Nova, and its parameters if it is a function."""

    module: str
    name: str
    parameters: tuple[str, ...] | None = None


_CACHE = ("self", "fetch_func", "filename", "size", "safe", "args", "kwargs")
_LIBVIRT_INFO = ("self", "cache_mode", "extra_specs", "boot_order", "disk_unit")
_QCOW2 = ("self", "instance", "disk_name", "path", "disk_info_mapping")
_REBUILD = (
    *("self", "context", "instance", "image_meta", "injected_files", "admin_password"),
    *("allocations", "bdms", "detach_block_devices", "attach_block_devices", "network_info"),
    *("evacuate", "block_device_info", "preserve_ephemeral", "accel_uuids", "reimage_boot_volume"),
)
_ALL = (
    NovaHook(IMAGEBACKEND, "CONF"),
    NovaHook(IMAGEBACKEND, "Backend.__init__", ("self", "use_cow")),
    NovaHook(IMAGEBACKEND, "Qcow2.__init__", _QCOW2),
    NovaHook(IMAGEBACKEND, "Image.cache", _CACHE),
    NovaHook(IMAGEBACKEND, "Image.libvirt_info", _LIBVIRT_INFO),
    NovaHook(CONFIG, "LibvirtConfigGuestDisk.format_dom", ("self",)),
    NovaHook("nova.virt.images", "IMAGE_API"),
    NovaHook("nova.virt.images", "do_image_deep_inspection", ("img", "image_href", "path")),
    NovaHook("nova.exception", "GlanceConnectionFailed"),
    NovaHook("nova.exception", "ImageNotFound"),
    NovaHook("nova.exception", "InternalError"),
    NovaHook(DRIVER, "LibvirtDriver.cache_image", ("self", "context", "image_id")),
    NovaHook(DRIVER, "LibvirtDriver.manage_image_cache", ("self", "context", "all_instances")),
    NovaHook(MANAGER, "ComputeManager._rebuild_default_impl", _REBUILD),
    NovaHook("nova.virt.libvirt.imagecache", "get_cache_fname", ("image_id",)),
    NovaHook(UTILS, "extract_snapshot", ("disk_path", "source_fmt", "out_path", "dest_fmt")),
    NovaHook(GUEST, "Guest.uuid"),
    NovaHook(GUEST, "Guest.poweroff", ("self",)),
)
HOOKS: Mapping[int, Sequence[NovaHook]] = dict.fromkeys(range(31, 35), _ALL)
"""Hooks by Nova's major version: 31 is 2025.1, 34 is 2026.2."""

_DIRECT = ("self", "context", "snapshot_name", "image_format", "image_id", "base_image_id")
_SUSPEND = ("self", "context", "live_snapshot", "current_power_state", "instance")
_LIVE = ("context", "instance", "guest", "disk_path", "out_path", "source_format", "image_format")
_UPDATE = ("self", "context", "id_or_uri", "image_info", "data", "purge_props")
_METADATA = ("self", "image_meta", "instance", "img_fmt", "snp_name")
SNAPSHOT_HOOKS: Sequence[NovaHook] = (
    NovaHook(IMAGEBACKEND, "Image.direct_snapshot", _DIRECT),
    NovaHook(DRIVER, "LibvirtDriver._suspend_guest_for_snapshot", _SUSPEND),
    NovaHook(DRIVER, "LibvirtDriver._needs_suspend_resume_for_snapshot", ("self", *_SUSPEND[2:4])),
    NovaHook(DRIVER, "LibvirtDriver._live_snapshot", ("self", *_LIVE, "image_meta")),
    NovaHook(DRIVER, "LibvirtDriver._create_snapshot_metadata", _METADATA),
    NovaHook("nova.virt.libvirt.host", "Host.get_guest", ("self", "instance")),
    NovaHook("nova.image.glance", "_session_and_auth", ("context",)),
    NovaHook("nova.image.glance", "API.update", _UPDATE),
    NovaHook("nova.compute.utils", "disk_ops_semaphore"),
    NovaHook(UTILS, "extract_snapshot", ("disk_path", "source_fmt", "out_path", "dest_fmt")),
)
"""Hooks of delta snapshots, in every version of HOOKS; the rest works without."""

_MIGRATE = (
    *("self", "context", "instance", "dest", "flavor", "network_info"),
    *("block_device_info", "timeout", "retry_interval"),
)
MIGRATION_HOOKS: Sequence[NovaHook] = (
    NovaHook(DRIVER, "LibvirtDriver.migrate_disk_and_power_off", _MIGRATE),
    NovaHook("nova.exception", "InstanceFaultRollback"),
    NovaHook("nova.exception", "MigrationPreCheckError"),
)
"""Hooks of refused migrations, in every version of HOOKS."""


def check_hooks(
    version: str, modules: Sequence[str], table: Mapping[int, Sequence[NovaHook]] = HOOKS
) -> None:
    """Raise UnsupportedNova for an unknown version or if a ``modules`` hook differs."""
    from acstor_common import errors

    known = table.get(int(version.partition(".")[0]))
    if known is None:
        wanted = f"{min(table)} to {max(table)}"
        raise errors.UnsupportedNova(version, f"acstor was tested with versions {wanted} only")
    for seam in known:
        if seam.module in modules and (wrong := _what_is_wrong(seam)):
            raise errors.UnsupportedNova(version, f"{seam.module}.{seam.name} {wrong}")


def check_snapshot_hooks(version: str) -> None:
    """Check the hooks of delta snapshots; raises as :func:`check_hooks`."""
    _check_all(version, SNAPSHOT_HOOKS)


def check_migration_hooks(version: str) -> None:
    """Check the hooks of refused migrations; raises as :func:`check_hooks`."""
    _check_all(version, MIGRATION_HOOKS)


def _check_all(version: str, known: Sequence[NovaHook]) -> None:
    check_hooks(version, [seam.module for seam in known], dict.fromkeys(HOOKS, known))


def _what_is_wrong(seam: NovaHook) -> str:
    try:
        found: Any = functools.reduce(
            getattr, seam.name.split("."), importlib.import_module(seam.module)
        )
    except (ImportError, AttributeError):
        return "does not exist"
    if seam.parameters is not None:
        parameters = tuple(inspect.signature(found).parameters)
        if parameters != seam.parameters:
            return f"takes {parameters}, not {seam.parameters}"
    return ""
