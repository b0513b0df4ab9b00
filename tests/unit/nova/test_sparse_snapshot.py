# SPDX-License-Identifier: Apache-2.0
"""Snapshots with a hole map of the image, and fallbacks without one."""

import json
import pathlib
import subprocess
import types

import pytest

from acstor_common.wire import control_wire
from acstor_nova import agent_client
from acstor_nova.snapshots import sparse_snapshot
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
CHUNK = 1 << 16
ZEROS = {"size_bytes": 9 * CHUNK, "chunk_bytes": CHUNK, "zeros": b"\xfe\x00"}


class Nova:
    """A host with a disk on a mirror, and a record of calls to Nova's function."""

    def __init__(self, folder):
        self.socket = folder / "control.sock"
        self.agent = agent_client.AgentClient(str(self.socket), 20.0)
        self.fell_back, self.extracted = [], []
        self.fails = 0
        self.out = folder / "out"
        self.base = folder / "base"
        mirror = folder / "images" / f"{IMAGE}.raw"
        mirror.parent.mkdir()
        mirror.write_bytes(bytes(9 * CHUNK))
        self.base.symlink_to(mirror)
        self.disk = self.make_disk(folder / "disk", self.base)
        self.host = types.SimpleNamespace(agent=self.agent, record_fallback=self.fall_back)

    @staticmethod
    def make_disk(path, base):
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path]
        subprocess.run(command, check=True)
        return path

    def fall_back(self, image_id, reason, why):
        self.fell_back.append((image_id, reason, why))

    def stock(self, disk_path, source_fmt, out_path, dest_fmt):
        self.extracted.append((disk_path, source_fmt, out_path, dest_fmt))
        if self.fails:
            self.fails -= 1
            raise RuntimeError("qemu-img failed")
        if disk_path.startswith("json:"):
            holes = json.loads(disk_path[5:])["backing"]["file"]["filename"]
            assert pathlib.Path(holes).read_bytes().startswith(b"QFI\xfb")

    def extract(self, disk=None, source_fmt="qcow2"):
        sparse_snapshot.extract_image(
            self.host, self.stock, str(disk or self.disk), source_fmt, str(self.out), "qcow2"
        )
        assert not list(self.out.parent.glob("*.holes"))
        return [asked[0] for asked in self.extracted]


@pytest.fixture
def nova(tmp_path):
    return Nova(tmp_path)


def answering(nova, answer):
    return scripted_agent.running(nova.socket, {control_wire.Zeros: answer})


def test_disk_on_a_mirror_is_read_with_its_hole_map(nova):
    with answering(nova, scripted_agent.done(ZEROS)) as agent:
        (asked,) = nova.extract()
    assert agent.asked == [control_wire.Zeros(IMAGE)]
    read = json.loads(asked.removeprefix("json:"))
    assert read["file"]["filename"] == str(nova.disk)
    assert read["backing"]["data-file"]["filename"] == str(nova.base)
    assert nova.extracted[0][1:] == ("qcow2", str(nova.out), "qcow2")
    assert not nova.fell_back


def test_other_disks_are_read_by_nova(nova, tmp_path):
    downloaded = tmp_path / "downloaded"
    downloaded.write_bytes(bytes(CHUNK))
    other = nova.make_disk(tmp_path / "other", downloaded)
    assert nova.extract(other) == [str(other)]
    assert nova.extract(downloaded, "raw")[1:] == [str(downloaded)]
    assert not nova.fell_back


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (scripted_agent.failed("RemoteProtocolError", "no such request"), "no such request"),
        (scripted_agent.done({**ZEROS, "zeros": b"\xfe"}), "index out of range"),
        (scripted_agent.done({**ZEROS, "chunk_bytes": 7}), "an image cannot be divided like this"),
    ],
)
def test_missing_hole_map_falls_back_to_nova(nova, answer, why):
    with answering(nova, answer):
        assert nova.extract() == [str(nova.disk)]
    ((image_id, reason, said),) = nova.fell_back
    assert (image_id, reason) == (IMAGE, control_wire.Fallback.HOLES_UNKNOWN)
    assert why in said


def test_unreachable_agent_falls_back_to_nova(nova):
    assert nova.extract() == [str(nova.disk)]
    ((_, reason, said),) = nova.fell_back
    assert reason == control_wire.Fallback.AGENT_UNREACHABLE
    assert "no answer from the agent" in said


def test_failed_read_with_the_map_falls_back_to_nova(nova):
    nova.fails = 1
    with answering(nova, scripted_agent.done(ZEROS)):
        first, second = nova.extract()
    assert first.startswith("json:") and second == str(nova.disk)
    assert "qemu-img failed" in nova.fell_back[0][2]


def test_failure_of_the_fallback_is_raised(nova):
    nova.fails = 2
    with (
        answering(nova, scripted_agent.done(ZEROS)),
        pytest.raises(RuntimeError, match="qemu-img failed"),
    ):
        nova.extract()
    assert not list(nova.out.parent.glob("*.holes"))
