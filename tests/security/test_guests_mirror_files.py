# SPDX-License-Identifier: Apache-2.0
"""A local user of the host who knows an image's id looks for it in the mirror."""

import errno
import grp
import os
import stat
import subprocess

import pytest

from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

NOBODY = 65534
GROUP = "daemon"
PYTHON = "/usr/bin/python3"  # ours may lie in a private folder, such as root's home
DATA = local.random_bytes(200_000)
READ = """
import os, sys
try:
    sys.stdout.buffer.write(open(sys.argv[1], "rb").read())
except OSError as e:
    sys.exit(e.errno)
"""


def read_as(path, *, groups=()) -> tuple[int, bytes]:
    """Read a file as an unprivileged user in ``groups``; return the errno and the bytes."""
    done = subprocess.run(
        [PYTHON, "-c", READ, path],
        capture_output=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=groups,
        cwd="/",
        timeout=20,
    )
    return done.returncode, done.stdout


@pytest.fixture
def open_path(tmp_path):
    """Give all users access down to the mirror; pytest's folders are private."""
    folders = [tmp_path, *tmp_path.parents]
    before = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders}
    ours = [folder for folder in folders if not before[folder] & stat.S_IXOTH]
    for folder in ours:
        folder.chmod(before[folder] | stat.S_IXOTH)
    yield
    for folder in ours:
        folder.chmod(before[folder])


def test_user_outside_the_group_can_neither_read_nor_list(images, start, open_path):
    agent = start(mirror_group=GROUP)
    path = agent.image_path(images.add(DATA))
    gid = grp.getgrnam(GROUP).gr_gid
    for folder in (agent.folder, agent.folder.parent):
        folder.chmod(0o755)
    assert path.read_bytes() == DATA  # as root
    assert read_as(path, groups=[gid]) == (0, DATA)
    assert read_as(path) == (errno.EACCES, b"")
    for what in (agent.mount_point, path.parent):
        status, _ = read_as(what / "x")
        assert status == errno.EACCES
        assert stat.S_IMODE(what.stat().st_mode) == 0o550
    assert (path.stat().st_uid, path.stat().st_gid) == (0, gid)
    assert stat.S_IMODE(path.stat().st_mode) == 0o440


def test_qemu_user_can_read_by_default(images, start, open_path):
    """As in libvirt's packages: libvirt-qemu on Debian, qemu elsewhere, both in group kvm."""
    try:
        gid = grp.getgrnam("kvm").gr_gid
    except KeyError:
        pytest.skip("there is no group kvm")
    agent = start()
    path = agent.image_path(images.add(DATA))
    for folder in (agent.folder, agent.folder.parent):
        folder.chmod(0o755)
    assert read_as(path, groups=[gid]) == (0, DATA)
    assert read_as(path) == (errno.EACCES, b"")
    with pytest.raises(OSError) as caught:
        os.chown(path, NOBODY, gid)
    assert caught.value.errno == errno.EROFS  # libvirt's dynamic ownership accepts this error
