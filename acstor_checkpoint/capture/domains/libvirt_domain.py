# SPDX-License-Identifier: Apache-2.0
"""One server's domain: snapshots of its disk, exported over NBD.

A snapshot is a libvirt backup job in pull mode with a libvirt checkpoint, which starts a dirty
bitmap in QEMU and in the overlay.  libvirt's checkpoint metadata is deleted at once and redefined
when needed, because libvirt neither migrates nor deletes a domain that has it.

The socket is in libvirt's folder of the domain, which AppArmor or SELinux restrict to this QEMU.
Without those another QEMU, which has the same user, could replace the socket: its reader compares
the server's process with libvirt's.

A later process can end everything that is begun here (:meth:`Domain.clean_up`).
"""

import contextlib
import logging
import os
import pathlib
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

import libvirt

from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_common import errors

LOG = logging.getLogger(__name__)
T = TypeVar("T")

PREFIX: Final = "acstor-"  # prefix of acstor's bitmaps
LIBVIRT_DIR: Final = "/var/lib/libvirt/qemu"
"""Folders of running domains; AppArmor or SELinux allow each QEMU its own."""
RUN_DIR: Final = "/run/libvirt/qemu"
"""PID files of running domains; QEMU cannot write there."""
_SHORT_NAME: Final = 20  # length of the domain's name in its folder's name
EXPORT_BITMAP: Final = "changed"  # name of an incremental backup's bitmap over NBD
_AGENT_TIMEOUT_S: Final = 10
_END_DEADLINE_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.02
_REDEFINE: Final = libvirt.VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE
_VALIDATE: Final = libvirt.VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE_VALIDATE
_METADATA_ONLY: Final = libvirt.VIR_DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY
_NOT_THERE: Final = {
    libvirt.VIR_ERR_NO_DOMAIN_CHECKPOINT,
    libvirt.VIR_ERR_NO_DOMAIN,
}


class BitmapLost(errors.Unusable):
    """The dirty bitmap is lost: read all that the overlay has."""


class Snapshot(NamedTuple):
    """A snapshot, valid until the block ends."""

    export: nbd_client.Export
    is_frozen: bool  # the guest agent froze the file systems


class SnapshotFiles(NamedTuple):
    """Files of a snapshot on the host."""

    socket: pathlib.Path  # of the NBD server
    scratch: pathlib.Path  # for data that the guest overwrites


