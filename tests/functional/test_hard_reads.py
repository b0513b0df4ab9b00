# SPDX-License-Identifier: Apache-2.0
"""Guests whose reads wait for absent bytes: the agent reports the reads, and they can be killed."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from acstor_nova import agent_client
from acstor_nova import mirror_link
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import waiting_reader
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(32 * CHUNK)
DISK = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
INSTANCE = "4b1c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"
LIFE_S = 120.0
END_S = 10.0
"""Limit for the end of a killed process."""


def chunk(chunk_no: int) -> bytes:
    return DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


@contextlib.contextmanager
def running(argv, **options):
    """Run a program that may hang in a read; kill it without an endless wait."""
    process = subprocess.Popen([str(word) for word in argv], **options)
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_S)


def reader(way: str, path: pathlib.Path, chunk_no: int) -> waiting_reader.Reader:
    return waiting_reader.Reader(way, path, chunk_no * CHUNK, CHUNK)


class Away:
    """An agent whose source can go away, and an image that it has attached."""

    def __init__(self, images, start, stack, **options) -> None:
        self.image_id = images.add(DATA)
        self._files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
        self._port = 0
        self._stack = stack
        self._serving = contextlib.ExitStack()
        stack.callback(self._serving.close)
        self.come_back()
        options = {"variants": "no-read-ahead", "life_s": LIFE_S, **options}
        self.agent: agents.Agent = start(**options, **hosts.http_options(self.server.url, 0.3))
        self.path = self.agent.image_path(self.image_id)
        assert os.stat(self.path).st_size == len(DATA)

    def come_back(self) -> None:
        self.server = self._serving.enter_context(http_server.serve(self._files, port=self._port))
        self._port = int(self.server.url.rstrip("/").rpartition(":")[2])

    def go(self) -> None:
        self._serving.close()

    def waiting(self) -> dict[str, Any]:
        return self.agent.status()["images"][self.image_id]["waiting"] or {"requests": 0}

    def wait_for_reads(self, count: int) -> None:
        hosts.wait_until(lambda: self.in_flight() == count, f"{count} reads", 20)

    def in_flight(self) -> int:
        return self.agent.status()["images"][self.image_id]["reads_in_flight"]

    def next_worker(self) -> None:
        killed = self.agent.worker_pid()
        hosts.kill(killed)
        hosts.wait_until(lambda: self.agent.worker_pid() not in (killed, None), "a worker", 20)
        self.agent.wait_ready()


@pytest.fixture
def away(images, start):
    with contextlib.ExitStack() as stack:
        yield lambda **options: Away(images, start, stack, **options)


def test_waiting_read_is_reported_and_completes_when_the_source_returns(away):
    at = away()
    at.go()
    with reader("thread", at.path, 9) as waits, reader("buffered", at.path, 3) as other:
        hosts.wait_until(lambda: at.waiting()["requests"] >= 2, "reads that wait for long", 30)
        seen = at.waiting()
        assert seen["longest_s"] >= 5 and seen["why"].count(at.server.url) >= 1
        assert f"Waiting | {at.image_id}" in " ".join(at.agent.ctl("status").split())
        said = "requests of guests have waited for up to"
        hosts.wait_until(lambda: said in at.agent.log(), "the log")
        time.sleep(3)
        assert not waits.has_ended() and not other.has_ended()
        at.come_back()
        assert waits.said() == waiting_reader.digest(chunk(9))
        assert other.said() == waiting_reader.digest(chunk(3))
    image = at.agent.status()["images"][at.image_id]
    assert (image["failed_reads"], image["lost_reads"], image["waiting"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("way", "number"),
    [
        *((way, signal.SIGKILL) for way in waiting_reader.WAYS),
        ("thread", signal.SIGTERM),  # no process handles it
        ("thread", signal.SIGABRT),  # a crash, which waits for all threads before it dumps
    ],
)
def test_killed_reader_ends_at_once_and_others_keep_waiting(away, way, number):
    at = away()
    at.go()
    with reader("thread", at.path, 9) as other, reader(way, at.path, 9) as killed:
        hosts.wait_until(lambda: at.waiting()["requests"] >= 2, "reads that wait", 30)
        assert killed.kill(number) < END_S
        assert not other.has_ended()
        time.sleep(3)
        assert not other.has_ended()
        at.come_back()
        assert other.said() == waiting_reader.digest(chunk(9))


@pytest.mark.parametrize("way", ["threads", "native", "io_uring"])
def test_qemu_can_be_killed_while_its_read_waits(away, way):
    if not (program := shutil.which("qemu-io")):
        pytest.skip("qemu-io is not installed")
    at = away()
    with reader("thread", at.path, 0) as first:  # QEMU probes the file here
        assert first.said() == waiting_reader.digest(chunk(0))
    at.go()
    argv = [program, "-r", "-f", "raw", "-t", "none", "-i", way]
    reads = [f"aio_read {n * CHUNK} {CHUNK}" for n in (5, 9)]
    argv += [word for command in (*reads, "aio_flush") for word in ("-c", command)]
    with (
        reader("aio", at.path, 9) as other,
        running([*argv, at.path], stdout=subprocess.DEVNULL) as qemu,
    ):
        hosts.wait_until(lambda: at.waiting()["requests"] >= 3, "reads that wait", 30)
        began_s = time.monotonic()
        qemu.kill()
        qemu.wait(30)
        assert time.monotonic() - began_s < END_S
        assert not other.has_ended()
        at.come_back()
        assert other.said() == waiting_reader.digest(chunk(9))


def test_qemu_shuts_down_on_sigterm_while_its_reads_wait(away, tmp_path):
    if not (program := shutil.which("qemu-system-x86_64")):
        pytest.skip("qemu-system-x86_64 is not installed")
    at = away()
    with reader("thread", at.path, 0) as first:  # QEMU reads it at its start
        assert first.said() == waiting_reader.digest(chunk(0))
    at.go()
    disk = tmp_path / INSTANCE / "disk"
    disk.parent.mkdir()
    make = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", at.path, disk]
    subprocess.run(make, check=True, timeout=60)
    argv = [program, "-S", "-display", "none", "-nodefaults", "-monitor", "stdio"]
    argv += ["-drive", f"if=none,id=d,format=qcow2,file={disk}"]
    argv += ["-device", "virtio-blk-pci,id=vda,drive=d"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    command = f'qemu-io -d /machine/peripheral/vda/virtio-backend "aio_read {5 * CHUNK} {CHUNK}"\n'
    with reader("thread", at.path, 9) as other, running(argv, **pipes) as qemu:
        qemu.stdin.write(command.encode())
        qemu.stdin.flush()
        hosts.wait_until(lambda: at.waiting()["requests"] >= 2, "reads that wait", 60)
        qemu.terminate()
        time.sleep(3)
        assert qemu.poll() is None
        nova = agent_client.AgentClient(str(at.agent.control_socket), 20.0)
        nova.notify_power_off(INSTANCE, 20.0)
        assert qemu.wait(60) == 0, "it ends in order"
        assert not other.has_ended()
        at.come_back()
        assert other.said() == waiting_reader.digest(chunk(9))


@hosts.needs_take_over
@pytest.mark.parametrize("way", ["thread", "aio"])
def test_new_worker_releases_reads_of_killed_processes(away, way):
    """The new worker did not see the open, and the kernel resends the reads."""
    at = away()
    at.go()
    with reader("thread", at.path, 9) as other, reader(way, at.path, 5) as killed:
        at.wait_for_reads(2)
        at.next_worker()
        at.wait_for_reads(2)
        assert killed.kill() < END_S
        at.next_worker()
        assert not other.has_ended()
        at.come_back()
        assert other.said() == waiting_reader.digest(chunk(9))
    assert at.agent.status()["images"][at.image_id]["failed_reads"] == 0


@hosts.needs_take_over
def test_process_killed_while_no_worker_runs_ends_with_the_next_worker(away):
    at = away()
    at.go()
    with reader("aio", at.path, 9) as other, reader("thread", at.path, 5) as killed:
        at.wait_for_reads(2)
        worker = at.agent.worker_pid()
        with hosts.frozen(worker):
            killed.process.kill()
            time.sleep(1)
            assert not killed.has_ended()  # without a worker no read can end
        hosts.kill(worker)
        assert killed.kill() < 2 * END_S
        assert not other.has_ended()
        at.come_back()
        assert other.said() == waiting_reader.digest(chunk(9))


@pytest.mark.parametrize("lost_after_s", [0, 3])
def test_lost_image_fails_reads_and_is_reported(away, lost_after_s):
    at = away(lost_after_s=lost_after_s)
    at.server.always = http_server.status(404)
    with reader("thread", at.path, 9) as lost, reader("aio", at.path, 3) as other:
        assert (lost.said(), other.said()) == ("EIO", "EIO")
    image = at.agent.status()["images"][at.image_id]
    assert (image["failed_reads"], image["lost_reads"]) == (2, 2)
    assert at.agent.log().count(f"image {at.image_id}: data is lost") == 1
    assert f"Lost data | {at.image_id}" in " ".join(at.agent.ctl("status").split())
    at.server.always = http_server.fine
    with reader("thread", at.path, 9) as found:
        assert found.said() == waiting_reader.digest(chunk(9))


def test_deleted_image_is_not_lost_while_a_host_is_silent(images, tmp_path):
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        options = {"variants": "no-read-ahead,no-advertisements", "life_s": LIFE_S}
        options["lost_after_s"] = 0
        options |= hosts.http_options(server.url, 0.3)
        with hosts.cloud(tmp_path, images, ("h1", "h2"), **options) as cloud:
            paths = [cloud[name].image_path(image_id) for name in ("h1", "h2")]
            for number in (3, 9):
                with reader("thread", paths[1], number) as other:
                    assert other.said() == waiting_reader.digest(chunk(number))
            os.stat(paths[0])
            server.always = http_server.status(404)
            with reader("thread", paths[0], 3) as has:
                assert has.said() == waiting_reader.digest(chunk(3))
            with hosts.frozen(cloud["h2"].worker_pid()):
                with (
                    reader("thread", paths[0], 9) as waits,
                    reader("thread", paths[0], 5) as lost,
                ):
                    hosts.wait_until(lambda: waiting(cloud["h1"], image_id) == 2, "reads", 40)
                    assert not waits.has_ended() and not lost.has_ended()
                    os.kill(cloud["h2"].worker_pid(), signal.SIGCONT)
                    assert waits.said() == waiting_reader.digest(chunk(9))
                    assert lost.said() == "EIO"


def waiting(agent: agents.Agent, image_id: str) -> int:
    return (agent.status()["images"][image_id]["waiting"] or {"requests": 0})["requests"]


@contextlib.contextmanager
def read_waits_for_source(at, status):
    """Let a read wait while the source returns a status; then let it succeed."""
    at.server.always = http_server.status(status)
    with reader("thread", at.path, 9) as waits:
        hosts.wait_until(lambda: at.waiting()["requests"] == 1, "a read that waits", 30)
        yield
        at.server.always = http_server.fine
        assert waits.said() == waiting_reader.digest(chunk(9))


def test_reads_wait_while_the_source_returns_404_for_a_short_time(away):
    at = away()
    with read_waits_for_source(at, 404):
        assert "lost if none has it in" in at.waiting()["why"]
        assert at.agent.log().count(f"image {at.image_id}: data of it is unavailable") == 1


def test_reads_wait_while_the_source_returns_403(away):
    """An operator can repair a refusal: the bytes are not lost."""
    at = away()
    with read_waits_for_source(at, 403):
        assert "refuses access (403)" in at.waiting()["why"]


def test_reads_with_a_deadline_fail_in_time(away):
    at = away(read_deadline_s=1.0)
    at.go()
    with reader("thread", at.path, 9) as soft:
        assert soft.said() == "EIO"
    assert "did not arrive within 1 s" in at.agent.log()


def test_nova_gets_an_error_in_time_when_the_head_of_an_image_is_unreadable(away):
    """Nova reads the image's head in its own process, which must not wait as a guest does."""
    at = away()
    at.go()
    nova = agent_client.AgentClient(str(at.agent.control_socket), 60.0)
    with pytest.raises(errors.AgentRefused, match=f"the first {mirror_link.HEAD_BYTES} bytes"):
        nova.attach_image(at.image_id, mirror_link.HEAD_BYTES)
    at.come_back()
    assert nova.attach_image(at.image_id, mirror_link.HEAD_BYTES).size_bytes == len(DATA)
    at.go()
    mirror_link.read_head(at.path)


