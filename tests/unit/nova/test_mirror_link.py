# SPDX-License-Identifier: Apache-2.0
"""Links in Nova's image cache, and backing files of disks."""

import os
import subprocess

import pytest

from acstor_common.disks import local_file
from acstor_nova import mirror_link

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


@pytest.mark.parametrize("before", ["nothing", "file", "dangling", "link"])
def test_link_replaces_any_existing_file(tmp_path, before):
    link, path = tmp_path / "abc", f"/m/images/{IMAGE}.raw"
    if before == "file":
        link.write_text("old")
    elif before != "nothing":
        link.symlink_to("/nowhere" if before == "dangling" else tmp_path)
    mirror_link.make_link(path, str(link))
    assert os.readlink(link) == path
    assert os.listdir(tmp_path) == ["abc"]
    assert mirror_link.image_of(str(link)) == IMAGE


@pytest.mark.parametrize(
    "target", ["/m/images/other.raw", f"/m/{IMAGE}.raw", f"/m/images/{IMAGE}", ""]
)
def test_other_links_and_files_are_no_mirrors(tmp_path, target):
    link = tmp_path / "abc"
    if target:
        link.symlink_to(target)
    else:
        link.write_text("a file")
    assert mirror_link.image_of(str(link)) is None
    assert mirror_link.image_of(str(tmp_path / "missing")) is None


def test_head_of_a_mirror_must_be_readable(tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    mirror_link.read_head(str(tmp_path / "small"))
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(OSError, match=name):
            mirror_link.read_head(str(tmp_path / name))


def test_backing_file_is_read_from_qemu_imgs_header(tmp_path):
    base, disk = tmp_path / "base", tmp_path / "disk"
    base.write_bytes(bytes(1 << 20))
    create = ["qemu-img", "create", "-q", "-f", "qcow2"]
    subprocess.run([*create, "-F", "raw", "-b", base, disk], check=True)
    assert local_file.backing_of(str(disk)) == str(base)
    subprocess.run([*create, disk, "1M"], check=True)
    assert local_file.backing_of(str(disk)) is None


@pytest.mark.parametrize("data", [b"", b"QFI\xfb", bytes(100), b"QFI\xfb" + b"\xff" * 100])
def test_malformed_disk_has_no_backing_file(tmp_path, data):
    (tmp_path / "disk").write_bytes(data)
    assert local_file.backing_of(str(tmp_path / "disk")) is None
    assert local_file.backing_of(str(tmp_path / "missing")) is None
