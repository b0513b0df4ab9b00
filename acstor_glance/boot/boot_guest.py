# SPDX-License-Identifier: Apache-2.0
"""The temporary guest that boots an image: QEMU in its sandbox, without named files."""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import IO

from acstor_common import errors
from acstor_common.model import geometry
from acstor_glance import sandbox

QEMU, QEMU_IMG = "qemu-system-x86_64", "qemu-img"
UEFI_FIRMWARE = pathlib.Path("/usr/share/ovmf/OVMF.fd")
"""OVMF as one read-only file; the guest's variables are not kept."""
ARCHITECTURES = ("x86_64", "amd64", "x86", "i386", "i486", "i586", "i686")
NOTHING_TO_BOOT = re.compile(
    rb"No bootable device\.|BdsDxe: No bootable option|UEFI Interactive Shell"
)
"""Console output if nothing boots: SeaBIOS, OVMF with and without shell."""
_FIRMWARE_PORT = "0x402"  # SeaBIOS's debug port; the guest has no screen
_ADDRESS_SPACE_SPARE_BYTES = 2048 * geometry.MIB
_RESIDENT_SPARE_BYTES = 768 * geometry.MIB
_TRANSLATION_CACHE_MIB = 128
_THREADS = 128
_QEMU_WORDS_BYTES = 2000
_STOP_S = 10.0


class Firmware(enum.StrEnum):
    """Firmware of the guest; values as in ``hw_firmware_type``."""

    BIOS = "bios"
    UEFI = "uefi"


@dataclasses.dataclass(frozen=True, slots=True)
class GuestLimits:
    """Resource limits of a guest, and when its boot counts as over."""

    longest_s: float = 300.0
    idle_s: float = 30.0  # the boot is over after this time without new reads
    settle_s: float = 2.0  # time to continue after the marker
    memory_bytes: int = 512 * geometry.MIB
    written_bytes: int = 1024 * geometry.MIB
    boot_bytes: int = 1024 * geometry.MIB

    @property
    def resident_bytes(self) -> int:
        """Limit of QEMU's memory, with the guest's; it needs some 200 MiB itself."""
        return self.memory_bytes + _RESIDENT_SPARE_BYTES


def accelerator() -> str:
    """Return "kvm" if the processor has hardware virtualization, else "tcg".

    ``/dev/kvm`` alone is no evidence: under a paravirtual one stock kernels do not boot.
    """
    has_kvm = any(pathlib.Path(f"/sys/module/kvm_{maker}").exists() for maker in ("intel", "amd"))
    return "kvm" if has_kvm and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def make_overlay(overlay_fd: int, size_bytes: int) -> None:
    """Write an empty qcow2 overlay to the open file ``overlay_fd``; raises errors.Unusable."""
    argv = [QEMU_IMG, "create", "-q", "-f", "qcow2", f"/proc/self/fd/{overlay_fd}", str(size_bytes)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=60, pass_fds=[overlay_fd]
        )
    except FileNotFoundError as e:
        raise errors.Unusable(QEMU_IMG, "it is not installed", "Install QEMU") from e
    if done.returncode:
        raise errors.Unusable(QEMU_IMG, done.stderr.strip())


@contextlib.contextmanager
def run_guest(
    overlay_fd: int,
    image: socket.socket,  # of the NBD server; closed here
    log: IO[bytes],
    limits: GuestLimits,
    firmware: Firmware,
    isolation: sandbox.Sandbox,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run QEMU; its standard output is the console of guest and firmware."""
    if not sandbox.is_installed(isolation, QEMU):
        raise errors.Unusable(QEMU, "it is not installed", "Install qemu-system-x86")
    if firmware is Firmware.UEFI and not UEFI_FIRMWARE.is_file():
        why = "it is not installed, and the image boots by UEFI"
        raise errors.Unusable(str(UEFI_FIRMWARE), why, "Install ovmf")
    sandbox.check_sandbox(isolation)
    devices, group = (["/dev/kvm"], "kvm") if accelerator() == "kvm" else ([], "")
    confined = sandbox.command_prefix(isolation, _bounds(limits), devices, group)
    process = subprocess.Popen(
        [*confined, *_argv(overlay_fd, image.fileno(), limits, firmware)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        pass_fds=[overlay_fd, image.fileno()],
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    image.close()
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_STOP_S)


def _bounds(limits: GuestLimits) -> dict[str, int]:
    return {
        "cpu": int(limits.longest_s * 4) + 60,  # a second of a processor for each of 4 threads
        "fsize": limits.written_bytes,
        "as": limits.memory_bytes + _ADDRESS_SPACE_SPARE_BYTES,
        "nofile": 128,
        "nproc": _THREADS,
        "core": 0,
    }


def _argv(overlay_fd: int, image: int, limits: GuestLimits, firmware: Firmware) -> list[str]:
    accel = accelerator()
    export = {"driver": "nbd", "server": {"type": "fd", "str": str(image)}, "read-only": True}
    disk = {
        "driver": "qcow2",
        "node-name": "disk",
        "file": {"driver": "file", "filename": "/dev/fdset/1"},
        "backing": export,
    }
    speed = f"tcg,tb-size={_TRANSLATION_CACHE_MIB}" if accel == "tcg" else "kvm"
    denied = "obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    return [
        *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "pc", "-accel", speed, "-smp", "1"),
        *(("-bios", str(UEFI_FIRMWARE)) if firmware is Firmware.UEFI else ()),
        *(("-cpu", "host") if accel == "kvm" else ()),
        *("-m", f"{limits.memory_bytes // geometry.MIB}M", "-nic", "none"),
        *("-add-fd", f"fd={overlay_fd},set=1", "-blockdev", json.dumps(disk)),
        *("-device", "virtio-blk-pci,drive=disk,rerror=report,werror=report"),
        *("-chardev", "stdio,id=console,mux=on,signal=off", "-serial", "chardev:console"),
        *("-device", f"isa-debugcon,iobase={_FIRMWARE_PORT},chardev=console", "-monitor", "none"),
        *("-sandbox", f"on,{denied}"),
    ]


def first_log_lines(log: IO[bytes]) -> str:
    """Return the start of QEMU's log."""
    log.seek(0)
    return log.read(_QEMU_WORDS_BYTES).decode(errors="replace").strip() or "it logged nothing"
