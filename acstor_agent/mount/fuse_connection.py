# SPDX-License-Identifier: Apache-2.0
"""A FUSE connection that outlives the process which serves it.

The connection lives while any process holds its /dev/fuse descriptor. The supervisor opens and
mounts it; each worker serves it after :func:`adopt`. libfuse serves only a session whose FUSE_INIT
it answered, and the kernel sends that once. So libfuse first gets a socket pair, on which the
recorded request is replayed; then the descriptor replaces the socket. The first answer is recorded
and sent to the kernel; later ones must agree with it (core/mount/fuse_init.py). FUSE_NOTIFY_RESEND
(Linux 6.9) makes the kernel queue unanswered requests again.
"""

import contextlib
import ctypes
import errno
import logging
import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyfuse3
import trio

from acstor_agent.core.mount import fuse_init
from acstor_agent.core.mount import inodes
from acstor_agent.mount import mount_record
from acstor_common import errors
from acstor_common.util import mount_table

LOG = logging.getLogger(__name__)

FS_TYPE = "fuse.acstor"
INIT_BYTES_LIMIT = 64 * 1024
INIT_WAIT_S = 10.0
PROBE_TIMEOUT_S = 10.0  # how long the agent at a mount point may take to answer
MAX_BACKGROUND = 32_768
"""Background requests of the kernel: O_DIRECT I/O and readahead of all guests, in order of
arrival. It must never be full, or local reads would wait behind remote ones;
images/read/read_admission.py admits fewer."""
NOTIFY_RESEND = 7
RELAYED_BYTES = 128 * 1024
"""Most data of a message on a socket (process/fuse_relay.py), limited by its buffer."""
MAX_REQUESTS = MAX_BACKGROUND + 4096
"""Concurrent requests. Beside background requests there is one for each thread that looks up,
opens, or reads through the page cache."""

_OUT_HEADER = struct.Struct("<IiQ")  # length, error, unique
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_FORCE, _MNT_DETACH = 1, 2
_PR_SET_PDEATHSIG = 1
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED)

_FOREIGN_MOUNT = "the mount that was made by another version"
_REMEDY = "Guests wait. Return to that version; this one starts once no guest uses that mount"

_libc = ctypes.CDLL(None, use_errno=True)


class MountConnection(NamedTuple):
    """A mount, by its descriptor."""

    fuse_fd: int
    record: mount_record.MountRecord

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.fuse_fd)
        self.record.close()


class UnsupportedMountError(errors.Unusable):
    """This version cannot serve the mount that was kept; the catcher closes ``fuse_fd``."""

    def __init__(self, why: str, fuse_fd: int) -> None:
        super().__init__(_FOREIGN_MOUNT, why, _REMEDY)
        self.fuse_fd = fuse_fd


def from_descriptors(descriptors: Sequence[int]) -> MountConnection | None:
    """Return the connection of these kept descriptors, in any order; None if there is none.

    :raises UnsupportedMountError: the record is missing or of another version; others are closed
    """
    kinds = {mount_record.is_record(fd): fd for fd in descriptors}
    try:
        if kinds.keys() == {False, True} and len(descriptors) == 2:
            return MountConnection(kinds[False], mount_record.MountRecord(kinds[True]))
        why = "it was kept without its record"
    except ValueError as e:
        why = f"its record is invalid here: {e}"
    for fd in descriptors:
        if fd != kinds.get(False):
            os.close(fd)
    if False not in kinds:
        return None
    raise UnsupportedMountError(why, kinds[False])


def mounted_type(mount_point: str) -> str | None:
    """Return the file system type mounted on ``mount_point``, None if there is none."""
    return _mounted(mount_point)[0]


def device_number(mount_point: str) -> str:
    """Return the device number of the mount as in mountinfo; empty if none."""
    return _mounted(mount_point)[1]


def _mounted(mount_point: str) -> tuple[str | None, str]:
    wanted = resolve_path(mount_point)
    found = [mount for mount in mount_table.list_mounts() if mount.path == wanted]
    return (found[-1].fs_type, found[-1].device) if found else (None, "")


