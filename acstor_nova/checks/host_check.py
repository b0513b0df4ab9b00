# SPDX-License-Identifier: Apache-2.0
"""Checks whether Nova can use acstor on a compute host, without reads of mirrors."""

import contextlib
import errno
import importlib
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator

from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.util import mount_table
from acstor_nova import agent_client
from acstor_nova import compute_user
from acstor_nova import conf as nova_conf
from acstor_nova import mirror_link
from acstor_nova import nova_hooks
from acstor_nova import registration
from acstor_nova.checks import agent_health
from acstor_nova.checks import check_results
from acstor_nova.checks import image_fill
from acstor_nova.snapshots import gateway_client

FS_TYPE = "fuse.acstor"
RESEND_KERNEL = (6, 9)
AA_HELPER = "etc/apparmor.d/usr.lib.libvirt.virt-aa-helper"
AA_LOCAL = "etc/apparmor.d/local/usr.lib.libvirt.virt-aa-helper"
NOT_LET_IN = (
    "Nova downloads whole images instead. Set [acstor_agent] control_group to a group of that "
    "process, or make its user a member of the socket's group; then restart agent or nova-compute."
)
NOT_IN_GROUP = (
    "Make that user a member of the group ([acstor_agent] mirror_group, kvm by default), and "
    "restart nova-compute."
)
_NOVA_OPTS = [
    cfg.StrOpt("state_path", default="/var/lib/nova"),
    cfg.StrOpt("instances_path", default="$state_path/instances"),
]


CheckResult = check_results.CheckResult
Level = check_results.Level


def load_conf(config_files: list[str]) -> cfg.ConfigOpts:
    """Return Nova's configuration; no files: those of the running nova-compute, or the default."""
    conf = cfg.ConfigOpts()
    args = [f"--config-file={name}" for name in config_files] or compute_user.config_args()
    common_conf.read(conf, args, "nova-compute", _register, nova_conf.list_opts(), project="nova")
    with contextlib.suppress(cfg.DuplicateOptError):  # oslo.config may have registered it
        conf.register_opt(cfg.StrOpt("driver"), group=registration.NAME)
    return conf


def _register(conf: cfg.ConfigOpts) -> None:
    nova_conf.register_opts(conf)
    conf.register_opts(_NOVA_OPTS)
    conf.register_opt(cfg.StrOpt("images_type"), group="libvirt")
    conf.register_opt(cfg.StrOpt("subdirectory_name", default="_base"), group="image_cache")
    conf.register_opts(image_fill.OPTS, group="image_cache")


def check_host(
    conf: cfg.ConfigOpts, user: compute_user.User, root: pathlib.Path = pathlib.Path("/")
) -> list[CheckResult]:
    """Return the findings, with the permissions of ``user`` if possible."""
    return [
        *_configuration(conf),
        _nova(),
        _libraries(),
        check_user(user, _guards(conf)),
        *_agent(conf, user),
        _mount(conf, root, user),
        *_image_cache(conf),
        _gateway(conf),
        image_fill.check_manager_interval(conf),
        _kernel(root),
        _apparmor(conf, root),
        _selinux(root),
    ]


def check_user(user: compute_user.User, guards: frozenset[int]) -> CheckResult:
    """Check that this process has nova-compute's permissions; ``guards``: its groups."""
    what, ours = "checked as", compute_user.current_user()
    if ours.uid not in (0, user.uid) or (ours.uid and not user.groups <= ours.groups):
        detail = f"{ours.name}, groups {compute_user.names_of(ours.groups)}; nova-compute is {user}"
        remedy = "Run this command as root: it then checks with the rights of nova-compute."
        return CheckResult(what, Level.WARNING, detail, remedy)
    with contextlib.suppress(errors.Unusable):
        missing = (compute_user.account(user.name).groups - user.groups) & guards
        if user.pid and user.uid and missing:
            names = compute_user.names_of(missing)
            detail = f"{user}; its account is in {names} too, its process is not"
            remedy = "Restart nova-compute. If that does not help, its unit names other groups."
            return CheckResult(what, Level.WARNING, detail, remedy)
    return CheckResult(what, Level.OK, str(user))


