# SPDX-License-Identifier: Apache-2.0
"""A libvirt domain like Nova's, with an overlay on a base, and a writer to it.

The guest is only firmware.  Writes go through QEMU's monitor to the guest's device, so the test
knows their start and end.  For each write a test states: before a moment, after it, or either.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import libvirt
import libvirt_qemu

from acstor_common.model import ids
from tests.lab import runs
from tests.lab.openstack import machine

KIB, MIB = 1 << 10, 1 << 20
_XML = """\
<domain type='qemu'>
  <name>instance-{name}</name><uuid>{instance}</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>a server</nova:name>
      <nova:flavor name="small"><nova:extraSpecs>
        <nova:extraSpec name="acstor:checkpoint_interval_s">120</nova:extraSpec>
      </nova:extraSpecs></nova:flavor>
      <nova:owner><nova:project uuid="{project}">p</nova:project></nova:owner>
    </nova:instance>
  </metadata>
  <memory unit='MiB'>{memory_mib}</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='{cache}' discard='unmap'/>
      <source file='{path}'/><target dev='vda' bus='virtio'/>
    </disk>
    {devices}
  </devices>
</domain>
"""
_DEVICE = "/machine/peripheral/virtio-disk0/virtio-backend"
_UNDEFINE = libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA


@contextlib.contextmanager
def libvirt_host() -> Iterator[machine.Machine]:
    """Run a machine with libvirt for the block."""
    with runs.Run() as run:
        host = machine.Machine("libvirt", run.folder / "libvirt")
        try:
            host.boot()
            host.wait_booted()
            yield host
        finally:
            for part in reversed(host.daemons()):
                part.kill()


def uri(host: machine.Machine) -> str:
    """Return the URI of a machine's libvirt, for use from outside of it."""
    return f"qemu:///system?socket=/proc/{host.pid}/root/run/libvirt/libvirt-sock"


def run_dir(host: machine.Machine) -> str:
    """Return the folder of libvirt's pid files of a machine, as seen from outside."""
    return f"/proc/{host.pid}/root/run/libvirt/qemu"


class Domain:
    """A server's domain, defined and shut off.

    :param folder: for Nova's files: base, link to the mirror, overlay
    :param base: the image's bytes, or its path
    :param memory_mib: enough for firmware; a guest needs more
    :param devices: further devices, in libvirt's XML
    """

    def __init__(
        self,
        host: machine.Machine,
        folder: pathlib.Path,
        base: bytes | pathlib.Path,
        disk_bytes: int,
        cache: str = "none",
        *options: str,
        memory_mib: int = 32,
        devices: str = "",
    ) -> None:
        self.host, self.instance = host, ids.parse_image_id(str(uuid.uuid4()))
        self.project, self.image = uuid.uuid4().hex, ids.parse_image_id(str(uuid.uuid4()))
        self.mirrors = folder / "mirror" / "images"
        self.path = folder / "disk"
        self.mirrors.mkdir(parents=True)
        self._link = folder / "base"
        self._lay(base)
        self.make_disk(disk_bytes, *options)
        self._connection = libvirt.open(uri(host))
        xml = _XML.format(
            name=self.instance[:8],
            instance=self.instance,
            project=self.project,
            path=self.path,
            cache=cache,
            memory_mib=memory_mib,
            devices=devices,
        )
        self.domain: Any = self._connection.defineXML(xml)

    def rebuild(self, base: bytes, disk_bytes: int) -> None:
        """Make a new disk on another image, as a rebuild of a stopped server."""
        self.image = ids.parse_image_id(str(uuid.uuid4()))
        self._link.unlink()
        self._lay(base)
        self.make_disk(disk_bytes)

    def _lay(self, base: bytes | pathlib.Path) -> None:
        mirror = self.mirrors / f"{self.image}.raw"
        if isinstance(base, bytes):
            mirror.write_bytes(base)
        else:
            mirror.symlink_to(base)
        self.base_bytes = mirror.stat().st_size
        self._link.symlink_to(mirror)

    def make_disk(self, disk_bytes: int, *options: str) -> None:
        """Make a new overlay."""
        self.path.unlink(missing_ok=True)
        backing = ("-F", "raw", "-b", self._link)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", *backing, *options]
        runs.tool([*command, self.path, str(disk_bytes)])

    def close(self) -> None:
        """Destroy and undefine the domain."""
        for end in (self.domain.destroy, lambda: self.domain.undefineFlags(_UNDEFINE)):
            with contextlib.suppress(libvirt.libvirtError):
                end()
        self._connection.close()

    def write(self, at: int, length: int, byte: int, how: str = "-f") -> None:
        """Write as the guest would, then flush if ``how`` is "-f"."""
        self.io(f"write {how} -P {byte} {at} {length}")

    def io(self, command: str) -> str:
        """Run a qemu-io command on the device."""
        words = f'qemu-io -d {_DEVICE} "{command}"'
        hmp = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
        said: str = libvirt_qemu.qemuMonitorCommand(self.domain, words, hmp)
        assert "rror" not in said and "failed" not in said, said
        return said

    def pid(self) -> int:
        """Return QEMU's pid."""
        return int(pathlib.Path(run_dir(self.host), f"{self.domain.name()}.pid").read_text())

    def kill(self) -> None:
        """Kill QEMU; wait until libvirt has noticed."""
        os.kill(self.pid(), signal.SIGKILL)
        runs.wait_for(lambda: not self.domain.isActive(), 20.0, "the death of QEMU", str)

    def bitmaps(self) -> list[str]:
        """Return the names of the running disk's persistent bitmaps."""
        command = '{"execute": "query-named-block-nodes"}'
        said = json.loads(libvirt_qemu.qemuMonitorCommand(self.domain, command, 0))
        bitmaps = (bitmap for node in said["return"] for bitmap in node.get("dirty-bitmaps", []))
        return sorted(bitmap["name"] for bitmap in bitmaps if bitmap.get("persistent"))

    def is_busy(self) -> bool:
        """Return whether a libvirt job is running."""
        try:
            return bool(self.domain.jobStats()["type"])
        except libvirt.libvirtError:
            return self.is_there()  # it starts or ends

    def is_there(self) -> bool:
        """Return whether the domain exists."""
        return any(
            found.UUIDString() == self.instance for found in self._connection.listAllDomains()
        )


class Writer:
    """Context manager: sequential writes at random places during the block."""

    def __init__(self, domain: Domain, size_bytes: int, seed: int, unit: int = 4 * KIB) -> None:
        self._domain, self._size_bytes, self._unit = domain, size_bytes, unit
        self._rng, self._end = random.Random(seed), threading.Event()
        self.writes: list[tuple[int, int, int]] = []
        self.done = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        """Start; return after the first writes."""
        self._thread.start()
        runs.wait_for(lambda: self.done > 20, 30.0, "the first writes", str)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop writing."""
        self._end.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._end.is_set():
            length = self._unit * self._rng.choice((1, 1, 3, 16, 40))
            at = self._rng.randrange(0, self._size_bytes - length + 1, self._unit)
            self.writes.append((at, length, self._rng.randrange(256)))
            self._domain.write(*self.writes[-1])
            self.done += 1
            time.sleep(0.002)

    def first_match(self, start: bytes, found: bytes, low: int, high: int) -> int | None:
        """Return how many writes, ``low`` to ``high``, yield ``found``, or None.

        :param start: the disk before the first write
        """
        disk = bytearray(start)
        for number in range(high + 1):
            if number >= low and disk == found:
                return number
            if number < len(self.writes):
                at, length, byte = self.writes[number]
                disk[at : at + length] = bytes([byte]) * length
        return None
