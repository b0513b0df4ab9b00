# SPDX-License-Identifier: Apache-2.0
"""Registers acstor in Nova; makes it the default of ``[libvirt] images_type``.

oslo.config loads :class:`Driver` for a configuration source before it reads options. It adds
``acstor`` to the option's choices and supplies it where no file sets the option, so no file has a
value that stock Nova rejects. Hooks are installed when Nova imports its libvirt modules.

Nova must always start: if it differs from :data:`nova_hooks.HOOKS`, ``acstor`` means ``qcow2``.
Other processes of Nova, one with root's privileges, load this module too, so it imports other
libraries only when needed.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from oslo_config import cfg
from oslo_config import sources

from acstor_nova import import_hook
from acstor_nova import nova_hooks

LOG = logging.getLogger(__name__)

NAME = "acstor"
STOCK = "qcow2"
BACKEND = (
    "acstor_nova.imagebackend",
    "acstor_nova.snapshots.delta_snapshot",
    "acstor_nova.evacuation.recovering_backend",
)
"""Modules that are loaded when Nova creates its table of backends."""
IMAGEBACKEND, DRIVER, UTILS, GUEST = (
    nova_hooks.IMAGEBACKEND,
    nova_hooks.DRIVER,
    nova_hooks.UTILS,
    nova_hooks.GUEST,
)
MANAGER = nova_hooks.MANAGER
_MARK = "_acstor_registered"


class Driver(sources.ConfigurationSourceDriver):
    """Configuration source for ``[DEFAULT] config_source`` and ``[acstor] driver``."""

    def list_options_for_discovery(self) -> list[cfg.Opt]:
        """Return no options: this source has none."""
        return []

    def open_source_from_opt_group(self, conf: cfg.ConfigOpts, group_name: str) -> "Values":
        """Register acstor with the Nova of this process, if there is one."""
        if "nova.conf" in sys.modules and "libvirt" in conf:
            _widen_choices()
            import_hook.when_imported(IMAGEBACKEND, _register_backend)
            import_hook.when_imported(DRIVER, _register_driver)
            import_hook.when_imported(MANAGER, _register_evacuations)
            import_hook.when_imported(UTILS, _register_snapshots)
            import_hook.when_imported(GUEST, _register_poweroff)
            return Values({("libvirt", "images_type"): NAME})
        return Values({})


class Values(sources.ConfigurationSource):
    """Values of options that no file sets, by group and option."""

    def __init__(self, known: Mapping[tuple[str | None, str], str]) -> None:
        self._known = known

    def get(
        self, group_name: str | None, option_name: str, opt: cfg.Opt
    ) -> tuple[Any, cfg.LocationInfo | None]:
        """Return the option's value and this source as its location, if known here."""
        value = self._known.get((group_name, option_name))
        if value is None:
            return sources._NoValue, None
        return value, cfg.LocationInfo(cfg.Locations.user, f"config_source = {NAME}")


def nova_version() -> str:
    """Return the version of the installed Nova."""
    return importlib.metadata.version("nova")


def _widen_choices() -> None:
    options = importlib.import_module("nova.conf.libvirt").libvirt_imagebackend_opts
    option = next(option for option in options if option.dest == "images_type")
    option.type.choices.setdefault(NAME, "qcow2 disks on the mirrors of acstor-agent")


def _register_backend(module: ModuleType) -> None:
    if getattr(module.Backend, _MARK, False):
        return
    make_table = module.Backend.__init__

    @functools.wraps(make_table)
    def with_acstor(self: Any, *args: Any, **kwargs: Any) -> None:
        make_table(self, *args, **kwargs)
        chosen = _backend(module)
        self.BACKEND[NAME] = chosen
        if module.CONF.libvirt.images_type == NAME:
            self.BACKEND[STOCK] = chosen  # Nova finds existing disks by their format

    module.Backend.__init__ = with_acstor
    setattr(module.Backend, _MARK, True)


def _may_hook(effect: str, check: Callable[..., None], *names: Any) -> bool:
    """Return whether this Nova has the hooks; if not, log the effect."""
    try:
        check(nova_version(), *names)
    except Exception as e:
        LOG.error("%s: %s", effect, e)
        return False
    return True


def _backend(module: ModuleType) -> type:
    """Return the backend's class, or Nova's own if this Nova is not supported."""
    try:
        modules = [IMAGEBACKEND, nova_hooks.CONFIG, "nova.virt.images", "nova.exception"]
        nova_hooks.check_hooks(nova_version(), modules)
        return _make_backend(module)
    except Exception as e:
        LOG.error("acstor is disabled; Nova works as with images_type = %s: %s", STOCK, e)
        stock: type = module.Qcow2
        return stock


