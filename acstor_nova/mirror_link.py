# SPDX-License-Identifier: Apache-2.0
"""Links in Nova's image cache to mirrors, in place of downloaded images.

``<instances>/_base/<sha1 of the image id>`` -> ``<mount point>/images/<image id>.raw``.
"""

import contextlib
import os
import pathlib
import tempfile

from acstor_common.model import ids

HEAD_BYTES = 256 * 1024  # bytes that Nova's format inspection reads
_CHECKPOINT_ENDING = ".qcow2"


def mirror_path(mount_point: str, image_id: str) -> str:
    """Return the path of an image's mirror."""
    return os.path.join(mount_point, "images", f"{image_id}.raw")


def make_link(path: str, link: str) -> None:
    """Make ``link`` lead to ``path``, atomically."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(link), prefix=".acstor-") as folder:
        new = os.path.join(folder, "link")
        os.symlink(path, new)
        os.replace(new, link)


def image_of(link: str) -> ids.ImageId | None:
    """Return the image that a link leads to; None if it is no link to a mirror."""
    try:
        target = pathlib.PurePath(os.readlink(link))
        if target.suffix == ".raw" and target.parent.name == "images":
            return ids.parse_image_id(target.stem)
    except (OSError, ValueError):
        pass
    return None


def checkpoint_path(mount_point: str, checkpoint_id: str) -> str:
    """Return the path of the disk made of a checkpoint."""
    return os.path.join(mount_point, "disks", f"{checkpoint_id}{_CHECKPOINT_ENDING}")


def checkpoint_of(path: str) -> str:
    """Return the checkpoint of a disk's path; empty if it is none."""
    is_disk = os.path.basename(os.path.dirname(path)) == "disks"
    return checkpoint_in(os.path.basename(path)) if is_disk else ""


def is_agent_file(base: str) -> bool:
    """Return whether a base file is the agent's: a mirror, or a checkpoint's disk."""
    return bool(image_of(base) or checkpoint_of(base))


def checkpoint_in(name: str) -> str:
    """Return the checkpoint of a disk's file name; empty if it is none.

    >>> checkpoint_in("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.qcow2")
    '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11'
    """
    stem, ending = os.path.splitext(name)
    with contextlib.suppress(ValueError):
        return ids.parse_image_id(stem) if ending == _CHECKPOINT_ENDING else ""
    return ""


def read_head(path: str) -> None:
    """Read the part that Nova inspects; raises OSError if it is empty."""
    with open(path, "rb", buffering=0) as image:
        done = 0
        while done < HEAD_BYTES and (part := image.read(HEAD_BYTES - done)):
            done += len(part)
    if not done:
        raise OSError(f"{path} is empty")