def _configuration(conf: cfg.ConfigOpts) -> Iterator[CheckResult]:
    for what, found in (
        ("[DEFAULT] config_source", conf.config_source or []),
        ("[acstor] driver", [conf.acstor.driver]),
    ):
        if nova_conf.NAME in found:
            yield CheckResult(what, Level.OK, nova_conf.NAME)
        else:
            shown = ", ".join(map(str, found)) or "not set"
            remedy = "Run: acstor-nova-manage enable"
            yield CheckResult(what, Level.ERROR, f"it is {shown}", remedy)
    yield _images_type(conf)
    for stray in common_conf.unknown(conf, nova_conf.list_opts()):
        remedy = f"Write {stray.nearest}." if stray.nearest else "Remove it."
        yield CheckResult("options", Level.WARNING, str(stray), remedy)


def _images_type(conf: cfg.ConfigOpts) -> CheckResult:
    what, found = "[libvirt] images_type", conf.libvirt.images_type
    if found is None:
        return CheckResult(what, Level.OK, f"{nova_conf.NAME}, because no file sets another")
    if found == nova_conf.NAME:
        return CheckResult(what, Level.OK, found)
    return CheckResult(what, Level.ERROR, f"it is {found}", "Remove that line from nova.conf.")


def _nova() -> CheckResult:
    try:
        version = registration.nova_version()
        nova_hooks.check_hooks(
            version, [seam.module for seam in nova_hooks.HOOKS[max(nova_hooks.HOOKS)]]
        )
    except importlib.metadata.PackageNotFoundError:
        remedy = "Install acstor[nova] where Nova is installed, and run this command there."
        return CheckResult("nova", Level.ERROR, "Nova is not installed in this environment", remedy)
    except errors.UnsupportedNova as e:
        remedy = (
            "Nova works as with images_type = qcow2. Install an acstor that supports this Nova."
        )
        return CheckResult("nova", Level.ERROR, str(e), remedy)
    try:
        nova_hooks.check_snapshot_hooks(version)
    except errors.UnsupportedNova as e:
        remedy = "Snapshots are uploaded as whole images; the rest works."
        return CheckResult("nova", Level.WARNING, str(e), remedy)
    return CheckResult("nova", Level.OK, version)


def _libraries() -> CheckResult:
    what = "libraries"
    try:
        for module in registration.BACKEND:
            importlib.import_module(module)
    except ModuleNotFoundError as e:
        remedy = f"Install {e.name} in the environment of nova-compute, and restart that."
        detail = f"acstor is not used, because there is no module {e.name}"
        return CheckResult(what, Level.ERROR, detail, remedy)
    return CheckResult(what, Level.OK, "all are installed")


def _guards(conf: cfg.ConfigOpts) -> frozenset[int]:
    found = set()
    for path in (conf.acstor.control_socket, conf.acstor.mount_point):
        with contextlib.suppress(OSError):
            found.add(os.stat(path).st_gid)
    return frozenset(found)


def _agent(conf: cfg.ConfigOpts, user: compute_user.User) -> Iterator[CheckResult]:
    own = conf.acstor
    try:
        with compute_user.acting_as(user):
            status = agent_client.AgentClient(
                own.control_socket, agent_client.TIMEOUT_S
            ).agent_status()
    except (errors.AgentUnreachable, errors.AgentRefused) as e:
        is_denied = isinstance(e.__cause__, PermissionError)
        remedy = NOT_LET_IN if is_denied else "Is acstor-agent running? See its log."
        yield CheckResult("agent", Level.ERROR, str(e), remedy)
        return
    yield CheckResult("agent", Level.OK, f"{own.control_socket}, worker {status['worker_pid']}")
    if status["mount_point"] != own.mount_point:
        detail = f"the agent mounts {status['mount_point']}, nova.conf has {own.mount_point}"
        yield CheckResult(
            "mount_point", Level.ERROR, detail, "Set the same [acstor] mount_point in both."
        )
    yield from agent_health.check_health(status)
    yield from image_fill.check_status(status, image_fill.find_instances(conf))


def _mount(conf: cfg.ConfigOpts, root: pathlib.Path, user: compute_user.User) -> CheckResult:
    point = conf.acstor.mount_point
    remedy = "Start acstor-agent; if it runs, see its log."
    mounts = mount_table.list_mounts(root / "proc/self/mountinfo")
    types = {mount.path: mount.fs_type for mount in mounts}
    if types.get(os.path.realpath(point)) != FS_TYPE:
        return CheckResult("mirror", Level.ERROR, f"no acstor mirror is mounted on {point}", remedy)
    try:
        os.statvfs(point)
    except OSError as e:
        return CheckResult("mirror", Level.ERROR, f"{point}: {e.strerror}", remedy)
    with compute_user.acting_as(user):
        may_look = os.access(point, os.R_OK | os.X_OK, effective_ids=True)
    if not may_look:
        group = compute_user.group_name(os.stat(point).st_gid)
        detail = f"{point} is for root and group {group}, and {user} may not read it"
        return CheckResult("mirror", Level.ERROR, detail, NOT_IN_GROUP)
    return CheckResult("mirror", Level.OK, point)


