# SPDX-License-Identifier: Apache-2.0
"""Mounts as the kernel lists them; other users choose some of the paths."""

import os

import pytest

from acstor_common.util import mount_table

LINE = b"36 25 0:32 / %b rw,nosuid shared:7 master:1 - fuse.acstor acstor rw\n"


@pytest.mark.parametrize(
    ("listed", "path"),
    [
        (b"/srv/mirror", b"/srv/mirror"),
        (rb"/srv/a\040b\134\012", b"/srv/a b\\\n"),
        ("/srv/\u00e4".encode(), "/srv/\u00e4".encode()),
        (b"/srv/\xff", b"/srv/\xff"),
        (b"/srv/a\rb\x0b\x1c\xc2\x85", b"/srv/a\rb\x0b\x1c\xc2\x85"),
    ],
)
def test_mount_with_any_path_is_listed(tmp_path, listed, path):
    file = tmp_path / "mountinfo"
    file.write_bytes(LINE % listed + LINE % b"/other")
    first, second = mount_table.list_mounts(file)
    assert first == mount_table.Mount("36", "0:32", os.fsdecode(path), "fuse.acstor")
    assert second.path == "/other"