def resolve_path(mount_point: str) -> str:
    """Return the path without links; os.path.realpath would block on a mount without a worker."""
    parent, name = os.path.split(os.path.abspath(mount_point))
    path = os.path.join(os.path.realpath(parent), name)
    try:
        os.readlink(path)
    except OSError:  # it is no link
        return path
    return os.path.realpath(path)


def mount(mount_point: str) -> MountConnection:
    """Mount on a folder; raise Unusable if it or /dev/fuse is missing, or it is a mount."""
    _free_mount_point(mount_point)
    try:
        fuse_fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        raise errors.Unusable(
            "/dev/fuse", str(e.strerror), "Load the fuse module and run the agent as root"
        ) from e
    options = f"fd={fuse_fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    try:
        _check(
            _libc.mount(
                b"acstor",
                os.fsencode(mount_point),
                FS_TYPE.encode(),
                ctypes.c_ulong(_MS_NOSUID | _MS_NODEV),
                options.encode(),
            )
        )
        return MountConnection(fuse_fd, mount_record.MountRecord.begin_record(_read_init(fuse_fd)))
    except OSError as e:
        os.close(fuse_fd)
        raise errors.Unusable(mount_point, f"cannot mount: {e.strerror}") from e


def _free_mount_point(mount_point: str) -> None:
    present = mounted_type(mount_point)
    if present == FS_TYPE and _probe_error(mount_point) in _DEAD:
        LOG.warning("%s: clearing the mount that a dead agent left behind", mount_point)
        unmount(mount_point)
        return
    if present is not None:
        raise errors.Unusable(
            mount_point,
            f"a file system of type {present} is mounted there already",
            "Stop the agent that serves it, or unmount it",
        )
    try:
        is_folder = stat.S_ISDIR(os.stat(mount_point).st_mode)
    except OSError as e:
        raise errors.Unusable(mount_point, str(e.strerror), "Create the folder") from e
    if not is_folder:
        raise errors.Unusable(mount_point, "is not a folder")


def _probe_error(mount_point: str) -> int:
    """Return statvfs's error or 0, from a child process; raise Unusable if the mount is silent."""
    pid = os.fork()
    if not pid:
        code = 0
        try:
            os.statvfs(mount_point)
        except OSError as e:
            code = e.errno or errno.EIO
        finally:
            os._exit(code)
    with os.fdopen(os.pidfd_open(pid)) as child:
        if select.select([child], [], [], PROBE_TIMEOUT_S)[0]:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    raise errors.Unusable(
        mount_point,
        "the mount there does not answer, and a process other than this agent holds it",
        "Guests wait. Start its holder (acstor-agent-holder, or the unit), or unmount it",
    )


def _read_init(fuse_fd: int) -> bytes:
    readable, _, _ = select.select([fuse_fd], [], [], INIT_WAIT_S)
    if not readable:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    request = os.read(fuse_fd, INIT_BYTES_LIMIT)
    if not fuse_init.is_request(request):
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
    return request


def is_connected(fuse_fd: int) -> bool:
    """Return whether a descriptor is still connected, without accessing the mount."""
    poll = select.poll()
    poll.register(fuse_fd, 0)  # errors are always reported
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def check_visible(mount_point: str) -> None:
    """Raise Unusable if a mount in use is not visible in this mount namespace."""
    if mounted_type(mount_point) != FS_TYPE:
        raise errors.Unusable(
            mount_point,
            "the mount that was kept is in use, but not visible here",
            "Guests wait. Set mount_point as it was, or give the container the folder above it "
            "with rshared propagation",
        )


def unmount_unused(mount_point: str, fuse_fd: int) -> bool:
    """Unmount if unused; return whether the connection ended, in other namespaces, too."""
    if mounted_type(mount_point) == FS_TYPE:
        _libc.umount2(os.fsencode(mount_point), 0)
    return not is_connected(fuse_fd)


