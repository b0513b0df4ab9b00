# SPDX-License-Identifier: Apache-2.0
"""Parser of libvirt's domain XML for servers of Nova.

Only root disks on mirrors have checkpoints.  The rescue disk is an overlay of an image, too, but
must not replace the root disk, which is then the second disk.
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids

_NOVA: Final = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
_ROOT_DISK: Final = "disk"  # file name of the root disk in the server's folder
_AGENT_CHANNEL: Final = "org.qemu.guest_agent.0"


class RootDisk(NamedTuple):
    """A server's root disk: libvirt's name (``vda``), overlay, image of the mirror."""

    target: str
    path: str
    base: ids.ImageId


class Server(NamedTuple):
    """A server of Nova's on this host."""

    instance: ids.ImageId
    project: str
    disk: RootDisk
    extra_specs: Mapping[str, str]  # of its flavor, if this Nova adds them to the XML
    has_agent: bool  # a guest agent is connected


class ServerList(NamedTuple):
    """The servers of this host."""

    servers: Sequence[Server]  # with supported disks
    undescribed: frozenset[ids.ImageId] = frozenset()  # not described yet: maybe servers

    def instances(self) -> frozenset[ids.ImageId]:
        """Return the servers that are or may be on this host; all others are gone."""
        return self.undescribed.union(server.instance for server in self.servers)


FindBase = Callable[[str], ids.ImageId | None]
"""Returns the image whose mirror backs the overlay at a path."""


def parse(xml: str, base_of: FindBase) -> Server | None:
    """Return the server of a domain; None if not Nova's, or without supported disk."""
    domain = ET.fromstring(xml)
    nova = domain.find(f"metadata/{_NOVA}instance")
    disk = _disk(domain, base_of)
    if nova is None or disk is None:
        return None
    try:
        instance = ids.parse_image_id(domain.findtext("uuid", ""))
        project = _project(nova)
    except ValueError:
        return None
    extra_specs = {
        spec.get("name", ""): spec.text or ""
        for spec in nova.iterfind(f"{_NOVA}flavor/{_NOVA}extraSpecs/{_NOVA}extraSpec")
    }
    return Server(instance, project, disk, extra_specs, _has_agent(domain))


def _project(nova: ET.Element) -> str:
    owner = nova.find(f"{_NOVA}owner/{_NOVA}project")
    project = "" if owner is None else owner.get("uuid", "")
    if not project or len(project.encode()) > checkpoint_manifest.MAX_PROJECT_BYTES:
        raise ValueError(f"{project[:80]!r} is not a project")
    return project


def _disk(domain: ET.Element, base_of: FindBase) -> RootDisk | None:
    for disk in domain.iterfind("devices/disk[@type='file'][@device='disk']"):
        driver, source, target = (disk.find(name) for name in ("driver", "source", "target"))
        if driver is None or source is None or target is None or driver.get("type") != "qcow2":
            continue
        path = source.get("file", "")
        base = base_of(path) if os.path.basename(path) == _ROOT_DISK else None
        if base is not None:
            return RootDisk(target.get("dev", ""), path, base)
    return None


def _has_agent(domain: ET.Element) -> bool:
    return any(
        target.get("name") == _AGENT_CHANNEL and target.get("state") == "connected"
        for target in domain.iterfind("devices/channel/target")
    )
