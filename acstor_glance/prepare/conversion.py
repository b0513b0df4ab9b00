# SPDX-License-Identifier: Apache-2.0
"""Converts an image of another format to a qcow2 file, which agents read instead.

The image is hostile. oslo.utils inspects it first. qemu-img then runs in a :mod:`sandbox` with two
files and limits that depend on the uploaded bytes, never on the size that the image states.
"""

import contextlib
import errno
import json
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence
from typing import IO
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_glance import sandbox
from acstor_glance.client import artefact_quota
from acstor_glance.prepare import format_check
from acstor_glance.prepare import preparation_budget

QEMU_IMG = "qemu-img"
REMEDY = "Upload it converted (qemu-img convert -O qcow2)"
DRIVERS = {"vmdk": "vmdk", "vhd": "vpc", "vhdx": "vhdx", "vdi": "vdi"}

MEMORY_BYTES = 2048 * geometry.MIB  # address space of qemu-img, which uses 100 MiB of it
SLOWEST_BYTES_S = 4 * geometry.MIB  # qemu-img compresses some 30 MiB per second of a processor
NO_ROOM, TOO_LONG = os.strerror(errno.ENOSPC), os.strerror(errno.EFBIG)
_ERROR_BYTES = 2048
_INFO_BYTES = 256 * geometry.KIB
_THREADS = 64
_SIGNALLED = 128  # exit status from the sandbox is this plus the signal's number, as in a shell
_OF_BOUNDS = {
    status
    for number in (signal.SIGXCPU, signal.SIGXFSZ)
    for status in (-number, _SIGNALLED + number)
}
"""Statuses after too much time or output; other signals come from the host."""
_GRACE_S = 5  # processor seconds between the limit's signal and SIGKILL
_MODE = 0o666  # mode of files in a private folder; inside the sandbox another user opens them
_IMAGE, _MADE = "/image", "/made"


class ConversionLimits(NamedTuple):
    """Limits of qemu-img: ``growth * uploaded bytes + spare_bytes``, and time."""

    growth: int = 2  # data that was compressed with a longer window may grow
    spare_bytes: int = artefact_quota.CONVERTED_BYTES
    spare_s: int = 60  # processor seconds in addition to SLOWEST_BYTES_S


CONVERSION_LIMITS = ConversionLimits()


@contextlib.contextmanager
def convert_image(
    image: image_record.Image,
    stored: IO[bytes],
    work: pathlib.Path,
    isolation: sandbox.Sandbox,
    limits: ConversionLimits = CONVERSION_LIMITS,
) -> Iterator[IO[bytes]]:
    """Yield the converted qcow2 file of an image.

    :param stored: a named file with the image's bytes, whose hash was verified
    :param work: a private folder, for files that are deleted with it
    :raises errors.NotRaw: the image has another format, is unsafe, or qemu-img rejects it
    :raises errors.LimitExceeded: qemu-img takes too long or writes too much
    :raises errors.Unusable: qemu-img, its sandbox or space is missing
    """
    name, disk_format = f"image {image.id}", image.disk_format
    with open(stored.name, "rb") as inspected:
        why = format_check.why_not_convertible(inspected, disk_format)
    if why:
        raise errors.NotRaw(name, why, REMEDY)
    sandbox.check_sandbox(isolation)
    if not sandbox.is_installed(isolation, QEMU_IMG):
        raise errors.Unusable(QEMU_IMG, "it is not installed", "Install qemu-utils")
    with (work / "made").open("w+b") as made:
        os.fchmod(made.fileno(), _MODE)
        os.fchmod(stored.fileno(), _MODE)
        job = _Job(name, DRIVERS[disk_format], stored, made, isolation, limits)
        _check_info(name, job.info(), job.image)
        job.convert()
        made.seek(0)
        yield made