def unmount(mount_point: str, is_forced: bool = False) -> None:
    """Unmount; if it is in use, detach it, and its users get errors.

    :param is_forced: abort its connection, which a process that cannot exit may hold
    """
    if _libc.umount2(os.fsencode(mount_point), _MNT_FORCE if is_forced else 0) == 0:
        return
    if ctypes.get_errno() == errno.EBUSY:
        LOG.warning("%s: still in use; unmounting it, its users will get I/O errors", mount_point)
    if _libc.umount2(os.fsencode(mount_point), _MNT_DETACH) != 0:
        LOG.warning("%s: cannot unmount: %s", mount_point, os.strerror(ctypes.get_errno()))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent exits."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


async def adopt(connection: MountConnection, operations: pyfuse3.Operations) -> None:
    """Attach pyfuse3 to a mounted connection; then run pyfuse3.main().

    :raises errors.Unusable: another version gave the kernel answers that this one cannot serve
    """
    fuse_fd, record = connection
    layout = record.mounted.inode_layout
    if layout != inodes.LAYOUT:
        raise errors.Unusable(
            _FOREIGN_MOUNT,
            f"its open files have inodes of layout {layout}, not {inodes.LAYOUT}",
            _REMEDY,
        )
    init_answer = record.init_answer()
    offer = record.mounted.init_request
    session_fd, reply = await _play_init(
        fuse_init.offer_again(offer, init_answer) if init_answer else offer, operations
    )
    if init_answer is None:
        if fuse_init.parse(reply) is None:
            raise errors.Unusable("libfuse", "it rejects this kernel (FUSE_INIT)")
        init_answer = fuse_init.with_background(reply, MAX_BACKGROUND)
        init_answer = fuse_init.with_parallel_lookups(init_answer, offer)
        if stat.S_ISSOCK(os.fstat(fuse_fd).st_mode):
            init_answer = fuse_init.with_longest(init_answer, RELAYED_BYTES)
        record.record_init_answer(init_answer)
    elif found := fuse_init.differences(init_answer, reply):
        why = f"this libfuse would answer FUSE_INIT differently: {', '.join(found)}"
        raise errors.Unusable(_FOREIGN_MOUNT, why, _REMEDY)
    _answer_init(fuse_fd, init_answer)
    os.dup2(fuse_fd, session_fd, inheritable=False)
    _resend(fuse_fd)


async def _play_init(offer: bytes, operations: pyfuse3.Operations) -> tuple[int, bytes]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reply = b""
    with ours:
        session_fd = theirs.detach()
        pyfuse3.init(operations, f"/dev/fd/{session_fd}", set(pyfuse3.default_options))
        ours.send(offer)
        async with trio.open_nursery() as nursery:
            stopped = trio.Event()
            nursery.start_soon(_run_main, stopped)
            with trio.move_on_after(INIT_WAIT_S):
                reply = await _receive(ours)
            # libfuse's loop must have left epoll before the real descriptor takes this number.
            while not stopped.is_set():
                trio.lowlevel.notify_closing(session_fd)
                await trio.sleep(0.001)
    return session_fd, reply


async def _run_main(stopped: trio.Event) -> None:
    try:
        await pyfuse3.main()
    except* RuntimeError as e:  # it needs an unoffered feature; its answer shows that
        LOG.warning("libfuse: %s", e.exceptions[0])
    stopped.set()


async def _receive(end: socket.socket) -> bytes:
    await trio.lowlevel.wait_readable(end)
    return end.recv(INIT_BYTES_LIMIT)


def _answer_init(fuse_fd: int, answer: bytes) -> None:
    """Send the answer to the kernel, which accepts it once."""
    try:
        os.write(fuse_fd, answer)
    except OSError as e:
        if e.errno != errno.ENOENT:  # a former worker answered it
            raise


def _resend(fuse_fd: int) -> None:
    """Ask the kernel to resend requests that a former worker did not answer."""
    with contextlib.suppress(OSError):  # the mount has ended
        os.write(fuse_fd, _OUT_HEADER.pack(_OUT_HEADER.size, NOTIFY_RESEND, 0))