def test_writer_can_be_killed_while_its_disk_waits_for_the_image(away):
    """A write of a part of a chunk first needs the rest of it."""
    at = away()
    made = agents.request(
        at.agent.control_socket,
        "make-disk",
        disk_id=DISK,
        image_id=at.image_id,
    )
    at.go()
    argv = ["dd", "if=/dev/zero", f"of={made['path']}", "bs=4096", "count=1", "seek=81"]
    with running([*argv, "oflag=direct", "conv=notrunc"]) as writer:
        hosts.wait_until(lambda: at.agent.status()["disks"][DISK]["waiting"], "a write", 30)
        began_s = time.monotonic()
        writer.kill()
        writer.wait(30)
        assert time.monotonic() - began_s < END_S
    assert at.agent.status()["guests"]["ended"] == 1
    at.come_back()
    with reader("thread", pathlib.Path(made["path"]), 5) as whole:
        assert whole.said() == waiting_reader.digest(chunk(5))


@hosts.needs_take_over
def test_open_image_with_a_damaged_chunk_map_waits_for_the_source(away):
    at = away()
    fd = os.open(at.path, os.O_RDONLY)
    try:
        at.go()
        (at.agent.state_dir / "maps" / f"{at.image_id}.acmap").write_bytes(b"damaged")
        at.next_worker()
        with running(["cat"], stdin=fd, stdout=subprocess.PIPE) as waits:
            hosts.wait_until(lambda: at.waiting()["requests"], "a read", 30)
            at.come_back()
            assert waits.communicate(timeout=30)[0] == DATA
    finally:
        os.close(fd)
