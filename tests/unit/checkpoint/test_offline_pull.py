# SPDX-License-Identifier: Apache-2.0
"""Tools that root runs on a powered-off disk follow no hostile header or link; real tools."""

import os
import pathlib
import stat
import struct
import subprocess
import threading
import time

import pytest

from acstor_checkpoint.capture import offline_export
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.restore import offline_pull
from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.model import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
FEATURES_AT = 72
EXTERNAL_DATA, UNKNOWN = 4, 1 << 40


def create(path, backing, fmt, *options):
    argv = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", fmt, "-b", backing, *options]
    subprocess.run([*argv, path, "1M"], check=True)


@pytest.fixture
def disk(tmp_path):
    base, shown, path = (tmp_path / name for name in ("base", "shown", "disk"))
    base.write_bytes(b"b" * (1 << 20))
    create(shown, base, "raw")
    command = ["qemu-io", "-f", "qcow2", "-c", "write -P 7 64k 64k", shown]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    create(path, shown, "qcow2")
    return offline_pull.OfflineDisk(str(path), str(base), str(shown), shown)


def ask(path, features):
    """Set incompatible features in the header."""
    with open(path, "r+b") as file:
        file.seek(FEATURES_AT)
        file.write(struct.pack(">Q", features))


def lead_elsewhere(path, how):
    if how == "backing":
        other = pathlib.Path(path).with_name("secret")
        other.write_bytes(b"s" * (1 << 20))
        create(path, other, "raw")
    else:
        ask(path, how)


LEADS = [EXTERNAL_DATA, UNKNOWN, "backing"]


@pytest.fixture
def never(monkeypatch):
    """Return a function that makes any run of a tool fail the test."""

    def fail(argv, *_args, **_kwargs):
        raise AssertionError(argv)

    def forbid():
        monkeypatch.setattr(subprocess, "Popen", fail)
        monkeypatch.setattr(subprocess, "run", fail)

    return forbid


def test_offline_pull_rebases_a_disk_to_the_mirror_with_its_checkpoint(disk):
    pathlib.Path(f"{disk.path}{offline_pull.COPY_ENDING}").write_text("left of one that was killed")
    offline_pull.OfflinePull(threading.Event())(disk, lambda: True)
    assert local_file.backing_of(disk.path) == disk.base
    pathlib.Path(disk.current_base).unlink()
    command = ["qemu-io", "-f", "qcow2", "-c", "read -P 7 64k 64k", disk.path]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "verification failed" not in said
    assert sorted(os.listdir(os.path.dirname(disk.path))) == ["base", "disk"]


@pytest.mark.parametrize("how", LEADS)
def test_disk_with_a_hostile_header_is_not_pulled_into(disk, how, never):
    lead_elsewhere(disk.path, how)
    never()
    with pytest.raises(errors.Unusable):
        offline_pull.OfflinePull(threading.Event())(disk, lambda: True)


@pytest.mark.parametrize("how", LEADS)
def test_copy_with_a_hostile_header_is_not_opened(disk, how, monkeypatch):
    run = []

    def tool(self, argv, fd, path, *more, done=offline_pull.OfflinePull._run):
        run.append(argv[0])
        done(self, argv, fd, path, *more)
        lead_elsewhere(path, how)

    monkeypatch.setattr(offline_pull.OfflinePull, "_run", tool)
    with pytest.raises(errors.Unusable):
        offline_pull.OfflinePull(threading.Event())(disk, lambda: True)
    assert run == ["cp"]
    assert not os.path.exists(f"{disk.path}{offline_pull.COPY_ENDING}")


@pytest.mark.parametrize("moment", ["cp", "qemu-img", "sync"])
def test_link_in_place_of_the_copy_is_not_followed(disk, moment, monkeypatch):
    """Nova's user can create one at any moment."""
    copy = pathlib.Path(f"{disk.path}{offline_pull.COPY_ENDING}")
    victim = pathlib.Path(disk.path).with_name("victim")
    victim.write_bytes(b"v" * 4096)
    before = pathlib.Path(disk.path).read_bytes()

    def tool(self, argv, *more, done=offline_pull.OfflinePull._run):
        if argv[0] == moment:
            copy.unlink()
            copy.symlink_to(victim)
        done(self, argv, *more)

    monkeypatch.setattr(offline_pull.OfflinePull, "_run", tool)
    with pytest.raises(errors.Unusable, match="it is in use"):
        offline_pull.OfflinePull(threading.Event())(disk, lambda: True)
    assert victim.read_bytes() == b"v" * 4096
    assert pathlib.Path(disk.path).read_bytes() == before
    assert not copy.is_symlink()


def test_link_in_place_of_the_disk_is_not_followed(disk, never):
    path = pathlib.Path(disk.path)
    secret = path.rename(path.with_name("secret"))
    path.symlink_to(secret)
    never()
    with pytest.raises(errors.Unusable):
        offline_pull.OfflinePull(threading.Event())(disk, lambda: True)
    with pytest.raises(errors.Unusable):
        offline_pull.rebase(disk.path, disk.base, disk.current_base)