class Domain:
    """One server's domain.  Its methods raise Unusable if libvirt fails."""

    def __init__(
        self,
        domain: Any,
        server: domain_xml.Server,
        run_dir: str = RUN_DIR,
        link: libvirt_link.LibvirtLink | None = None,
    ) -> None:
        self._domain, self._server, self._run_dir = domain, server, run_dir
        self._link = link or libvirt_link.LibvirtLink()
        self.name = f"server {server.instance}"

    def is_active(self) -> bool:
        """Return whether QEMU runs."""
        return bool(self._call(self._domain.isActive))

    def _call(self, work: Callable[[], T]) -> T:
        return self._link.call(self.name, work)

    @contextlib.contextmanager
    def export_snapshot(self, bitmap: str, since: str, folder: pathlib.Path) -> Iterator[Snapshot]:
        """Create a snapshot, and export it until the block ends.

        :param since: bitmap of changes to export; "": none
        :param folder: for the scratch file, and the socket if libvirt has no folder of the domain
        :raises BitmapLost: ``since`` is missing or inconsistent
        :raises errors.Unusable: libvirt or QEMU fails
        """
        files = self.export_files(bitmap, folder)
        socket, backup = str(files.socket), _backup_xml(self._server.disk.target, since, files)
        try:
            is_frozen = self._link.call(
                self.name,
                lambda: self._begin_frozen(bitmap, since, backup),
                lambda: self._ended(socket),  # the scratch file of a late job is not watched
            )
            try:
                yield Snapshot(self._export(socket), is_frozen)
            finally:
                self.end_backup(socket)
        finally:
            _remove(files)

    def export_files(self, bitmap: str, folder: pathlib.Path) -> SnapshotFiles:
        """Return socket and scratch file of :meth:`export_snapshot`."""
        return _files(self._own_folder() or folder, folder, bitmap)

    def _export(self, socket: str) -> nbd_client.Export:
        path = pathlib.Path(self._run_dir, f"{self._domain.name()}.pid")
        target = self._server.disk.target
        size_bytes, _, _ = self._call(lambda: self._domain.blockInfo(target))
        try:
            return nbd_client.Export(socket, target, int(path.read_text()), size_bytes)
        except (OSError, ValueError) as e:
            raise errors.Unusable(self.name, f"its process is unknown: {e}") from e

    def remove_bitmap(self, bitmap: str) -> bool:
        """Remove a bitmap; return False if QEMU does not run."""
        if not bitmap.startswith(PREFIX):
            raise ValueError(f"{bitmap} is not one of acstor's bitmaps")
        return self._call(lambda: self._forgotten(bitmap))

    def _forgotten(self, bitmap: str) -> bool:
        if not self._domain.isActive():
            return False
        try:
            self._redefine(bitmap, _REDEFINE)
            self._domain.checkpointLookupByName(bitmap).delete()
        except libvirt.libvirtError as e:
            self._drop_metadata()
            if not self._is_missing(bitmap, e):
                raise
        return True

    def pull_blocks(self, base: str, rate_bytes_s: int) -> bool:  # a rate of 0: no limit
        """Start pulling data above ``base`` into the disk; return False if another job runs."""
        return self._call(lambda: self._pulled(base, rate_bytes_s))

    def _pulled(self, base: str, rate_bytes_s: int) -> bool:
        target = self._server.disk.target
        in_bytes = libvirt.VIR_DOMAIN_BLOCK_REBASE_BANDWIDTH_BYTES
        if self._domain.blockJobInfo(target):
            return False
        self._domain.blockRebase(target, base, rate_bytes_s, in_bytes)
        return True

    def clean_up(
        self, bitmaps: Iterable[str], folder: pathlib.Path, *, may_be_frozen: bool
    ) -> None:
        """Clean up after a killed process, which may have created ``bitmaps``."""
        self._call(lambda: self._cleared(may_be_frozen))
        for bitmap in bitmaps:
            for sockets in filter(None, (self._own_folder(), folder)):
                _remove(_files(sockets, folder, bitmap))

    def _cleared(self, may_be_frozen: bool) -> None:
        self._drop_metadata()
        is_active = self._domain.isActive()
        if is_active and may_be_frozen:
            self._thaw()
        if is_active and (socket := self._socket()):
            self._ended(socket)

    def _begin_frozen(self, bitmap: str, since: str, backup: str) -> bool:
        with self._frozen() as is_frozen:
            self._begin(bitmap, since, backup)
        return is_frozen

    def _begin(self, bitmap: str, since: str, backup: str) -> None:
        try:
            if since:
                self._check(since)
            self._domain.backupBegin(backup, _checkpoint_xml(bitmap, self._server.disk.target))
        finally:
            self._drop_metadata()

    def _check(self, since: str) -> None:
        try:
            self._redefine(since, _REDEFINE | _VALIDATE)
        except libvirt.libvirtError as e:
            if e.get_error_code() == libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT:
                raise BitmapLost(self.name, str(e)) from e
            raise

    def _redefine(self, bitmap: str, flags: int) -> None:
        """Define the libvirt checkpoint of an existing bitmap."""
        self._domain.checkpointCreateXML(
            _checkpoint_xml(bitmap, self._server.disk.target, is_there=True), flags
        )

    def _drop_metadata(self) -> None:
        with contextlib.suppress(libvirt.libvirtError):  # the domain was deleted
            for checkpoint in self._domain.listAllCheckpoints():
                if checkpoint.getName().startswith(PREFIX):
                    checkpoint.delete(_METADATA_ONLY)

    def _is_missing(self, bitmap: str, e: libvirt.libvirtError) -> bool:
        if e.get_error_code() in _NOT_THERE:
            return True
        try:
            self._redefine(bitmap, _REDEFINE | _VALIDATE)
        except libvirt.libvirtError as why:
            return bool(why.get_error_code() == libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT)
        finally:
            self._drop_metadata()
        return False

    def _own_folder(self) -> pathlib.Path | None:
        name = f"domain-{self._domain.ID()}-{self._domain.name()[:_SHORT_NAME]}"
        folder = pathlib.Path(LIBVIRT_DIR, name)
        return folder if folder.is_dir() else None

    def end_backup(self, socket: str) -> None:
        """End acstor's backup job unless Nova's snapshot or migration ended it; thread-safe."""
        self._call(lambda: self._ended(socket))

    def _ended(self, socket: str) -> None:
        end_s = time.monotonic() + _END_DEADLINE_S
        with contextlib.suppress(libvirt.libvirtError):
            if self._socket() == socket:
                self._domain.abortJob()
        while self._socket() and time.monotonic() < end_s:
            time.sleep(_LOOK_EVERY_S)

    def _socket(self) -> str:
        """Return the socket of acstor's running backup job; "" without job."""
        try:
            server = ET.fromstring(self._domain.backupGetXMLDesc()).find("server")
        except libvirt.libvirtError:
            return ""
        socket = "" if server is None else server.get("socket", "")
        return socket if os.path.basename(socket).startswith(PREFIX) else ""

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[bool]:
        is_frozen = self._server.has_agent and self._freeze()
        try:
            yield is_frozen
        finally:
            if is_frozen:
                self._thaw()

    def _freeze(self) -> bool:
        try:
            self._domain.agentSetResponseTimeout(_AGENT_TIMEOUT_S)
            self._domain.fsFreeze()
        except libvirt.libvirtError as e:
            LOG.info("%s: its file systems were not frozen: %s", self.name, e)
            self._thaw()  # it may succeed after the timeout
            return False
        return True

    def _thaw(self) -> None:
        try:
            self._domain.fsThaw()
        except libvirt.libvirtError as e:
            LOG.warning("%s: cannot thaw its file systems: %s", self.name, e)


