# SPDX-License-Identifier: Apache-2.0
"""The domains of this host's libvirt: moments of their disks are fixed and shown over NBD.

A moment is a backup job of libvirt's in pull mode, with a checkpoint that begins a new
bitmap at the same instant.  The bitmap lies in QEMU and in the overlay.  What libvirt notes of
the checkpoint is taken back at once, and told to it again when the next one needs it:
with such notes libvirt neither migrates a domain nor lets Nova delete it.

The socket is in libvirt's own folder of the domain, which its profile of AppArmor or its label
of SELinux allows to this QEMU alone.  All QEMUs are one user, so without those another QEMU can
replace the socket: who reads from it compares its process with that of libvirt.

Whatever is begun here can be ended by who comes later (:meth:`Domain.clear`), and
what is not called ``acstor-…`` is left alone.
"""

import contextlib
import functools
import logging
import os
import pathlib
import threading
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

from acstor_checkpoint.capture import domain_xml
from acstor_checkpoint.capture import nbd_client
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import call_deadline
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)
T = TypeVar("T")

PREFIX: Final = "acstor-"
"""How bitmaps of ours begin."""
LIBVIRT_DIR: Final = "/var/lib/libvirt/qemu"
"""Where libvirt has a folder for each domain that runs; of all these a domain's profile of AppArmor
or label of SELinux allows its QEMU its own one."""
RUN_DIR: Final = "/run/libvirt/qemu"
"""Where libvirt has a file with the process of each domain that runs; QEMU cannot write there."""
_SHORT_NAME: Final = 20
"""So much of a domain's name is in that of its folder."""
EXPORT_BITMAP: Final = "changed"
"""What the bitmap of an increment is called over NBD."""
_AGENT_TIMEOUT_S: Final = 10
_END_DEADLINE_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.02
_OPEN_S: Final = 30.0
CALL_S: Final = 90.0
"""Of all calls of a step; a guest agent, and the end of a job, have some time in it."""
_KEEPALIVE_S, _KEEPALIVE_COUNT = 5, 6
_REDEFINE: Final = libvirt.VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE
_VALIDATE: Final = libvirt.VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE_VALIDATE
_NOTES_ONLY: Final = libvirt.VIR_DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY
_NOT_THERE: Final = {
    libvirt.VIR_ERR_NO_DOMAIN_CHECKPOINT,
    libvirt.VIR_ERR_NO_DOMAIN,
}


class BitmapLost(errors.Unusable):
    """What was written since the last checkpoint is not known: all that the overlay has is read."""


class Snapshot(NamedTuple):
    """What a disk was at one moment, as long as the block lasts.

    :param export: where QEMU shows it over NBD
    :param is_frozen: the guest agent held the file systems still
    """

    export: nbd_client.Export
    is_frozen: bool


class Files(NamedTuple):
    """What a moment has on the host's disk.

    :param socket: where QEMU shows it
    :param scratch: where QEMU keeps what the guest overwrites
    """

    socket: pathlib.Path
    scratch: pathlib.Path


