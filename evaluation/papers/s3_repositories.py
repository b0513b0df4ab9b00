# SPDX-License-Identifier: Apache-2.0
"""The repositories of table I: two ext4 images with a common Debian package.

The paper's packages are installers that are unavailable here.  Instead it uses packages known to
apt on this machine with the sizes nearest to the paper's, divided by ``DIVISOR``; they are
compressed archives as well.  apt downloads them once and verifies them.

The common chunks of both images are measured, not assumed.
"""

import dataclasses
import functools
import pathlib
import random
import re
import tempfile
import uuid
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import common_images
from tests.lab import runs

CACHE = harness.ROOT / ".cache" / "papers" / "s3"
DIVISOR = 64
PAPER_MB = {"hadoop": 142, "jdk": 154, "DB2": 767, "TXSERIES": 387, "WebSphere": 782}
"""Table I: packages and their sizes."""
COMMON = "DB2"
CONTENTS = ((COMMON, "WebSphere"), ("hadoop", "jdk", COMMON, "TXSERIES"))
"""Of Repo-1 and Repo-2, by the crosses of table I and the text beside them."""
CANDIDATES = (
    *("mariadb-test", "libqt5webkit5", "llvm-14", "llvm-18", "libtomcat9-java", "libtomcat10-java"),
    *("ant", "perl-modules-5.36", "perl-modules-5.38", "perl-modules-5.40", "libjetty9-java"),
    *("octave", "erlang-base", "git", "gdb", "binutils-x86-64-linux-gnu", "maxima", "groovy"),
    *("postgresql-15", "postgresql-16", "postgresql-17", "openjdk-17-doc", "php8.2-cli", "rustc"),
)
"""Some of them are in each of the lab's distributions."""
CHUNK_SIZES = (64 * geometry.KIB, 32 * geometry.KIB, 16 * geometry.KIB, 4 * geometry.KIB)
_PACKAGE = re.compile(r"^Package: (\S+)$", re.MULTILINE)
_SIZE = re.compile(r"^Size: ([0-9]+)$", re.MULTILINE)