@functools.cache
def _make_backend(module: ModuleType) -> type:
    from acstor_common.service import conf as common_conf
    from acstor_nova import conf as nova_conf
    from acstor_nova import host_context
    from acstor_nova.evacuation import recovering_backend
    from acstor_nova.snapshots import delta_snapshot

    nova_conf.register_opts(module.CONF)
    common_conf.warn_of_unknown(module.CONF, nova_conf.list_opts())
    host = host_context.HostContext(_nova_functions(module))
    LOG.info("acstor is the image backend; agent at %s", module.CONF.acstor.control_socket)
    bases = recovering_backend.RecoveringBase, delta_snapshot.DeltaSnapshotBase, module.Qcow2
    return type("Acstor", bases, {"host": host, "__module__": __name__})


def _nova_functions(module: ModuleType) -> Any:
    from acstor_nova import host_context

    images = importlib.import_module("nova.virt.images")
    exception = importlib.import_module("nova.exception")

    def get_image(context: Any, image_id: str) -> Any:
        try:
            return host_context.parse_image(images.IMAGE_API.get(context, image_id))
        except exception.ImageNotFound:
            return None
        except (exception.GlanceConnectionFailed, ValueError) as e:
            LOG.warning("image %s: %s", image_id, e)
            return None

    def inspect(image_id: str, path: str) -> None:
        if not module.CONF.workarounds.disable_deep_image_inspection:
            images.do_image_deep_inspection({"disk_format": "raw"}, image_id, path)

    return host_context.NovaFunctions(
        conf=module.CONF,
        base_name=base_name,
        get_image=get_image,
        inspect=inspect,
        cannot_start=exception.InternalError,
    )


def base_name(image_id: str) -> str:
    """Return the file name of an image in Nova's image cache."""
    return hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()


def _register_driver(module: ModuleType) -> None:
    if not getattr(module.LibvirtDriver, _MARK, False):
        setattr(module.LibvirtDriver, _MARK, True)
        _register_precache(module)
        _register_delta_snapshots(module)
        _register_moves(module)


def _register_precache(module: ModuleType) -> None:
    stock = module.LibvirtDriver.cache_image

    @functools.wraps(stock)
    def cache_image(self: Any, context: Any, image_id: str) -> bool:
        host = getattr(self.image_backend.backend(), "host", None)
        if host is None:
            return bool(stock(self, context, image_id))
        from acstor_nova import imagebackend

        return imagebackend.precache(host, functools.partial(stock, self), context, image_id)

    try:
        nova_hooks.check_hooks(nova_version(), [DRIVER, "nova.virt.libvirt.imagecache"])
        cached = importlib.import_module("nova.virt.libvirt.imagecache").get_cache_fname("image")
        if cached != base_name("image"):
            raise ValueError(f"Nova's image cache names its files differently: {cached}")
    except Exception as e:
        LOG.error("acstor does not serve requests to cache images: %s", e)
        return
    module.LibvirtDriver.cache_image = cache_image
    _register_clean_up(module)


def _register_delta_snapshots(module: ModuleType) -> None:
    """Hook the start of snapshots, which Nova reveals only where it suspends guests."""
    stock = module.LibvirtDriver._suspend_guest_for_snapshot

    @functools.wraps(stock)
    def suspend(
        self: Any, context: Any, live_snapshot: bool, current_power_state: int, instance: Any
    ) -> None:
        stock(self, context, live_snapshot, current_power_state, instance)
        try:
            if hasattr(self.image_backend.backend(), "host"):
                needs = self._needs_suspend_resume_for_snapshot
                is_suspended = needs(live_snapshot, current_power_state)
                _begin_snapshot(self, context, instance, live_snapshot, is_suspended)
        except Exception:
            LOG.exception("Nova makes this snapshot itself")

    if not _may_hook("Nova uploads complete snapshots", nova_hooks.check_snapshot_hooks):
        return
    module.LibvirtDriver._suspend_guest_for_snapshot = suspend


def _begin_snapshot(
    driver: Any, context: Any, instance: Any, is_live: bool, is_suspended: bool
) -> None:
    from acstor_nova.snapshots import delta_snapshot

    images = importlib.import_module("nova.virt.images")
    glance = importlib.import_module("nova.image.glance")
    compute = importlib.import_module("nova.compute.utils")

    def token_headers(context: Any) -> dict[str, str]:
        session, auth = glance._session_and_auth(context)
        return dict(auth.get_headers(session) or {})

    def record_of(image_format: str) -> dict[str, Any]:
        return dict(
            driver._create_snapshot_metadata(instance.image_meta, instance, image_format, "")
        )

    def make_live(disk_path: str, out_path: str, image_format: str) -> None:
        guest, meta = driver._host.get_guest(instance), instance.image_meta
        driver._live_snapshot(
            context, instance, guest, disk_path, out_path, STOCK, image_format, meta
        )

    used = delta_snapshot.SnapshotHooks(
        token_headers=token_headers,
        update_image=functools.partial(images.IMAGE_API.update, purge_props=False),
        disk_semaphore=lambda: compute.disk_ops_semaphore,
    )
    delta_snapshot.begin_snapshot(
        delta_snapshot.PendingSnapshot(
            used, is_live, is_suspended, record_of=record_of, make_live=make_live
        )
    )


