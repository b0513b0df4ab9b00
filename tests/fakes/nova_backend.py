# SPDX-License-Identifier: Apache-2.0
"""acstor's image backend over a stand-in of Nova's class, on a host with a mirror."""

import hashlib
import pathlib
import subprocess
import types
from xml.etree import ElementTree

from oslo_config import cfg

from acstor_common.wire import control_wire
from acstor_nova import conf as nova_conf
from acstor_nova import host_context
from acstor_nova import imagebackend
from acstor_nova.evacuation import recovering_backend
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
INSTANCE = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
SIZE = 1 << 20
DOWNLOADED = b"downloaded"


class CannotStartError(Exception):
    pass


class Stock:
    """The used parts of Nova's Qcow2 class."""

    fails = 0
    io = None

    def __init__(self, instance=None, disk_name=None, path=None, disk_info_mapping=None):
        self.path = path

    def cache(self, fetch_func, filename, size=None, safe=False, *args, **kwargs):
        base = pathlib.Path(self.path).parents[1] / "_base" / filename
        base.parent.mkdir(exist_ok=True)
        if not base.exists():
            fetch_func(target=str(base), *args, **kwargs)  # noqa: B026
        if type(self).fails:
            type(self).fails -= 1
            raise RuntimeError("qemu-img failed")
        pathlib.Path(self.path).parent.mkdir(exist_ok=True)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, self.path]
        subprocess.run(command, check=True)

    def libvirt_info(self, cache_mode):
        def format_dom():
            return ElementTree.fromstring("<disk><driver name='qemu'/><target dev='vda'/></disk>")

        return types.SimpleNamespace(
            driver_cache=cache_mode, driver_io=self.io, format_dom=format_dom
        )


def base_name(image_id):
    return hashlib.sha1(image_id.encode()).hexdigest()


def attached(disk_format, stored_bytes):
    """Return the agent's response for an image with this format and size in Glance."""
    answer = {"size_bytes": SIZE, "disk_format": disk_format, "stored_bytes": stored_bytes}
    return scripted_agent.done({"image_id": IMAGE, **answer})


class Nova:
    """A host with Nova, an agent and a mirror."""

    def __init__(self, folder):
        self.folder = folder
        self.image = {"disk_format": "raw", "status": "active", "size": SIZE, "properties": {}}
        self.inspected = []
        self.conf = cfg.ConfigOpts()
        nova_conf.register_opts(self.conf)
        self.conf.register_opts([cfg.StrOpt("instances_path", default=str(folder))])
        for group, opt in (
            ("image_cache", cfg.StrOpt("subdirectory_name", default="_base")),
            ("glance", cfg.BoolOpt("verify_glance_signatures", default=False)),
            ("libvirt", cfg.ListOpt("disk_cachemodes", default=[])),
        ):
            self.conf.register_opt(opt, group=group)
        self.conf([], default_config_files=[], default_config_dirs=[])
        self.socket = folder / "control.sock"
        for name, value in (("control_socket", self.socket), ("mount_point", folder / "mirror")):
            self.conf.set_override(name, str(value), group="acstor")
        self.mirror = folder / "mirror/images" / f"{IMAGE}.raw"
        self.mirror.parent.mkdir(parents=True)
        self.mirror.write_bytes(bytes(SIZE))
        self.base = folder / "_base" / base_name(IMAGE)
        nova = host_context.NovaFunctions(
            conf=self.conf,
            base_name=base_name,
            get_image=lambda context, image_id: (
                self.image and host_context.parse_image({"id": IMAGE, **self.image})
            ),
            inspect=lambda image_id, path: self.inspected.append((image_id, path)),
            cannot_start=CannotStartError,
        )
        self.host = host_context.HostContext(nova, host_context.Timeouts(agent_start_s=0.0))
        self.stock = type("Stock", (Stock,), {})
        bases = recovering_backend.RecoveringBase, imagebackend.MirrorBase, self.stock
        self.backend = type("Acstor", bases, {"host": self.host})
        self.answers = {
            control_wire.AttachImage: attached("raw", SIZE),
            control_wire.PreSeed: scripted_agent.done({}),
            control_wire.CountFallback: scripted_agent.done(),
        }

    def limit(self, **timeouts):
        self.host.timeouts = self.host.timeouts._replace(**timeouts)

    def disk(self, name="disk", instance_id=INSTANCE):
        instance = types.SimpleNamespace(image_ref=IMAGE, uuid=instance_id, metadata={})
        instance.system_metadata, instance.task_state = {}, None
        return self.backend(instance, name, str(self.folder / instance_id / name))

    def spawn(self, filename=None, **kwargs):
        return self.cached(self.disk(), filename, **kwargs)

    def cached(self, made, filename=None, **kwargs):
        """Create a disk through ``cache``, as Nova does."""
        options = {"context": None, "image_id": IMAGE, "trusted_certs": None, **kwargs}
        made.cache(fetch_func=download, filename=filename or base_name(IMAGE), **options)
        return made


def download(target, **kwargs):
    path = pathlib.Path(target)
    path.unlink(missing_ok=True)  # Nova renames a new file onto it
    path.write_bytes(DOWNLOADED)
