# SPDX-License-Identifier: Apache-2.0
"""The judgement of a chaos run's guests, by their output; QEMU is real."""

import hashlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.chaos import guest_disk
from tests.chaos import guests
from tests.fakes import hosts

TRUTH = guest_disk.sums(bytes(guest_disk.PART_BYTES) + b"\1" * guest_disk.PART_BYTES)
PATIENCE_S = 60.0


def line(number, part, checksum):
    return f"{guest_disk.MARKER} {number} {part} {checksum}\r\n".encode()


GOOD = [line(0, 0, TRUTH[0]), line(0, 1, TRUTH[1]), line(1, 0, TRUTH[0])]


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_right_lines_are_counted_under_any_split(cut):
    made, text = guests.Console(TRUTH), b"SeaBIOS\r\n" + b"".join(GOOD)
    made.feed(text[:cut])
    made.feed(text[cut:])
    assert (made.reads, made.found, made.next_part) == (3, [], 1)


def test_incomplete_line_is_not_judged():
    made = guests.Console(TRUTH)
    made.feed(GOOD[0].rstrip())
    assert made.reads == 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (line(0, 0, TRUTH[1]), "wrong bytes among 1048576 at 0, in round 0"),
        (GOOD[0] + line(0, 1, TRUTH[0]), "wrong bytes among 1048576 at 1048576, in round 0"),
        (GOOD[0] + GOOD[0], "part 0 of round 0 came after 1 reads"),
        (line(0, 7, TRUTH[0]), "part 7 of round 0 came after 0 reads"),
        (f"{guest_disk.FAULT} 0 1 dd: Input/output error\n".encode(), "Input/output error"),
        (b"[ 9.1] I/O error, dev vda, sector 2048\n", "I/O error, dev vda"),
        (b"Kernel panic - not syncing\n", "Kernel panic"),
        (b"error: file `/vmlinuz' not found.\n", "not found"),
    ],
)
def test_faults_in_the_output_are_found(text, wanted):
    made = guests.Console(TRUTH)
    made.feed(text)
    assert len(made.found) == 1 and wanted in made.found[0]


def test_harmless_kernel_line_is_no_fault():
    made = guests.Console(TRUTH)
    made.feed(b"[    0.048000] tsc: Unable to calibrate against PIT\n[ 1.0] x86/fpu: error codes\n")
    assert made.found == []


@pytest.fixture
def start(tmp_path):
    if os.geteuid() or shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86 is not installed, or this is not root")
    started = []

    def begin(data):
        (tmp_path / "disk").write_bytes(data)
        truth = guest_disk.sums(data)
        started.append(guests.Guest(truth, tmp_path / "disk", tmp_path / "guest-1"))
        return started[-1]

    yield begin
    for one in started:
        hosts.kill(one.pid)
        assert one.ended_in(PATIENCE_S)


# mov si, MESSAGE; xor ax, ax; mov ds, ax; next: lodsb; test al, al; jz end; mov dx, 0x3f8;
# out dx, al; jmp next; end: hlt; jmp end
PRINT = bytes.fromhex("be157c 31c0 8ed8 ac 84c0 7406 baf803 ee ebf5 f4 ebfd")


def disk_that_prints(text):
    """Return a disk whose boot sector only prints a text on the serial line."""
    sector = (PRINT + text + b"\0").ljust(510, b"\0") + b"\x55\xaa"
    return sector.ljust(guest_disk.PART_BYTES, b"\0")


def test_output_of_a_real_guest_is_counted_and_judged(start):
    wrong = hashlib.sha256(b"").hexdigest()
    booted = start(disk_that_prints(line(0, 0, wrong)))
    hosts.wait_until(lambda: booted.state.reads, "a line of the guest", PATIENCE_S)
    assert "wrong bytes among 1048576 at 0" in booted.found()[0]
    assert booted.state.bytes == guest_disk.PART_BYTES
    assert booted.status() is None
    silent = lambda: time.monotonic() - booted.state.since_s > 3 * guests.LOOK_S  # noqa: E731
    hosts.wait_until(silent, "a guest that is not busy, and says nothing", PATIENCE_S)


@pytest.mark.parametrize("script", ["while True: pass", "import time; time.sleep(99)"])
def test_computing_process_is_distinguished_from_a_waiting_one(script):
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            time.sleep(1.0)  # both compute at first
            made, doubted = (guests.Business(process.pid, limit_s) for limit_s in (60.0, 0.0))
            time.sleep(guests.LOOK_S)
            for one in (made, doubted):
                one.look()
            time.sleep(guests.LOOK_S)
            assert made.look() == ("while" in script)
            assert not doubted.look()
        finally:
            process.kill()
