# SPDX-License-Identifier: Apache-2.0
"""Differential fuzzing: QEMU makes random qcow2 images, and damage changes them.

Of each of QEMU's images, the first of VARIANTS is unchanged, and the others are damaged.  A seed
and a number define an image.
"""

import dataclasses
import pathlib
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator

from tests.fakes import qcow2_corpus
from tests.outside import bounded
from tests.outside import judge
from tests.outside import overlays

VARIANTS = 8
MAX_FILE_BYTES = 64 << 20
STEP_CPU_S = 2  # some changes of refcount_bits take QEMU half a minute
_CLUSTERS = (512, 1024, 4096, 4096, 16384, 65536, 65536, 65536, 262_144, 2 << 20)
_BITMAPS = 0x23852875


@dataclasses.dataclass(frozen=True)
class Options:
    """Parameters of an image.

    :param options: of ``qemu-img create`` and ``convert`` (-o)
    :param source: kind of the source: ``none``, ``stored`` or ``compressed``
    """

    options: str
    cluster_bytes: int
    size_bytes: int
    source: str


def choose_options(dice: random.Random) -> Options:
    """Return random options that QEMU accepts."""
    cluster_bytes = dice.choice(_CLUSTERS)
    source = dice.choice(("none", "none", "stored", "compressed"))
    size_bytes = min(dice.randrange(1, 60) * cluster_bytes, 3 << 20) + dice.randrange(4) * 512
    words = [f"cluster_size={cluster_bytes}"]
    if dice.random() < 0.15:
        words.append("compat=0.10")
        return Options(",".join(words), cluster_bytes, size_bytes, source)
    if dice.random() < 0.3:
        words.append(f"refcount_bits={dice.choice((1, 2, 4, 8, 32, 64))}")
    if dice.random() < 0.3:
        words.append("lazy_refcounts=on")
    if dice.random() < 0.4:
        words.append("compression_type=zstd")
    if cluster_bytes >= 16384 and dice.random() < 0.1:
        words.append("extended_l2=on")
    if source == "none" and dice.random() < 0.2:
        words.append(f"preallocation={dice.choice(('metadata', 'falloc', 'full'))}")
    return Options(",".join(words), cluster_bytes, size_bytes, source)


def choose_steps(dice: random.Random, of: Options, name: str) -> Iterator[list[str]]:
    """Yield random commands of QEMU's tools; some of them may fail."""
    for _ in range(dice.randrange(1, 5)):
        match dice.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                yield _writes(dice, of, name)
            case 5 | 6:
                action = dice.choice(("-c", "-c", "-a", "-d"))
                yield ["qemu-img", "snapshot", action, dice.choice("abc"), name]
            case 7 | 8:
                action = dice.choice(("--add", "--add", "--disable", "--clear", "--remove"))
                grain = ["-g", dice.choice(("512", "4k", "64k"))] if action == "--add" else []
                yield ["qemu-img", "bitmap", action, *grain, name, dice.choice("xyz")]
            case _:
                yield _change(dice, name)