def _files(sockets: pathlib.Path, folder: pathlib.Path, bitmap: str) -> SnapshotFiles:
    stem = f"{PREFIX}{bitmap[-12:]}"  # socket paths have a short limit
    return SnapshotFiles(sockets / f"{stem}.sock", folder / f"{stem}.scratch")


def _remove(files: Iterable[pathlib.Path]) -> None:
    """Remove files; QEMU may have replaced them by folders, which stay."""
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            LOG.warning("%s cannot be removed: %s", path, e)


def _checkpoint_xml(bitmap: str, target: str, *, is_there: bool = False) -> str:
    root = ET.Element("domaincheckpoint")
    ET.SubElement(root, "name").text = bitmap
    if is_there:
        ET.SubElement(root, "creationTime").text = str(int(time.time()))
    disk = ET.SubElement(ET.SubElement(root, "disks"), "disk", name=target, checkpoint="bitmap")
    if is_there:
        disk.set("bitmap", bitmap)
    return ET.tostring(root, encoding="unicode")


def _backup_xml(target: str, since: str, files: SnapshotFiles) -> str:
    root = ET.Element("domainbackup", mode="pull")
    if since:
        ET.SubElement(root, "incremental").text = since
    ET.SubElement(root, "server", transport="unix", socket=str(files.socket))
    disks = ET.SubElement(root, "disks")
    disk = ET.SubElement(disks, "disk", name=target, backup="yes", type="file", exportname=target)
    if since:
        disk.set("exportbitmap", EXPORT_BITMAP)
    ET.SubElement(disk, "scratch", file=str(files.scratch))
    return ET.tostring(root, encoding="unicode")