def _image_cache(conf: cfg.ConfigOpts) -> Iterator[CheckResult]:
    folder = pathlib.Path(conf.instances_path, conf.image_cache.subdirectory_name)
    links = 0
    try:
        for path in sorted(folder.iterdir()) if folder.exists() else []:
            image_id = mirror_link.image_of(str(path))
            links += image_id is not None
            if image_id is not None and not _is_there(path):
                detail = f"{path} links to {os.readlink(path)}, which does not exist"
                remedy = (
                    "It is restored when an instance of the image starts; if Glance no longer has "
                    "the image and no instance uses it, delete the link."
                )
                yield CheckResult("image cache", Level.WARNING, detail, remedy)
    except OSError as e:
        remedy = "Run this command as a user with read access."
        if e.errno == errno.ENOTCONN:
            remedy = "The mirror is dead: start acstor-agent, and reboot the servers that use it."
        yield CheckResult("image cache", Level.ERROR, f"{folder}: {e.strerror}", remedy)
        return
    yield CheckResult("image cache", Level.OK, f"{folder}: {links} links to mirrors")


def _is_there(path: pathlib.Path) -> bool:
    """Return whether a link leads to a file; False for EIO, a refused image."""
    try:
        return path.exists()
    except OSError as e:
        if e.errno != errno.EIO:
            raise
        return False


def _gateway(conf: cfg.ConfigOpts) -> CheckResult:
    what, own = "[acstor] gateway_url", conf.acstor
    if not own.gateway_url:
        return CheckResult(what, Level.OK, "not set: snapshots are uploaded as whole images")
    try:
        gateway_client.GatewayClient(own.gateway_url, own.ca_file).check_gateway()
    except (errors.GatewayUnreachable, errors.GatewayRefused) as e:
        remedy = "Until it answers, snapshots are uploaded as whole images."
        return CheckResult(what, Level.WARNING, str(e), remedy)
    return CheckResult(what, Level.OK, own.gateway_url)


def _kernel(root: pathlib.Path) -> CheckResult:
    release = (root / "proc/sys/kernel/osrelease").read_text().strip()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if numbers < RESEND_KERNEL:
        detail = f"Linux {release}: requests of guests pass through one more process"
        return CheckResult("kernel", Level.WARNING, detail, "Use Linux 6.9 or newer.")
    return CheckResult("kernel", Level.OK, release)


def _apparmor(conf: cfg.ConfigOpts, root: pathlib.Path) -> CheckResult:
    enabled = root / "sys/module/apparmor/parameters/enabled"
    if not enabled.exists() or enabled.read_text().strip() != "Y":
        return CheckResult("apparmor", Level.OK, "is not in force")
    rules = "".join(
        path.read_text() for path in (root / AA_HELPER, root / AA_LOCAL) if path.exists()
    )
    if not rules or "/**.raw" in rules or conf.acstor.mount_point in rules:
        return CheckResult("apparmor", Level.OK, "lets libvirt read mirrors")
    detail = f"virt-aa-helper may not read {conf.acstor.mount_point}, so no guest will start"
    return CheckResult("apparmor", Level.ERROR, detail, f"Put acstor's rules into /{AA_LOCAL}.")


def _selinux(root: pathlib.Path) -> CheckResult:
    enforce = root / "sys/fs/selinux/enforce"
    if not enforce.exists() or enforce.read_text().strip() != "1":
        return CheckResult("selinux", Level.OK, "is not in force")
    switch = root / "sys/fs/selinux/booleans/virt_use_fusefs"
    if switch.exists() and switch.read_text().startswith("1"):
        return CheckResult("selinux", Level.OK, "virt_use_fusefs is on")
    detail = "virt_use_fusefs is off, so no guest may read a mirror"
    return CheckResult("selinux", Level.ERROR, detail, "Run: setsebool -P virt_use_fusefs on")
