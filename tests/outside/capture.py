# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a QEMU tool in iotests; keeps each state of the test's images.

It uses only the standard library.  It is started by the name of the tool, with the environment:
``CAPTURE_INTO``, a folder for the images, ``TEST_DIR``, where the iotest makes them, and
``IMGFMT``, their format.
"""

import errno
import hashlib
import os
import pathlib
import subprocess
import sys

TOOLS = pathlib.Path("/usr/bin")
MAX_DATA_BYTES = 64 << 20
MAX_FILE_BYTES = 4 << 30  # with holes
MAX_IMAGES = 400  # of one iotest
_MAGIC = b"QFI\xfb"
_PIECE_BYTES = 1 << 20


def main() -> int:
    """Capture the images, run the tool, and capture them again."""
    capture_images()
    done = subprocess.run([TOOLS / pathlib.Path(sys.argv[0]).name, *sys.argv[1:]], check=False)
    capture_images()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def capture_images() -> None:
    """Copy the images without a copy so far."""
    into, image_format = pathlib.Path(os.environ["CAPTURE_INTO"]), os.environ["IMGFMT"]
    for path in sorted(pathlib.Path(os.environ["TEST_DIR"]).glob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        with path.open("rb") as file:
            is_qcow2 = file.read(len(_MAGIC)) == _MAGIC
            if is_qcow2 if image_format == "qcow2" else path.suffix == f".{image_format}":
                _capture(file.fileno(), into, image_format)


def _capture(fd: int, into: pathlib.Path, image_format: str) -> None:
    status = os.fstat(fd)
    if status.st_blocks * 512 > MAX_DATA_BYTES or status.st_size > MAX_FILE_BYTES:
        (into / "too-large").touch()
        return
    digest = hashlib.sha1(b"%d" % status.st_size)
    for at, data in _pieces(fd, status.st_size):
        digest.update(b"%d" % at)
        digest.update(data)
    known = len(list(into.iterdir()))
    name = into / f"{digest.hexdigest()[:12]}.{image_format}"
    if name.exists() or known >= MAX_IMAGES:
        return
    with name.open("wb") as copy:
        for at, data in _pieces(fd, status.st_size):
            copy.seek(at)
            copy.write(data)
        copy.truncate(status.st_size)
    os.utime(name, ns=(0, known))  # the order of creation


def _pieces(fd: int, size_bytes: int) -> "list[tuple[int, bytes]]":
    """Return a file's data, (offset, bytes), without holes and zeros."""
    found, at = [], 0
    while at < size_bytes:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                break
            raise
        data = os.pread(fd, min(_PIECE_BYTES, os.lseek(fd, at, os.SEEK_HOLE) - at), at)
        if data.count(0) < len(data):
            found.append((at, data))
        at += max(1, len(data))
    return found


if __name__ == "__main__":
    sys.exit(main())
