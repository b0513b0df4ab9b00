# SPDX-License-Identifier: Apache-2.0
"""Restored disks on a real mount, with chunks from real vaults: reads, kills, damaged data."""

import contextlib
import os
import pathlib
import stat
import subprocess
import tempfile
import uuid

import pytest

from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.disks import qcow2
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest as manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.fakes import qcow2_readers
from tests.lab import agents
from tests.lab import local
from tests.lab import vaults

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(3 * geometry.MIB + 4097, zero_share=0.2)
CUT = geometry.Geometry(5 * geometry.MIB, CHUNK)
CHANGED = {
    chunk_no: local.random_bytes(CHUNK) if chunk_no % 5 else bytes(CHUNK)
    for chunk_no in (0, 3, 5, 20, 47, 48, 60, 79)
}
KEY = bytes(range(1, 33))
DISK = ids.parse_image_id("6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
INSTANCE = ids.parse_image_id("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
OWNER = "h9"
"""The dead host."""


def content(path: pathlib.Path) -> bytes:
    """Return the disk as QEMU reads it, from the mirrored file and its backing file."""
    with tempfile.NamedTemporaryFile() as raw:
        convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, raw.name]
        subprocess.run(convert, check=True, timeout=60.0)
        disk = pathlib.Path(raw.name).read_bytes()
    qcow2_readers.check(path, disk)
    return disk


def truth() -> bytes:
    data = bytearray(DATA.ljust(CUT.size_bytes, b"\0"))
    for chunk_no, plain in CHANGED.items():
        data[chunk_no * CHUNK : (chunk_no + 1) * CHUNK] = plain
    return bytes(data)


class VaultCheckpoint:
    """A checkpoint in two vaults, uploaded by its host before that host died."""

    def __init__(self, folder: pathlib.Path, image_id: ids.ImageId, vault_list) -> None:
        self.vaults = vault_list
        seal = checkpoint_encryption.Seal(KEY)
        entries = [manifest.Entry(n, seal.chunk_name(plain)) for n, plain in CHANGED.items()]
        subject = manifest.Subject(
            DISK,
            INSTANCE,
            "a-project",
            image_id,
            chunk_map.UNKNOWN_OS_HASH,
            CUT,
            1_800_000_000_000,
            manifest.Consistency.CRASH,
            1,
        )
        sealed = seal.close_manifest(manifest.build(subject, entries))
        chunks = [
            object_names.SealedChunk(name, seal.close(name, CHANGED[n]))
            for n, name in entries
            if name != ids.ZERO_CID
        ]
        owner = vaults.Vault(folder / OWNER, OWNER)  # it never listens
        for holder in self.vaults:
            with owner.client(holder) as client:
                client.put(object_names.VaultDisk(owner.name, DISK), chunks)
                client.put_manifest(object_names.VaultDisk(owner.name, DISK), sealed)
        self.reported = {
            "checkpoint_id": str(uuid.uuid4()),
            "instance_id": INSTANCE,
            "image_id": image_id,
            "owner": OWNER,
            "vault_disk": DISK,
            "manifest_name": checkpoint_encryption.manifest_name(sealed).hex(),
            "holders": [(one.name, f"127.0.0.1:{one.port}") for one in self.vaults],
            "key": KEY.hex(),
        }
        self.mirror = pathlib.Path()

    def attach(self, agent: agents.Agent) -> pathlib.Path:
        """Have the agent attach it as a disk on the image's mirror."""
        self.mirror = agent.mount_point / "images" / f"{self.reported['image_id']}.raw"
        reported = {**self.reported, "backing_file": str(self.mirror)}
        made = agents.request(agent.control_socket, "attach-checkpoint", **reported)
        assert made["size_bytes"] == CUT.size_bytes
        return pathlib.Path(made["path"])

    def recovered(self, agent: agents.Agent) -> dict[str, object]:
        """Return the agent's report on it."""
        [reported] = agents.request(agent.control_socket, "list-restored-disks")["disks"]
        return reported

    def is_complete(self, agent: agents.Agent) -> bool:
        return bool(self.recovered(agent)["is_complete"])


@pytest.fixture
def kept(tmp_path, images):
    with contextlib.ExitStack() as stack:
        found = []
        for name in ("h2", "h3"):
            vault = vaults.Vault(tmp_path / name, name)
            stack.callback(vault.close)
            vault.start()
            found.append(vault)
        yield VaultCheckpoint(tmp_path, images.add(DATA), found)


@contextlib.contextmanager
def running(folder, images, **options):
    with hosts.running(folder / "agent", images, security="secure", **options) as agent:
        yield agent


def test_attached_disk_is_readable_at_once_and_is_restored_completely(tmp_path, images, kept):
    with running(tmp_path, images) as agent:
        path = kept.attach(agent)
        subprocess.run(["qemu-img", "check", "-q", "-f", "qcow2", path], check=True, timeout=60.0)
        assert content(path) == truth()
        hosts.wait_until(lambda: kept.is_complete(agent), "all of the checkpoint")
        for vault in kept.vaults:
            vault.kill()
        agent.stop()
        agent.start()
        agent.wait_ready()
        assert content(path) == truth()
        for file in (tmp_path / "agent").rglob("*.acrecovery"):
            assert KEY.hex() not in file.read_text()


def test_killed_agent_resumes_the_restore_from_the_only_vault_left(tmp_path, images, kept):
    with running(tmp_path, images) as agent:
        for vault in kept.vaults[1:]:
            vault.kill()
        path = kept.attach(agent)
        [state] = (tmp_path / "agent").rglob("*.acrecovery")
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        hosts.kill_agent(agent)
        agent.start()
        agent.wait_ready()
        assert content(path) == truth()
        hosts.wait_until(lambda: kept.is_complete(agent), "all of the checkpoint", 30.0)


def test_read_waits_for_a_vault_that_restarts(tmp_path, images, kept):
    with running(tmp_path, images) as agent:
        first = kept.vaults[0]
        kept.vaults[1].kill()
        path = kept.attach(agent)
        first.kill()
        first.start()
        assert content(path) == truth()


def test_checkpoint_that_no_vault_holds_cannot_be_attached(tmp_path, images, kept):
    kept.reported["manifest_name"] = "ab" * 32
    with running(tmp_path, images) as agent:
        with pytest.raises(errors.Unusable, match="any holder"):
            kept.attach(agent)
        assert agents.request(agent.control_socket, "list-restored-disks")["disks"] == []


def test_disk_is_dropped_only_after_its_last_close(tmp_path, images, kept):
    with running(tmp_path, images) as agent:
        path = kept.attach(agent)
        drop = {"disk_id": kept.reported["checkpoint_id"]}
        with path.open("rb"), pytest.raises(errors.Unusable, match="is open"):
            agents.request(agent.control_socket, "drop-disk", **drop)
        agents.request(agent.control_socket, "drop-disk", **drop)
        assert not path.exists()
        assert not list((tmp_path / "agent").rglob(f"{kept.reported['checkpoint_id']}*"))


def test_restored_disk_is_read_only(tmp_path, images, kept):
    with running(tmp_path, images) as agent:
        path = kept.attach(agent)
        assert path.name.endswith(".qcow2") and os.listdir(path.parent) == [path.name]
        with pytest.raises(OSError, match="Read-only"):
            path.open("r+b")
        assert not path.with_suffix(".raw").exists()


@pytest.mark.parametrize("backing", ["mirror.raw", "/a\nb", "/" + "x" * 1023, "json:{}"])
def test_invalid_backing_file_is_refused(tmp_path, images, kept, backing):
    with running(tmp_path, images) as agent:
        reported = {**kept.reported, "backing_file": backing}
        with pytest.raises(errors.Unusable, match=r"not an absolute path|name of a backing file"):
            agents.request(agent.control_socket, "attach-checkpoint", **reported)
        assert agents.request(agent.control_socket, "list-restored-disks")["disks"] == []


def test_only_clusters_of_the_checkpoint_are_copied_off_it(tmp_path, images, kept):
    """QEMU's tools do this with a server's disk whose backing file is the checkpoint."""
    with running(tmp_path, images) as agent:
        path, disk = kept.attach(agent), tmp_path / "disk"
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", path]
        subprocess.run([*create, disk, str(CUT.size_bytes)], check=True)
        rebase = ["qemu-img", "rebase", "-f", "qcow2", "-F", "raw", "-b", kept.mirror, disk]
        subprocess.run(rebase, check=True, timeout=60.0)
        assert content(disk) == truth()
        with disk.open("rb") as file:
            local = local_file.LocalFile(file.fileno(), "disk")
            has = list(qcow2.Qcow2(local, may_have_backing=True).iter_changes())
        assert sum(length for _, length, _ in has) <= len(CHANGED) * CHUNK
        agents.request(agent.control_socket, "drop-disk", disk_id=kept.reported["checkpoint_id"])
        assert content(disk) == truth()