def _register_moves(module: ModuleType) -> None:
    """Hook cold migrations, to refuse them for incompletely recovered disks."""
    stock = module.LibvirtDriver.migrate_disk_and_power_off

    @functools.wraps(stock)
    def migrate(self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        host = getattr(self.image_backend.backend(), "host", None)
        if host is not None and (why := _why_unmovable(host, instance.uuid)):
            exception = importlib.import_module("nova.exception")
            refused = exception.MigrationPreCheckError(reason=why)
            raise exception.InstanceFaultRollback(refused)  # the server stays unchanged
        return stock(self, context, instance, *args, **kwargs)

    if not _may_hook("recovered servers may migrate too early", nova_hooks.check_migration_hooks):
        return
    module.LibvirtDriver.migrate_disk_and_power_off = migrate


def _why_unmovable(host: Any, instance_id: str) -> str:
    from acstor_nova.evacuation import recovered_disk

    return recovered_disk.why_unmovable(host, instance_id)


def _register_evacuations(module: ModuleType) -> None:
    """Hook rebuilds in the compute manager, to recognize evacuations."""
    if getattr(module.ComputeManager, _MARK, False):
        return

    def is_ours() -> bool:
        return hasattr(_backend(importlib.import_module(IMAGEBACKEND)), "host")

    if not _may_hook(
        "evacuated servers start from their images", nova_hooks.check_hooks, [MANAGER]
    ):
        return
    from acstor_nova.evacuation import recovering_backend

    stock = module.ComputeManager._rebuild_default_impl
    module.ComputeManager._rebuild_default_impl = recovering_backend.wrap_rebuild(stock, is_ours)
    setattr(module.ComputeManager, _MARK, True)


def _register_clean_up(module: ModuleType) -> None:
    """Hook Nova's image cache manager, to delete unused disks of checkpoints."""
    stock = module.LibvirtDriver.manage_image_cache

    @functools.wraps(stock)
    def manage_image_cache(self: Any, context: Any, all_instances: Any) -> Any:
        done = stock(self, context, all_instances)
        host = getattr(self.image_backend.backend(), "host", None)
        if host is not None:
            _drop_unused(host, {instance.uuid for instance in all_instances})
        return done

    module.LibvirtDriver.manage_image_cache = manage_image_cache


def _drop_unused(host: Any, instance_ids: Collection[str]) -> None:
    from acstor_nova.evacuation import checkpoint_disk

    try:
        checkpoint_disk.drop_unused(host, instance_ids)
    except Exception:
        LOG.exception("disks of checkpoints are not checked")


def _register_snapshots(module: Any) -> None:
    """Hook the conversion of snapshots, to skip the zeros of mirrors."""
    if getattr(module, _MARK, False):
        return
    stock: Callable[..., None] = module.extract_snapshot

    @functools.wraps(stock)
    def extract_snapshot(disk_path: str, source_fmt: str, out_path: str, dest_fmt: str) -> None:
        backend = _backend(importlib.import_module(IMAGEBACKEND))
        if not hasattr(backend, "host"):
            return stock(disk_path, source_fmt, out_path, dest_fmt)
        from acstor_nova.snapshots import sparse_snapshot

        sparse_snapshot.extract_image(
            backend.host, stock, disk_path, source_fmt, out_path, dest_fmt
        )

    if not _may_hook("Nova makes snapshots itself", nova_hooks.check_hooks, [UTILS]):
        return
    module.extract_snapshot = extract_snapshot
    setattr(module, _MARK, True)


def _register_poweroff(module: ModuleType) -> None:
    """Hook power-off, because a guest whose reads wait ignores SIGTERM."""
    if getattr(module.Guest, _MARK, False):
        return
    stock = module.Guest.poweroff

    @functools.wraps(stock)
    def poweroff(self: Any) -> None:
        backend = _backend(importlib.import_module(IMAGEBACKEND))
        if not hasattr(backend, "host"):
            stock(self)
            return
        _notify_power_off(backend.host, self.uuid)
        try:
            stock(self)
        except BaseException:  # it may still run, so its reads must wait again
            _notify_power_off(backend.host, self.uuid, is_cancelled=True)
            raise

    if not _may_hook(
        "Nova stops instances with waiting reads itself", nova_hooks.check_hooks, [GUEST]
    ):
        return
    module.Guest.poweroff = poweroff
    setattr(module.Guest, _MARK, True)


def _notify_power_off(host: Any, instance_id: str, is_cancelled: bool = False) -> None:
    from acstor_nova import host_context

    try:
        host_context.notify_power_off(host, instance_id, is_cancelled=is_cancelled)
    except Exception:
        LOG.exception("cannot report the power-off of an instance to the agent")
