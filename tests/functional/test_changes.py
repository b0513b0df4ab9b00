# SPDX-License-Identifier: Apache-2.0
"""Flattening base and delta of a QEMU disk gives the bytes of QEMU's own conversion."""

import dataclasses
import pathlib
import random
import subprocess
import zlib
from collections.abc import Iterator

import pytest

from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_glance.prepare import image_file
from tests.fakes import changed_disks
from tests.fakes import qcow2_corpus
from tests.fakes import qcow2_readers
from tests.fakes.qcow2_corpus import MIB

pytestmark = pytest.mark.skipif(
    not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A base and an overlay on it.

    :param base: options (-o) of the base; "raw" makes a raw one
    :param base_bytes: its size
    :param overlay: options of the overlay
    :param size_bytes: of the overlay's disk; None: the base's
    :param is_compressed: the base
    """

    name: str
    base: str
    base_bytes: int
    overlay: str
    size_bytes: int | None = None
    is_compressed: bool = False
    commands: tuple[str, ...] = ()
    image_commands: tuple[tuple[str, ...], ...] = ()

    @property
    def base_format(self) -> str:
        return "raw" if self.base == "raw" else "qcow2"

    def make(self, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
        """Make both files and return their paths."""
        base, overlay = folder / "base", folder / "overlay.qcow2"
        source = folder / "source"
        source.write_bytes(qcow2_corpus.picture(self.base_bytes, zlib.crc32(self.name.encode())))
        if self.base == "raw":
            source.rename(base)
        else:
            flags = ["-c"] if self.is_compressed else []
            qcow2_corpus.qemu_img("convert", "-t", "unsafe", "-f", "raw", "-O", "qcow2", *flags,
                                  "-o", self.base, source, base)  # fmt: skip
            source.unlink()
        size = [] if self.size_bytes is None else [self.size_bytes]
        qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", "-b", base, "-F", self.base_format,
                              "-o", self.overlay, overlay, *size)  # fmt: skip
        qcow2_corpus.qemu_io(overlay, self.commands or tuple(self._writes()))
        for words in self.image_commands:
            qcow2_corpus.qemu_img(*(str(overlay) if word == "FILE" else word for word in words))
        return base, overlay

    def _writes(self) -> Iterator[str]:
        dice = random.Random(self.name)
        size = -(-(self.base_bytes if self.size_bytes is None else self.size_bytes) // 512) * 512
        options = dict(word.split("=") for word in self.overlay.split(","))
        cluster = int(options["cluster_size"])
        for number in dice.sample(range(size // cluster), min(6, size // cluster)):
            if "preallocation" not in options:  # QEMU does not compress into allocated clusters
                yield f"write -c -P {number % 255 + 1} {number * cluster} {cluster}"
        for _ in range(16):
            at = dice.randrange(size // 512) * 512
            length = min(dice.choice((512, 4096, cluster // 4 // 512 * 512 or 512, 3 * cluster)),
                         size - at)  # fmt: skip
            kind = dice.choice(("write -z", "write -z -u", "discard", "write -P 7", "write -P 9"))
            yield f"{kind} {at} {length}"


def cases() -> Iterator[Case]:
    overlays = ["cluster_size=65536", "cluster_size=65536,extended_l2=on", "cluster_size=4096",
                "cluster_size=2097152", "cluster_size=131072,extended_l2=on,compression_type=zstd",
                "cluster_size=16384,compat=0.10"]  # fmt: skip
    for number, cluster in enumerate((512, 4096, 16384, 65536, 262144, 2 * MIB)):
        for more, kind in enumerate(("plain", "deflate", "zstd"), 1):
            size = min(max(30 * cluster, MIB), 9 * MIB) + 3 * 512
            of = f"cluster_size={cluster}" + (",compression_type=zstd" if kind == "zstd" else "")
            for overlay in (overlays[number % 6], overlays[(number + more) % 6]):
                yield Case(f"{kind}-{cluster}-{overlay}", of, size, overlay,
                           is_compressed=kind != "plain")  # fmt: skip
    for overlay in overlays:
        yield Case(f"raw-{overlay}", "raw", 5 * MIB + 512, overlay)
        yield Case(f"raw-odd-{overlay}", "raw", 3 * MIB + 33, overlay, 3 * MIB + 512)
        yield Case(f"longer-{overlay}", "cluster_size=65536", 3 * MIB + 512, overlay,
                   9 * MIB + 1536, is_compressed=True)  # fmt: skip
        yield Case(f"longer-by-a-sector-{overlay}", "cluster_size=65536", 3 * MIB + 512, overlay,
                   3 * MIB + 1024, is_compressed=True)  # fmt: skip
        yield Case(f"shorter-{overlay}", "cluster_size=65536", 5 * MIB, overlay,
                   3 * MIB + 1536, is_compressed=True)  # fmt: skip
    for how in ("metadata", "falloc", "full"):  # clusters allocated, but not written
        yield Case(f"preallocated-{how}", "cluster_size=4096", 3 * MIB,
                   f"cluster_size=131072,extended_l2=on,preallocation={how}", 4 * MIB)  # fmt: skip
    yield Case("base-preallocated", "cluster_size=65536,preallocation=metadata", 3 * MIB,
               overlays[0])  # fmt: skip
    yield Case("base-with-subclusters", "cluster_size=65536,extended_l2=on", 3 * MIB, overlays[1])
    yield Case("untouched", "cluster_size=65536", 3 * MIB, overlays[0], is_compressed=True,
               commands=("read 0 512",))  # fmt: skip
    yield Case("rewritten", "cluster_size=65536", 3 * MIB, overlays[0], is_compressed=True,
               commands=("write -P 3 0 3M",))  # fmt: skip
    yield Case("wiped", "cluster_size=65536", 3 * MIB, overlays[0], is_compressed=True,
               commands=("write -z 0 3M",))  # fmt: skip
    yield Case("dirty", "cluster_size=65536", 3 * MIB, overlays[0] + ",lazy_refcounts=on",
               commands=("write -P 5 10k 300k", "write -P 6 1M 1M", "flush", "abort"))  # fmt: skip
    yield Case("resized", "cluster_size=65536", 3 * MIB, overlays[0], is_compressed=True,
               image_commands=(("resize", "-q", "FILE", "7M"),
                               ("resize", "-q", "--shrink", "FILE", "2M"),
                               ("resize", "-q", "FILE", "4M")))  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_flattened_disk_equals_what_qemu_reads(tmp_path: pathlib.Path, case: Case) -> None:
    base_path, overlay_path = case.make(tmp_path)
    expected = qcow2_corpus.raw_bytes(overlay_path)
    with image_file.open_image(overlay_path) as file:
        stream = changed_disks.stream_of(qcow2.Qcow2(file, may_have_backing=True))
    with image_file.open_image(base_path) as file:
        base = changed_disks.base_of(file, case.base_format)
        assert b"".join(changed_disks.compose(stream, base, "raw")) == expected
        composed = tmp_path / "composed.qcow2"
        changed_disks.write(composed, changed_disks.compose(stream, base, "qcow2"))
    check(composed)
    assert qcow2_corpus.raw_bytes(composed) == expected
    qcow2_readers.check(composed, expected)
    qcow2_corpus.qemu_img("compare", "-f", "qcow2", "-F", "qcow2", composed, overlay_path)


def check(path: pathlib.Path) -> None:
    """Let QEMU check the file for errors and leaks."""
    run = subprocess.run(
        ["qemu-img", "check", "-f", "qcow2", path], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_unchanged_compressed_clusters_stay_compressed(tmp_path: pathlib.Path) -> None:
    case = Case("carried", "cluster_size=65536", 8 * MIB, "cluster_size=65536",
                is_compressed=True, commands=("write -P 1 1M 64k",))  # fmt: skip
    base_path, overlay_path = case.make(tmp_path)
    with image_file.open_image(overlay_path) as file:
        stream = changed_disks.stream_of(qcow2.Qcow2(file, may_have_backing=True))
    composed = tmp_path / "composed.qcow2"
    with image_file.open_image(base_path) as file:
        base = changed_disks.base_of(file, "qcow2")
        changed_disks.write(composed, changed_disks.compose(stream, base, "qcow2"))
    assert composed.stat().st_size < base_path.stat().st_size + 4 * 65536


def test_nearly_empty_disk_of_64_tebibytes_is_flattened(tmp_path: pathlib.Path) -> None:
    base_path, overlay_path = tmp_path / "base", tmp_path / "overlay.qcow2"
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", base_path, 64 << 40)
    qcow2_corpus.qemu_io(base_path, ("write -P 1 0 1M", "write -P 2 40T 1M"))
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", "-b", base_path, "-F", "qcow2",
                          overlay_path)  # fmt: skip
    qcow2_corpus.qemu_io(overlay_path, ("write -P 3 512k 1M", "write -P 4 65535G 1M"))
    composed = tmp_path / "composed.qcow2"
    with image_file.open_image(overlay_path) as file:
        stream = changed_disks.stream_of(qcow2.Qcow2(file, 64 << 40, may_have_backing=True))
    with image_file.open_image(base_path) as file:
        base = qcow2.Qcow2(file, 64 << 40)
        changed_disks.write(composed, changed_disks.compose(stream, base, "qcow2"))
    check(composed)
    qcow2_corpus.qemu_img("compare", "-f", "qcow2", "-F", "qcow2", composed, overlay_path)
    assert composed.stat().st_size < 8 * MIB


def test_overlay_is_refused_as_an_image(tmp_path: pathlib.Path) -> None:
    _, overlay_path = Case("refused", "raw", MIB, "cluster_size=65536").make(tmp_path)
    with image_file.open_image(overlay_path) as file:
        with pytest.raises(qcow2_header.Refused) as caught:
            qcow2.Qcow2(file)
    assert caught.value.reason is qcow2_header.RefusalReason.BACKING_FILE
