# SPDX-License-Identifier: Apache-2.0
"""The table of mounted file systems (proc_pid_mountinfo(5))."""

import os
from collections.abc import Iterator
from typing import NamedTuple


class Mount(NamedTuple):
    """A mount: its ID, device number, path and file system type."""

    mount_id: str
    device: str
    path: str
    fs_type: str


def list_mounts(file: str | os.PathLike[str] = "/proc/self/mountinfo") -> Iterator[Mount]:
    """Yield mounts in order. Other users' paths may have any characters, also a carriage return."""
    with open(file, encoding="latin-1", newline="\n") as lines:
        for line in lines:
            fields, _, tail = line.partition(" - ")
            mount_id, _, device, _, escaped, *_ = fields.split(" ")
            path = escaped.encode("latin-1").decode("unicode_escape").encode("latin-1")
            yield Mount(mount_id, device, os.fsdecode(path), tail.split(" ")[0])
