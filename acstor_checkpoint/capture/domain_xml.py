# SPDX-License-Identifier: Apache-2.0
"""What libvirt's XML says of the servers that Nova has on this host.

Only what Nova made is a server, and only its root disk is taken, if that lies on a mirror.
Ephemeral and swap disks, config drives and volumes have no checkpoints; nor has the disk that a
server is rescued with: it is an overlay of an image as well, and would stand for the server's
own, which is its second disk for that time.
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from collections.abc import Mapping
from typing import Final
from typing import NamedTuple

from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids

_NOVA: Final = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
_ROOT_DISK: Final = "disk"
"""What Nova calls it, in the server's folder."""
_AGENT_CHANNEL: Final = "org.qemu.guest_agent.0"


class Disk(NamedTuple):
    """A server's own disk.

    :param target: what libvirt calls it (``vda``)
    :param path: of the overlay
    :param base: the image whose mirror it lies on
    """

    target: str
    path: str
    base: ids.ImageId


class Server(NamedTuple):
    """A server of Nova's on this host.

    :param specs: extra specs of its flavor, where this Nova tells libvirt of them
    :param has_agent: a guest agent is connected
    """

    instance: ids.ImageId
    project: str
    disk: Disk
    specs: Mapping[str, str]
    has_agent: bool


FindBase = Callable[[str], ids.ImageId | None]
"""Says which image's mirror the overlay at a path lies on."""


def parse(xml: str, base_of: FindBase) -> Server | None:
    """Return the server that a domain is; None if it is none, or none of its disks is taken.

    :param xml: of the domain, as libvirt writes it
    """
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
    specs = {
        spec.get("name", ""): spec.text or ""
        for spec in nova.iterfind(f"{_NOVA}flavor/{_NOVA}extraSpecs/{_NOVA}extraSpec")
    }
    return Server(instance, project, disk, specs, _has_agent(domain))


def _project(nova: ET.Element) -> str:
    owner = nova.find(f"{_NOVA}owner/{_NOVA}project")
    project = "" if owner is None else owner.get("uuid", "")
    if not project or len(project.encode()) > checkpoint_manifest.MAX_PROJECT_BYTES:
        raise ValueError(f"{project[:80]!r} is no project")
    return project


def _disk(domain: ET.Element, base_of: FindBase) -> Disk | None:
    for disk in domain.iterfind("devices/disk[@type='file'][@device='disk']"):
        driver, source, target = (disk.find(name) for name in ("driver", "source", "target"))
        if driver is None or source is None or target is None or driver.get("type") != "qcow2":
            continue
        path = source.get("file", "")
        base = base_of(path) if os.path.basename(path) == _ROOT_DISK else None
        if base is not None:
            return Disk(target.get("dev", ""), path, base)
    return None


def _has_agent(domain: ET.Element) -> bool:
    return any(
        target.get("name") == _AGENT_CHANNEL and target.get("state") == "connected"
        for target in domain.iterfind("devices/channel/target")
    )