def chosen(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return a package for each of the paper's: the nearest unused one in size.

    >>> sizes = {"a": 12_000_000, "b": 12_300_000, "c": 6_000_000, "d": 2_000_000, "e": 1, "f": 99}
    >>> chosen(sizes)["WebSphere"], chosen(sizes)["DB2"], chosen(sizes)["TXSERIES"]
    ('b', 'a', 'c')

    :raises harness.CannotRun: there are too few
    """
    if len(sizes) < len(PAPER_MB):
        raise harness.CannotRun(f"apt finds only {', '.join(sizes) or 'none'} of the packages")
    left, found = dict(sizes), {}
    for name, size_mb in sorted(PAPER_MB.items(), key=lambda item: -item[1]):
        wanted = size_mb * 1e6 / DIVISOR
        found[name] = min(left, key=lambda package: (abs(left[package] - wanted), package))
        del left[found[name]]
    return found


def sizes_in(listing: str) -> dict[str, int]:
    """Return sizes in bytes by package, from the output of ``apt-cache show``.

    >>> sizes_in("Package: ant\\nSize: 7\\nSHA256: 0\\n\\nPackage: git\\nSize: 9\\n")
    {'ant': 7, 'git': 9}
    """
    found = {}
    for paragraph in listing.split("\n\n"):
        name, size = _PACKAGE.search(paragraph), _SIZE.search(paragraph)
        if name and size:
            found.setdefault(name[1], int(size[1]))
    return found


@functools.cache
def packages() -> dict[str, pathlib.Path]:
    """Return a file for each of the paper's packages; download missing ones.

    :raises harness.CannotRun: apt does not know them, or cannot download them
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        known = set(runs.tool(["apt-cache", "pkgnames"]).split()).intersection(CANDIDATES)
        listing = runs.tool(["apt-cache", "show", "--no-all-versions", *sorted(known)])
        taken = chosen(sizes_in(listing))
        files = _files(list(taken.values()))
    except errors.Unusable as e:
        raise harness.CannotRun(str(e)) from e
    return {name: files[package] for name, package in taken.items()}


def _files(names: Sequence[str]) -> dict[str, pathlib.Path]:
    """Return the packages' files; download missing ones."""
    found = {}
    for line in runs.tool(["apt-get", "download", "--print-uris", "-qq", *names]).splitlines():
        _, name, size, *_ = line.split()
        file = CACHE / name
        if not file.is_file() or file.stat().st_size != int(size):
            _download(name.partition("_")[0], file)
        found[name.partition("_")[0]] = file
    return found


def _download(package: str, file: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        runs.tool(["env", "--chdir", folder, "apt-get", "download", "-qq", package])
        (pathlib.Path(folder) / file.name).replace(file)


@dataclasses.dataclass(frozen=True)
class Repositories:
    """Images with the common package, and its extents in each."""

    images: collective.Images
    spans: tuple[common_images.Spans, ...]
    common_bytes: int

    def share(self, first: int, second: int, chunk_bytes: int) -> float:
        """Return the share of the common package's chunks in one image that another has."""
        ours, theirs = ((self.images.data(n), self.spans[n]) for n in (first, second))
        return common_images.common_share(ours, theirs, chunk_bytes)


def contents(number: int) -> dict[str, bytes]:
    """Return the files of a repository.

    From the third on, repositories are the first two in turns, with a file of their own in front.
    """
    files = {name: packages()[name].read_bytes() for name in CONTENTS[number % len(CONTENTS)]}
    if number >= len(CONTENTS):
        own = random.Random(number).randbytes(number * 8 * geometry.MIB)
        files = {"own": own, **files}
    return files


_KEPT: dict[tuple[int, int], tuple[tempfile.TemporaryDirectory[str], Repositories]] = {}


def made(count: int = 2, chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES) -> Repositories:
    """Return repositories written through a mount; made once per process.

    :raises harness.CannotRun: there are no packages, or nothing can be mounted
    """
    if (count, chunk_bytes) not in _KEPT:
        folder = tempfile.TemporaryDirectory(prefix="acstor-repositories-")
        images = collective.Images(pathlib.Path(folder.name) / "images")
        try:
            spans = tuple(_write(images, contents(n), chunk_bytes) for n in range(count))
        except errors.Unusable as e:
            raise harness.CannotRun(str(e)) from e
        found = Repositories(images, spans, packages()[COMMON].stat().st_size)
        _KEPT[count, chunk_bytes] = folder, found
    return _KEPT[count, chunk_bytes][1]


def _write(
    images: collective.Images, files: dict[str, bytes], chunk_bytes: int
) -> common_images.Spans:
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    path = images.files.path(image_id)
    spans = common_images.write_image(path, files)[COMMON]
    prehash.prehash(path, images.files.map_path(image_id), image_id, chunk_bytes=chunk_bytes)
    images.ids.append(image_id)
    return spans


def packed_share(chunk_bytes: Sequence[int], more_bytes: int = 0) -> dict[int, float]:
    """Return the common chunks' shares if ``mkfs.ext4 -d`` makes both images.

    :param more_bytes: of a further file in the second one
    """
    ranges: list[common_images.Ranges] = []
    with tempfile.TemporaryDirectory(prefix="acstor-packed-") as text:
        for number in range(len(CONTENTS)):
            folder = pathlib.Path(text) / str(number)
            folder.mkdir()
            for name, data in contents(number).items():
                (folder / name).write_bytes(data)
            if number and more_bytes:
                (folder / "0").write_bytes(bytes(range(1, 251)) * (more_bytes // 250))
            ranges.append(_packed(folder, pathlib.Path(text) / f"{number}.raw"))
        return {size: common_images.common_share(*ranges, size) for size in chunk_bytes}


def _packed(folder: pathlib.Path, image: pathlib.Path) -> common_images.Ranges:
    """Pack a folder into an image; return its bytes and the common package's extents."""
    with image.open("wb") as file:
        file.truncate(common_images.IMAGE_BYTES)
    block = str(common_images.BLOCK_BYTES)
    runs.tool(["mkfs.ext4", "-q", "-F", "-b", block, "-d", folder, image])
    listing = runs.tool(["debugfs", "-R", f"blocks /{COMMON}", image])
    blocks = [int(word) * common_images.BLOCK_BYTES for word in listing.split()]
    return image.read_bytes(), [(offset, common_images.BLOCK_BYTES) for offset in blocks]


def about() -> dict[str, dict[str, str | int]]:
    """Return the package and size that stand for each of the paper's."""
    return {
        name: {"package": file.name.partition("_")[0], "bytes": file.stat().st_size}
        for name, file in packages().items()
    }
