# SPDX-License-Identifier: Apache-2.0
"""Attributes for stat() and statfs(): folders, images, disks, the public cache."""

import errno
import os
import stat

import pyfuse3

from acstor_agent.core.cache import cache_actions
from acstor_agent.disks import disk
from acstor_agent.images.read import mirror

NAME_MAX = 255  # bytes of a name
LAST_S = 10.0  # how long the kernel caches attributes; a disk's block count grows meanwhile

_STAT_BLOCK_BYTES = 512


def of_image(
    inode: pyfuse3.InodeT, found: mirror.Mirror, touched_ns: int, gid: int
) -> pyfuse3.EntryAttributes:
    """Return the attributes of a mirror, in constant time.

    All blocks count as allocated: tar and cp take a file with fewer for a sparse one. The kernel
    checks owner, group and mode (``default_permissions``).
    """
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | 0o440)
    entry.st_uid, entry.st_gid = 0, gid
    entry.st_nlink = 1
    entry.st_size = found.size_bytes
    entry.st_blksize = found.map.geometry.chunk_bytes
    entry.st_blocks = -(-found.size_bytes // _STAT_BLOCK_BYTES)
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = touched_ns
    entry.attr_timeout = entry.entry_timeout = LAST_S
    return entry


def of_disk(inode: pyfuse3.InodeT, found: disk.Disk) -> pyfuse3.EntryAttributes:
    """Return the attributes of a disk's data file; names are not cached."""
    kept = os.fstat(found.fd)
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | stat.S_IMODE(kept.st_mode))
    entry.st_nlink = 1
    entry.st_uid, entry.st_gid = kept.st_uid, kept.st_gid
    entry.st_size = found.size_bytes
    entry.st_blksize = found.header.cut.chunk_bytes
    entry.st_blocks = kept.st_blocks
    entry.st_atime_ns, entry.st_mtime_ns = kept.st_atime_ns, kept.st_mtime_ns
    entry.st_ctime_ns = kept.st_ctime_ns
    entry.attr_timeout, entry.entry_timeout = LAST_S, 0
    return entry


def set_on_disk(
    found: disk.Disk, attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields
) -> None:
    """Set owner, mode or time stamps of a disk; a change of length raises EPERM."""
    if fields.update_size and attr.st_size != found.size_bytes:
        raise pyfuse3.FUSEError(errno.EPERM)
    if fields.update_uid or fields.update_gid:
        uid = attr.st_uid if fields.update_uid else -1
        gid = attr.st_gid if fields.update_gid else -1
        os.fchown(found.fd, uid, gid)
    if fields.update_mode:
        os.fchmod(found.fd, attr.st_mode & 0o777)
    if fields.update_atime or fields.update_mtime:
        kept = os.fstat(found.fd)
        atime_ns = attr.st_atime_ns if fields.update_atime else kept.st_atime_ns
        mtime_ns = attr.st_mtime_ns if fields.update_mtime else kept.st_mtime_ns
        os.utime(found.fd, ns=(atime_ns, mtime_ns))


def of_folder(inode: pyfuse3.InodeT, gid: int) -> pyfuse3.EntryAttributes:
    """Return the attributes of a folder, readable by group ``gid``."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o550)
    entry.st_uid, entry.st_gid = 0, gid
    entry.st_nlink = 2
    entry.attr_timeout = entry.entry_timeout = LAST_S
    return entry


def of_cache(statistics: cache_actions.Statistics) -> pyfuse3.StatvfsData:
    """Return the public cache's size and free space."""
    answer = pyfuse3.StatvfsData()
    answer.f_bsize = answer.f_frsize = _STAT_BLOCK_BYTES
    answer.f_blocks = statistics.limit_bytes // _STAT_BLOCK_BYTES
    left = max(0, statistics.limit_bytes - statistics.disk_bytes)
    answer.f_bfree = answer.f_bavail = left // _STAT_BLOCK_BYTES
    answer.f_namemax = NAME_MAX
    return answer