class _Job:
    def __init__(
        self,
        name: str,
        driver: str,
        stored: IO[bytes],
        made: IO[bytes],
        isolation: sandbox.Sandbox,
        limits: ConversionLimits,
    ) -> None:
        self._name, self._driver, self._isolation = name, driver, isolation
        self._limits = limits
        self._fds = [stored.fileno(), made.fileno()]
        self._paths = [pathlib.Path(stored.name), pathlib.Path(made.name)]
        self._stored_bytes = os.fstat(stored.fileno()).st_size
        is_walled = isolation is sandbox.Sandbox.BUBBLEWRAP
        own = [f"/proc/self/fd/{number}" for number in self._fds]
        self.image, self._made = (_IMAGE, _MADE) if is_walled else own

    def info(self) -> dict[str, Any]:
        words = ["info", "-f", self._driver, "--output=json", self.image]
        with tempfile.TemporaryFile() as output:
            self._run(words, output, _INFO_BYTES, self._limits.spare_s)
            output.seek(0)
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(output.read(_INFO_BYTES))
                if isinstance(found, dict):
                    return found
        raise errors.NotRaw(self._name, f"{QEMU_IMG} returned no valid JSON", REMEDY)

    def convert(self) -> None:
        words = ["convert", "-q", "-c", "-f", self._driver, "-O", artefacts.CONVERTED_FORMAT]
        max_bytes = self._limits.growth * self._stored_bytes + self._limits.spare_bytes
        longest_s = self._limits.spare_s + self._stored_bytes // SLOWEST_BYTES_S
        with tempfile.TemporaryFile() as output:
            self._run([*words, self.image, self._made], output, max_bytes, longest_s)

    def _run(self, words: Sequence[str], output: IO[bytes], max_bytes: int, longest_s: int) -> None:
        cpu_s = f"{longest_s}:{longest_s + _GRACE_S}"
        bounds: dict[str, int | str] = {
            "as": MEMORY_BYTES, "cpu": cpu_s, "fsize": max_bytes, "nofile": 64,
            "nproc": _THREADS, "core": 0}  # fmt: skip
        files = dict(zip((_IMAGE, _MADE), self._paths, strict=True))
        argv = [*sandbox.command_prefix(self._isolation, bounds, files=files), QEMU_IMG, *words]
        with tempfile.TemporaryFile() as complaints:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                cwd="/",
                pass_fds=self._fds,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
            try:
                status = process.wait(2 * longest_s)
            except subprocess.TimeoutExpired as exc:
                raise self._too_much(longest_s) from exc
            finally:
                if process.poll() is None:  # also kills processes that are not yet tied to its life
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            complaints.seek(0)
            message = complaints.read(_ERROR_BYTES).decode(errors="replace").strip()
        self._check_status(status, message, longest_s)

    def _check_status(self, status: int, message: str, longest_s: int) -> None:
        if status in _OF_BOUNDS or TOO_LONG in message:
            raise self._too_much(longest_s)
        if status < 0 or status > _SIGNALLED:
            raise errors.Unusable(self._name, f"{QEMU_IMG} was killed by another process")
        if NO_ROOM in message:
            raise errors.Unusable(self._name, message, "Give [acstor_glance] state_dir more space")
        if status:
            why = f"{QEMU_IMG} does not convert it: {message.replace(self.image, 'the image')}"
            raise errors.NotRaw(self._name, why, REMEDY)

    def _too_much(self, longest_s: int) -> errors.LimitExceeded:
        why = (
            f"{QEMU_IMG} was ended: for its {self._stored_bytes} bytes it may take {longest_s} s "
            f"and write {self._limits.growth} times as much and "
            f"{self._limits.spare_bytes // geometry.MIB} MiB"
        )
        return errors.LimitExceeded(self._name, why, f"{preparation_budget.NOT_RETRIED}. {REMEDY}")


def _check_info(name: str, info: dict[str, Any], own_name: str) -> None:
    """Raise errors.NotRaw if the disk refers to other files, or is too large."""
    other_files = {path for path in _file_names(info) if path != own_name}
    if other_files or any("backing" in key for key in info):
        raise errors.NotRaw(name, format_check.BACKING_FILE, REMEDY)
    virtual_bytes, most = info.get("virtual-size"), image_record.SERVED_VIRTUAL_BYTES
    if not isinstance(virtual_bytes, int) or not 0 < virtual_bytes <= most:
        why = f"its disk is too large: {virtual_bytes} bytes, and {most} are allowed"
        raise errors.NotRaw(name, why, REMEDY)


def _file_names(output: object) -> Iterator[str]:
    left = [output]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(found := value.get("filename"), str):
                yield found
            value = list(value.values())
        if isinstance(value, list):
            left += value