def test_copy_is_private_until_complete_and_then_has_the_disks_mode(disk, monkeypatch):
    modes = []

    def tool(self, argv, fd, path, *more, done=offline_pull.OfflinePull._run):
        modes.append(stat.S_IMODE(os.lstat(path).st_mode))
        done(self, argv, fd, path, *more)

    monkeypatch.setattr(offline_pull.OfflinePull, "_run", tool)
    os.chmod(disk.path, 0o664)
    before = os.stat(disk.path)
    offline_pull.OfflinePull(threading.Event())(disk, lambda: True)
    after = os.stat(disk.path)
    assert modes[:2] == [0o600, 0o600]
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)


@pytest.mark.parametrize("how", LEADS)
def test_disk_with_a_hostile_header_is_not_rebased(disk, how, never):
    create(disk.path, disk.base, "raw")
    offline_pull.rebase(disk.path, disk.current_base, disk.base)
    assert local_file.backing_of(disk.path) == disk.current_base
    create(disk.path, disk.base, "raw")
    lead_elsewhere(disk.path, how)
    never()
    with pytest.raises(errors.Unusable):
        offline_pull.rebase(disk.path, disk.current_base, disk.base)


def base_of(path):
    """Return the image whose mirror is the backing file."""
    return IMAGE if str(local_file.backing_of(path)).endswith("/base") else None


def check_not_exported(disk, folder):
    of = domain_xml.RootDisk("vda", disk.path, IMAGE)
    with pytest.raises(errors.Unusable):
        offline_export.list_bitmaps(of, base_of)
    with pytest.raises(errors.Unusable):
        with offline_export.export_disk(of, base_of, "", folder, str(folder)):
            pass


@pytest.mark.parametrize("how", LEADS)
def test_disk_with_a_hostile_header_is_not_exported(disk, how, never, tmp_path):
    create(disk.path, disk.base, "raw")
    lead_elsewhere(disk.path, how)
    never()
    check_not_exported(disk, tmp_path)


def test_mirror_is_exported_as_raw_whatever_its_content(disk, tmp_path):
    """A user's image may look like a qcow2 file with a hostile backing file."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * (1 << 20))
    create(disk.base, secret, "raw")
    create(disk.path, disk.base, "qcow2")
    of = domain_xml.RootDisk("vda", disk.path, IMAGE)
    assert offline_export.list_bitmaps(of, base_of) == set()
    (tmp_path / f"{IMAGE}.raw").symlink_to(disk.base)
    with offline_export.export_disk(of, base_of, "", tmp_path, str(tmp_path)) as export:
        url = f"nbd+unix:///{export.name}?socket={export.path}"
        convert = ["qemu-img", "convert", "-f", "raw", "-O", "raw", url, tmp_path / "seen"]
        subprocess.run(convert, check=True)
    head = pathlib.Path(disk.base).read_bytes()
    assert (tmp_path / "seen").read_bytes() == head.ljust(1 << 20, b"\0")


def test_disk_replaced_after_the_check_is_not_read(disk, monkeypatch, tmp_path):
    create(disk.path, disk.base, "raw")
    (tmp_path / f"{IMAGE}.raw").symlink_to(disk.base)
    other, image = tmp_path / "other", offline_export._image
    create(other, disk.base, "raw")
    command = ["qemu-io", "-f", "qcow2", "-c", "write -P 7 64k 64k", other]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def swap(*words, **more):
        os.replace(other, disk.path)
        return image(*words, **more)

    monkeypatch.setattr(offline_export, "_image", swap)
    of = domain_xml.RootDisk("vda", disk.path, IMAGE)
    with pytest.raises(offline_export.DiskChanged):
        with offline_export.export_disk(of, base_of, "", tmp_path, str(tmp_path)) as export:
            url = f"nbd+unix:///{export.name}?socket={export.path}"
            convert = ["qemu-img", "convert", "-f", "raw", "-O", "raw", url, tmp_path / "seen"]
            subprocess.run(convert, check=True)
    assert (tmp_path / "seen").read_bytes() == pathlib.Path(disk.base).read_bytes()


def test_link_in_place_of_a_disk_is_not_exported(disk, never, tmp_path):
    create(disk.path, disk.base, "raw")
    os.rename(disk.path, tmp_path / "moved")
    os.symlink(tmp_path / "moved", disk.path)
    never()
    check_not_exported(disk, tmp_path)


def test_tool_is_killed_when_free_space_runs_low(tmp_path):
    puller = offline_pull.OfflinePull(threading.Event())
    began_s = time.monotonic()
    threading.Timer(0.5, setattr, (puller, "_spare_bytes", 1 << 60)).start()
    with pytest.raises(errors.Unusable, match="must stay free"):
        puller._run(["sh", "-c", "sleep 60"], 2, str(tmp_path / "copy"), lambda: True)
    assert 0.4 < time.monotonic() - began_s < 30


def test_unkillable_tool_does_not_block_the_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    ended = threading.Event()
    ended.set()
    with pytest.raises(errors.Unusable, match="does not exit"):
        offline_pull.OfflinePull(ended, kill_s=0.2)._run(
            ["sh", "-c", "exec sleep 2"], 2, str(tmp_path), lambda: True
        )