class _Link:
    """A connection to libvirt, of one server, and the deadline of its calls.

    A domain whose QEMU does not answer keeps a call waiting for ever, and libvirt answers few calls
    of a connection at a time.  So each server has its own, and no other call waits for it.
    """

    def __init__(self) -> None:
        self.connection: Any = None
        self._calls = call_deadline.CallDeadline("libvirt", CALL_S)

    def call(self, what: str, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """Return what calls to libvirt return.

        :param what: they are about, for errors
        :param undo: is called where they succeed too late
        :raises errors.Unusable: one fails, takes too long, or a former one still does
        """
        try:
            return self._calls.run_call(work, undo)
        except (libvirt.libvirtError, call_deadline.CallTimeout) as e:
            raise errors.Unusable(what, str(e)) from e


class Domains:
    """libvirt of this host; each connection is made when it is needed.

    ``base_of`` is what was given.

    :param uri: of libvirt
    :param base_of: says which image's mirror an overlay lies on
    :param run_dir: where libvirt says which process a domain is
    """

    def __init__(self, uri: str, base_of: domain_xml.FindBase, run_dir: str = RUN_DIR) -> None:
        self._uri, self.base_of, self._run_dir = uri, base_of, run_dir
        self._option = f"[acstor_checkpoint] libvirt_uri = {uri}"
        self._lock = threading.Lock()
        self._opening = call_deadline.CallDeadline("libvirt-open", _OPEN_S)
        self._links: dict[str, _Link] = {}

    def list_servers(self) -> list[domain_xml.Server]:
        """Return the servers whose disks are taken, running or not.

        :raises errors.Unusable: libvirt does not answer
        """
        link = self._link("")
        found = link.call(self._option, lambda: self._found(link))
        with self._lock:
            here = {server.instance for server in found}
            self._links = {key: one for key, one in self._links.items() if not key or key in here}
        return found

    def _found(self, link: "_Link") -> list[domain_xml.Server]:
        domains = self._connected(link).listAllDomains()
        return [server for domain in domains if (server := self._server(domain))]

    def _server(self, domain: Any) -> domain_xml.Server | None:
        """Return the server that a domain is; None if it is none, or cannot be read."""
        try:
            return domain_xml.parse(domain.XMLDesc(), self.base_of)
        except libvirt.libvirtError:  # it has just gone
            return None
        except Exception as e:
            LOG.warning("domain %s is skipped: %s", domain.UUIDString(), e, exc_info=True)
            supervision.count_failure("libvirt")
            return None

    def find_domain(self, server: domain_xml.Server) -> "Domain":
        """Return the domain of a server.

        :raises errors.Unusable: it is gone, or libvirt does not answer
        """
        link, name = self._link(server.instance), f"server {server.instance}"
        look_up = functools.partial(self._looked_up, link, server.instance)
        return Domain(link.call(name, look_up), server, self._run_dir, link)

    def _looked_up(self, link: "_Link", instance: ids.ImageId) -> Any:
        return self._connected(link).lookupByUUIDString(instance)

    def _link(self, key: str) -> "_Link":
        """Return the link of a server, or of this host where the key is empty."""
        with self._lock:
            return self._links.setdefault(key, _Link())

    def _connected(self, link: "_Link") -> Any:
        if link.connection is None or not link.connection.isAlive():
            _run_events()
            try:
                link.connection = self._opening.run_call(self._opened)
            except call_deadline.CallTimeout as e:
                raise errors.Unusable(self._option, str(e), "Does libvirt run here?") from e
        return link.connection

    def _opened(self) -> Any:
        connection = libvirt.open(self._uri)
        # A libvirtd that hangs is given up, and whoever waits for it gets an error.
        connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
        return connection


class Domain:
    """One server's domain."""

    def __init__(
        self,
        domain: Any,
        server: domain_xml.Server,
        run_dir: str = RUN_DIR,
        link: _Link | None = None,
    ) -> None:
        self._domain, self._server, self._run_dir = domain, server, run_dir
        self._link = link or _Link()
        self.name = f"server {server.instance}"

    def is_active(self) -> bool:
        """Say whether QEMU runs.

        :raises errors.Unusable: the domain is gone
        """
        return bool(self._call(self._domain.isActive))

    def _call(self, work: Callable[[], T]) -> T:
        return self._link.call(self.name, work)

    @contextlib.contextmanager
    def export_snapshot(self, bitmap: str, since: str, folder: pathlib.Path) -> Iterator[Snapshot]:
        """Fix what the disk is now, and show it until the block ends.

        :param bitmap: begins at this moment: a new name
        :param since: the bitmap that says what was written since another moment; "" for none
        :param folder: for the scratch file, which libvirt allows QEMU by its name; and for the
            socket, if libvirt has no folder of the domain
        :raises BitmapLost: ``since`` is not there, or QEMU ended without having written it down
        :raises errors.Unusable: libvirt or QEMU cannot do it, now or ever
        """
        files = self.export_files(bitmap, folder)
        socket, backup = str(files.socket), _backup_xml(self._server.disk.target, since, files)
        try:
            is_frozen = self._link.call(
                self.name,
                lambda: self._begin_frozen(bitmap, since, backup),
                lambda: self._ended(socket),  # nobody watches the scratch file of a job begun late
            )
            try:
                yield Snapshot(self._export(socket), is_frozen)
            finally:
                self.end_backup(socket)
        finally:
            _remove(files)

    def export_files(self, bitmap: str, folder: pathlib.Path) -> Files:
        """Return socket and scratch file of :meth:`export_snapshot`."""
        return _files(self._own_folder() or folder, folder, bitmap)

    def _export(self, socket: str) -> nbd_client.Export:
        """Return what libvirt says of the disk and the process that show it."""
        path = pathlib.Path(self._run_dir, f"{self._domain.name()}.pid")
        target = self._server.disk.target
        size_bytes, _, _ = self._call(lambda: self._domain.blockInfo(target))
        try:
            return nbd_client.Export(socket, target, int(path.read_text()), size_bytes)
        except (OSError, ValueError) as e:
            raise errors.Unusable(self.name, f"its process is not known: {e}") from e

    def remove_bitmap(self, bitmap: str) -> bool:
        """Remove a bitmap, if QEMU runs; say whether it is gone.

        :raises errors.Unusable: it cannot be removed
        """
        if not bitmap.startswith(PREFIX):
            raise ValueError(f"{bitmap} is not one of acstor's bitmaps")
        return self._call(lambda: self._forgotten(bitmap))

    def _forgotten(self, bitmap: str) -> bool:
        if not self._domain.isActive():
            return False
        try:
            self._tell(bitmap, _REDEFINE)
            self._domain.checkpointLookupByName(bitmap).delete()
        except libvirt.libvirtError as e:
            self._drop_notes()
            if not self._is_missing(bitmap, e):
                raise
        return True

    def pull_blocks(self, base: str, rate_bytes_s: int) -> bool:
        """Have QEMU copy into the disk what lies between it and ``base``; it goes on by itself.

        :param rate_bytes_s: 0: as fast as it goes
        :return: whether that was begun; False: a job of this disk is on already
        :raises errors.Unusable: libvirt or QEMU cannot do it, now or ever
        """
        return self._call(lambda: self._pulled(base, rate_bytes_s))

    def _pulled(self, base: str, rate_bytes_s: int) -> bool:
        target = self._server.disk.target
        in_bytes = libvirt.VIR_DOMAIN_BLOCK_REBASE_BANDWIDTH_BYTES
        if self._domain.blockJobInfo(target):
            return False
        self._domain.blockRebase(target, base, rate_bytes_s, in_bytes)
        return True

    def clear(self, bitmaps: Iterable[str], folder: pathlib.Path, *, was_frozen: bool) -> None:
        """End what somebody began who was killed.

        :param bitmaps: that may have been begun
        :param folder: as of :meth:`export_snapshot`
        :param was_frozen: file systems may still be held
        :raises errors.Unusable: some of it cannot be ended
        """
        self._call(lambda: self._cleared(was_frozen))
        for bitmap in bitmaps:
            for sockets in filter(None, (self._own_folder(), folder)):
                _remove(_files(sockets, folder, bitmap))

    def _cleared(self, was_frozen: bool) -> None:
        self._drop_notes()
        is_active = self._domain.isActive()
        if is_active and was_frozen:
            self._thaw()
        if is_active and (socket := self._socket()):
            self._ended(socket)

    def _begin_frozen(self, bitmap: str, since: str, backup: str) -> bool:
        """Begin a job; return whether file systems were held meanwhile."""
        with self._frozen() as is_frozen:
            self._begin(bitmap, since, backup)
        return is_frozen

    def _begin(self, bitmap: str, since: str, backup: str) -> None:
        try:
            if since:
                self._check(since)
            self._domain.backupBegin(backup, _checkpoint_xml(bitmap, self._server.disk.target))
        finally:
            self._drop_notes()

    def _check(self, since: str) -> None:
        try:
            self._tell(since, _REDEFINE | _VALIDATE)
        except libvirt.libvirtError as e:
            if e.get_error_code() == libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT:
                raise BitmapLost(self.name, str(e)) from e
            raise

    def _tell(self, bitmap: str, flags: int) -> None:
        """Tell libvirt of a checkpoint whose bitmap is there."""
        self._domain.checkpointCreateXML(
            _checkpoint_xml(bitmap, self._server.disk.target, is_there=True), flags
        )

    def _drop_notes(self) -> None:
        with contextlib.suppress(libvirt.libvirtError):  # the domain has gone, and they with it
            for checkpoint in self._domain.listAllCheckpoints():
                if checkpoint.getName().startswith(PREFIX):
                    checkpoint.delete(_NOTES_ONLY)

    def _is_missing(self, bitmap: str, e: libvirt.libvirtError) -> bool:
        """Say whether a bitmap could not be removed because there is none."""
        if e.get_error_code() in _NOT_THERE:
            return True
        try:
            self._tell(bitmap, _REDEFINE | _VALIDATE)
        except libvirt.libvirtError as why:
            return bool(why.get_error_code() == libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT)
        finally:
            self._drop_notes()
        return False

    def _own_folder(self) -> pathlib.Path | None:
        """Return libvirt's folder of this domain; None if it does not run, or has none there."""
        name = f"domain-{self._domain.ID()}-{self._domain.name()[:_SHORT_NAME]}"
        folder = pathlib.Path(LIBVIRT_DIR, name)
        return folder if folder.is_dir() else None

    def end_backup(self, socket: str) -> None:
        """End our backup job, if it has not ended: Nova's snapshots and moves end it, too.

        May be called by any thread.

        :raises errors.Unusable: libvirt does not answer
        """
        self._call(lambda: self._ended(socket))

    def _ended(self, socket: str) -> None:
        end_s = time.monotonic() + _END_DEADLINE_S
        with contextlib.suppress(libvirt.libvirtError):
            if self._socket() == socket:
                self._domain.abortJob()
        while self._socket() and time.monotonic() < end_s:
            time.sleep(_LOOK_EVERY_S)

    def _socket(self) -> str:
        """Return the socket of the backup job that is on; "" if none is, or it is not ours."""
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
            self._thaw()  # it may have been done after all, too late
            return False
        return True

    def _thaw(self) -> None:
        try:
            self._domain.fsThaw()
        except libvirt.libvirtError as e:
            LOG.warning("%s: cannot thaw its file systems: %s", self.name, e)


def _files(sockets: pathlib.Path, folder: pathlib.Path, bitmap: str) -> Files:
    """Return socket and scratch file of the moment at which a bitmap begins."""
    stem = f"{PREFIX}{bitmap[-12:]}"  # addresses of sockets are short
    return Files(sockets / f"{stem}.sock", folder / f"{stem}.scratch")


def _remove(files: Iterable[pathlib.Path]) -> None:
    """Remove files; QEMU can write to their folders, so they may be folders now, which stay."""
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            LOG.warning("%s stays: %s", path, e)


def _checkpoint_xml(bitmap: str, target: str, *, is_there: bool = False) -> str:
    root = ET.Element("domaincheckpoint")
    ET.SubElement(root, "name").text = bitmap
    if is_there:
        ET.SubElement(root, "creationTime").text = str(int(time.time()))
    disk = ET.SubElement(ET.SubElement(root, "disks"), "disk", name=target, checkpoint="bitmap")
    if is_there:
        disk.set("bitmap", bitmap)
    return ET.tostring(root, encoding="unicode")


def _backup_xml(target: str, since: str, files: Files) -> str:
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


def _run_events() -> None:
    """Run libvirt's loop of events, which keeps connections alive, until the process ends."""
    with _events_lock:
        if _events:
            return
        libvirt.registerErrorHandler(lambda *_: None, None)  # each error is raised as well
        libvirt.virEventRegisterDefaultImpl()
        _events.append(supervision.start("libvirt", _turn))


def _turn() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


_events: list[threading.Thread] = []
_events_lock = threading.Lock()
