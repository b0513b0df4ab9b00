# SPDX-License-Identifier: Apache-2.0
"""Base files of overlay volumes on a share, and the links that count their users.

The bytes of an image have one base file, ``acstor-<image id>-<hash>``: first a symbolic link to the
mirror on the host that opens it, later a copy.  A volume's link ``<volume name>.<image id>`` names
its base, and shows that the base is in use.
"""

import contextlib
import errno
import fnmatch
import os
import pathlib
import re

_UNFINISHED = ".new"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BASE = re.compile(rf"acstor-({_UUID})-[0-9a-f]{{16}}")
_HASH_BYTES = 8


def base_name(image_id: str, os_hash: bytes) -> str:
    """Return the name of the base file of an image's bytes.

    >>> base_name("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11", bytes(64))
    'acstor-7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11-0000000000000000'
    """
    return f"acstor-{image_id}-{os_hash[:_HASH_BYTES].hex()}"


def mirror_of(base: str, mount_point: pathlib.Path) -> pathlib.Path:
    """Return the mirror by the base's name alone: users of the share can change its links."""
    named = _BASE.fullmatch(base)
    if named is None:
        raise ValueError(f"{base} is not the name of a base file")
    return mount_point / "images" / f"{named[1]}.raw"


def copy_path(share: pathlib.Path, base: str) -> pathlib.Path:
    """Return the path of a copy that is not complete yet."""
    return share / f"{base}{_UNFINISHED}"


def add_user(share: pathlib.Path, volume_name: str, base: str, mirror: pathlib.Path) -> str:
    """Let a volume use a base file, first a link to ``mirror``; return the volume's link."""
    link = share / f"{volume_name}.{mirror.stem}"
    link.symlink_to(base)
    with contextlib.suppress(FileExistsError):
        (share / base).symlink_to(mirror)
    return link.name


def base_of(share: pathlib.Path, volume_name: str) -> str | None:
    """Return the base file that a volume uses, if any."""
    return next((base for _, base in _links(share, f"{volume_name}.*")), None)


def remove_user(share: pathlib.Path, volume_name: str) -> None:
    """Remove a volume's link, and the base file if no other volume uses it."""
    for link, base in _links(share, f"{volume_name}.*"):
        link.unlink()
        others = _links(share, f"*{link.suffix}")
        if all(other != base for _, other in others):
            for file in (share / base, copy_path(share, base)):
                file.unlink(missing_ok=True)


def _links(share: pathlib.Path, pattern: str) -> list[tuple[pathlib.Path, str]]:
    found = []
    for name in fnmatch.filter(os.listdir(share), pattern):  # glob may hide an error of the share
        try:
            target = os.readlink(share / name)
        except OSError as e:
            if e.errno not in (errno.EINVAL, errno.ENOENT):  # no link, or removed meanwhile
                raise
        else:
            found.append((share / name, target))
    return [(path, target) for path, target in found if _BASE.fullmatch(target)]


def list_uncopied(share: pathlib.Path) -> list[str]:
    """Return the base files that still link to mirrors."""
    found = (path.name for path in share.glob("acstor-*") if path.is_symlink())
    return sorted(name for name in found if _BASE.fullmatch(name))


def finish_copy(share: pathlib.Path, base: str, size_bytes: int) -> bool:
    """Put a complete copy in the place of the link; return whether a volume still uses it.

    :raises OSError: the copy has another length, or is not on the disk
    """
    copy = copy_path(share, base)
    if not (share / base).is_symlink():
        copy.unlink(missing_ok=True)
        return False
    descriptor = os.open(copy, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        found_bytes = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if found_bytes != size_bytes:
        raise OSError(f"{copy} has {found_bytes} bytes, and the image {size_bytes}")
    copy.rename(share / base)
    return True