def _writes(dice: random.Random, of: Options, name: str) -> list[str]:
    words = ["qemu-io", "-f", "qcow2", "-d", "unmap", "-t", "unsafe"]
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(max(1, of.size_bytes // 512)) * 512
        length = min(dice.randrange(1, 400) * 512, max(512, of.size_bytes - at))
        at_cluster = at - at % of.cluster_bytes
        command = dice.choice(
            (
                f"write -P {dice.randrange(1, 256)} {at} {length}",
                f"write -P {dice.randrange(1, 256)} {at} 512",
                f"write -c -P {dice.randrange(1, 256)} {at_cluster} {of.cluster_bytes}",
                f"write -z {at} {length}",
                f"write -z -u {at} {length}",
                f"discard {at} {length}",
            )
        )
        words += ["-c", command]
    if dice.random() < 0.05:
        words += ["-c", "flush", "-c", "abort"]  # as a crash would
    return [*words, name]


def _change(dice: random.Random, name: str) -> list[str]:
    size = dice.randrange(1, 8000) * 512
    return dice.choice(
        (
            ["qemu-img", "resize", "-q", "--shrink", name, str(size)],
            ["qemu-img", "amend", "-o", "compat=1.1", name],
            ["qemu-img", "amend", "-o", "lazy_refcounts=off", name],
            ["qemu-img", "amend", "-o", f"refcount_bits={dice.choice((8, 16, 64))}", name],
            ["qemu-img", "check", "-q", "-r", "all", name],
        )
    )


def make_image(dice: random.Random, folder: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Return an image made by QEMU, and its description."""
    image, of = folder / "image.qcow2", choose_options(dice)
    if of.source == "none":
        made = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", of.options, image, of.size_bytes]
    else:
        source = folder / "source"
        source.write_bytes(qcow2_corpus.picture(of.size_bytes, dice.randrange(1 << 30)))
        flags = ["-c"] if of.source == "compressed" else []
        made = ["qemu-img", "convert", *flags, "-f", "raw", "-O", "qcow2", "-o", of.options]
        made += [source, image]
    done = bounded.run(made, MAX_FILE_BYTES)
    if done.status:
        raise RuntimeError(f"QEMU does not take {of.options}: {done.said}")
    steps = list(choose_steps(dice, of, str(image)))
    for words in steps:
        bounded.run(list(words), MAX_FILE_BYTES, STEP_CPU_S)
    reported = [" ".join(words).replace(str(image), "IMAGE") for words in steps]
    return image, "; ".join([f"{of.source}, {of.size_bytes} bytes, {of.options}", *reported])


def find_areas(data: bytes) -> list[tuple[int, int]]:
    """Return offset and length of header and tables, found without acstor's code."""
    l1_entries, l1_at, refcounts_at = struct.unpack_from(">IQQ", data, 36)
    snapshots_at = struct.unpack_from(">Q", data, 64)[0]
    areas = [(0, 112), (0, 112), (100, 200), (l1_at, 8 * min(l1_entries, 8)), (refcounts_at, 8)]
    for index in range(min(l1_entries, 4)):
        at = l1_at + 8 * index
        if at + 8 <= len(data):
            l2_at = struct.unpack_from(">Q", data, at)[0] & (1 << 56) - 512
            areas += [(l2_at, 128), (l2_at, 512)] if l2_at else []
    if struct.unpack_from(">I", data, 60)[0]:
        areas += [(snapshots_at, 120)] * 3
    at = data.find(struct.pack(">II", _BITMAPS, 24), 0, 4096)
    if at >= 0:
        directory_at = struct.unpack_from(">Q", data, at + 24)[0]
        areas += [(at, 32), (directory_at, 80), (directory_at, 80)]
        if directory_at + 8 <= len(data):
            areas.append((struct.unpack_from(">Q", data, directory_at)[0], 16))
    areas.append((0, len(data)))
    return [(at, length) for at, length in areas if at + length <= len(data)]


def damage(dice: random.Random, whole: bytes) -> bytes:
    """Return a file with one to three changes."""
    data, areas = bytearray(whole), find_areas(whole)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if dice.random() < 0.04:
            del data[dice.randrange(len(data) + 1) :]
            continue
        start, length = dice.choice(areas)
        width = dice.choice((1, 1, 2, 4, 8))
        at = start + dice.randrange(length)
        was = int.from_bytes(data[at : at + width], "big")
        values = (
            was ^ 1 << dice.randrange(8 * width), was + 1, was - 1, was * 2, 0, (1 << 64) - 1,
            len(whole), dice.choice(areas)[0], dice.randrange(1 << 64), dice.randrange(64),
        )  # fmt: skip
        data[at : at + width] = (dice.choice(values) % (1 << 8 * width)).to_bytes(width, "big")
    return bytes(data)


def judge_images(
    seed: int, first: int, count: int, stop_s: float, kept: pathlib.Path
) -> Iterator[judge.Row]:
    """Judge images from ``first`` on; copy those with a fault to ``kept``.

    :param stop_s: monotonic time after which no further image starts
    """
    with tempfile.TemporaryDirectory(prefix="acstor-fuzz-") as work:
        folder = pathlib.Path(work)
        made, whole, how = -1, b"", ""
        for number in range(first, first + count):
            if time.monotonic() > stop_s:
                return
            if number // VARIANTS != made:
                made = number // VARIANTS
                image, how = make_image(random.Random(f"{seed}/{made}"), folder)
                whole = image.read_bytes()
            name = f"seed {seed}, number {number}: {how}"
            yield _judge(name, number, seed, whole, folder, kept)


def _judge(
    name: str, number: int, seed: int, whole: bytes, folder: pathlib.Path, kept: pathlib.Path
) -> judge.Row:
    image, is_whole = folder / "judged.qcow2", number % VARIANTS == 0
    data = whole if is_whole else damage(random.Random(f"{seed}/{number}"), whole)
    image.write_bytes(data)
    row = judge.judge_image(name, image, "qcow2", judge.prepare_qcow2)
    if not is_whole and row.verdict is judge.Verdict.TOO_STRICT:
        # qemu-img check misses tables outside of the file, which QEMU reads as zeros.
        row = row._replace(verdict=judge.Verdict.STRICTER)
    if is_whole and row.verdict is judge.Verdict.EQUAL:
        difference = overlays.find_flatten_difference(image, folder)
        if difference:
            row = row._replace(acstor=difference, verdict=judge.Verdict.DIFFERENT)
    if is_whole and row.verdict is judge.Verdict.STRICTER:
        difference = overlays.find_reader_difference(image, folder)
        if difference:
            row = row._replace(acstor=difference, verdict=judge.Verdict.DIFFERENT)
    if row.verdict.is_fault:
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, kept / f"fuzz-{seed}-{number}.qcow2")
    image.unlink()
    return row
