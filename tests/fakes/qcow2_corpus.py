# SPDX-License-Identifier: Apache-2.0
"""Small qcow2 files of all kinds that QEMU's tools make, and their disks' bytes.

``qemu-img convert`` defines the bytes, not this project's code.
"""

import dataclasses
import pathlib
import random
import shutil
import subprocess
import zlib
from collections.abc import Iterator

KIB, MIB = 1024, 1 << 20
CLUSTER_SIZES = [512 << bits for bits in range(13)]

HAS_TOOLS = bool(shutil.which("qemu-img") and shutil.which("qemu-io"))


@dataclasses.dataclass(frozen=True)
class Variant:
    """A recipe for one file.

    :param options: of ``qemu-img create`` and ``convert`` (-o)
    :param is_converted: made from a picture; else created empty
    :param is_compressed: with ``qemu-img convert -c``
    :param commands: first qemu-io commands
    :param image_commands: qemu-img commands after them; ``FILE`` stands for the file
    :param late_commands: qemu-io commands after those
    """

    name: str
    options: str
    size_bytes: int
    is_converted: bool = True
    is_compressed: bool = False
    commands: tuple[str, ...] = ()
    image_commands: tuple[tuple[str, ...], ...] = ()
    late_commands: tuple[str, ...] = ()

    @property
    def has_subclusters(self) -> bool:
        """Whether its L2 entries are extended."""
        return "extended_l2=on" in self.options

    def make(self, folder: pathlib.Path) -> pathlib.Path:
        """Make the file in ``folder`` and return its path."""
        path = folder / "image.qcow2"
        if self.is_converted:
            source = folder / "source.raw"
            source.write_bytes(picture(self.size_bytes, seed=zlib.crc32(self.name.encode())))
            flags = ["-c"] if self.is_compressed else []
            qemu_img("convert", "-f", "raw", "-O", "qcow2", *flags, "-o", self.options,
                     source, path)  # fmt: skip
            source.unlink()
        else:
            qemu_img("create", "-q", "-f", "qcow2", "-o", self.options, path, self.size_bytes)
        qemu_io(path, self.commands)
        for words in self.image_commands:
            qemu_img(*(str(path) if word == "FILE" else word for word in words))
        qemu_io(path, self.late_commands)
        return path


def qemu_img(*words: object) -> None:
    """Run qemu-img; fail if it fails."""
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True, timeout=60)


def qemu_io(path: pathlib.Path, commands: tuple[str, ...]) -> None:
    """Run qemu-io commands on a disk; ``abort`` ends it like a crash."""
    if not commands:
        return
    words = ["qemu-io", "-f", "qcow2", "-d", "unmap", "-t", "unsafe"]
    for command in commands:
        words += ["-c", command]
    run = subprocess.run([*words, str(path)], capture_output=True, text=True, timeout=60)
    said = run.stdout + run.stderr
    is_expected = run.returncode == (0 if "abort" not in commands else -6)
    assert is_expected and "failed" not in said and "rror" not in said, said


def raw_bytes(path: pathlib.Path) -> bytes:
    """Return the disk's bytes as QEMU reads them."""
    raw = path.with_suffix(".raw")
    qemu_img("convert", "-t", "unsafe", "-f", "qcow2", "-O", "raw", path, raw)
    try:
        return raw.read_bytes()
    finally:
        raw.unlink()


def picture(size_bytes: int, seed: int) -> bytes:
    """Return bytes of all kinds: noise, text, zeros, repeats, in random runs."""
    dice = random.Random(seed)
    parts, left = [], size_bytes
    while left:
        length = min(left, dice.choice((512, 3000, 4096, 20_000, 65_536, 200_000)))
        match dice.randrange(5):
            case 0:
                part = dice.randbytes(length)
            case 1 | 2:
                words = dice.randbytes(40).hex().encode()
                part = (words * (length // len(words) + 1))[:length]
            case 3:
                part = bytes(dice.choices(b"abcdef \n", k=length))
            case _:
                part = bytes(length)
        parts.append(part)
        left -= length
    return b"".join(parts)


def variants() -> Iterator[Variant]:
    """Yield all recipes."""
    for cluster_bytes in CLUSTER_SIZES:
        size = min(max(40 * cluster_bytes, MIB // 4), 4 * MIB) + 3 * 512
        of = f"cluster_size={cluster_bytes}"
        yield Variant(f"plain-{cluster_bytes}", of, size)
        yield Variant(f"deflate-{cluster_bytes}", of, size, is_compressed=True)
        zstd = f"{of},compression_type=zstd"
        yield Variant(f"zstd-{cluster_bytes}", zstd, size, is_compressed=True)
        writes = tuple(_random_writes(size, cluster_bytes, seed=cluster_bytes))
        yield Variant(f"written-{cluster_bytes}", of, size, False, commands=writes)
    yield from _of_version_2()
    yield from _with_subclusters()
    yield from _preallocated()
    yield from _with_a_past()


def _of_version_2() -> Iterator[Variant]:
    for cluster_bytes in (512, 4096, 65536, 2 * MIB):
        of = f"compat=0.10,cluster_size={cluster_bytes}"
        yield Variant(f"v2-plain-{cluster_bytes}", of, min(5 * MIB, 400 * cluster_bytes) + 512)
        yield Variant(
            f"v2-deflate-{cluster_bytes}",
            of,
            min(5 * MIB, 400 * cluster_bytes) + 512,
            is_compressed=True,
        )
    snapshot = (("snapshot", "-c", "one", "FILE"),)
    yield Variant(
        "v2-snapshot", "compat=0.10", 3 * MIB, image_commands=snapshot,
        late_commands=("write -P 9 64k 200k", "discard 1M 1M"),
    )  # fmt: skip


def _with_subclusters() -> Iterator[Variant]:
    for cluster_bytes in (16 * KIB, 64 * KIB, 128 * KIB, 2 * MIB):
        of = f"extended_l2=on,cluster_size={cluster_bytes}"
        size = min(40 * cluster_bytes, 6 * MIB) + 512
        writes = tuple(_random_writes(size, cluster_bytes, seed=cluster_bytes + 1))
        yield Variant(f"subclusters-written-{cluster_bytes}", of, size, False, commands=writes)
        yield Variant(f"subclusters-{cluster_bytes}", of, size)
        yield Variant(f"subclusters-deflate-{cluster_bytes}", of, size, is_compressed=True)
        yield Variant(
            f"subclusters-zstd-{cluster_bytes}", f"{of},compression_type=zstd", size,
            is_compressed=True, commands=writes[10:],
        )  # fmt: skip


def _preallocated() -> Iterator[Variant]:
    for how in ("metadata", "falloc", "full"):
        for more in ("", ",cluster_size=512", ",extended_l2=on,cluster_size=128k"):
            of = f"preallocation={how}{more}"
            writes = ("write -P 7 100k 3k", "write -z 200k 64k", "write -P 8 1020k 4k")
            yield Variant(f"preallocated-{how}{more}", of, MIB, False, commands=writes)


def _with_a_past() -> Iterator[Variant]:
    """Yield recipes with more history than writes."""
    yield Variant("empty", "cluster_size=64k", 4 * MIB, False)
    yield Variant("nothing", "cluster_size=64k", 0, False)
    yield Variant("one-sector", "cluster_size=64k", 512, False, commands=("write -P 1 0 512",))
    yield Variant("refcounts-of-1-bit", "refcount_bits=1", 2 * MIB, is_compressed=True)
    yield Variant("refcounts-of-64-bits", "refcount_bits=64,cluster_size=4k", 2 * MIB)
    yield Variant(
        "dirty", "lazy_refcounts=on", 3 * MIB, False,
        commands=("write -P 5 10k 300k", "write -P 6 1M 1M", "flush", "abort"),
    )  # fmt: skip
    snapshots = (("snapshot", "-c", "one", "FILE"), ("snapshot", "-c", "two", "FILE"))
    changes = ("write -P 3 100k 700k", "write -z 900k 300k", "discard 1500k 500k", "write -P 4 0 1")
    yield Variant("snapshots", "cluster_size=64k", 3 * MIB, image_commands=snapshots,
                  late_commands=changes)  # fmt: skip
    yield Variant("snapshots-of-compressed", "cluster_size=16k", 3 * MIB, is_compressed=True,
                  image_commands=snapshots, late_commands=changes)  # fmt: skip
    back = (*snapshots, ("snapshot", "-a", "one", "FILE"), ("snapshot", "-d", "two", "FILE"))
    yield Variant("snapshot-applied", "cluster_size=4k", 3 * MIB, commands=changes,
                  image_commands=back)  # fmt: skip
    yield Variant("grown", "cluster_size=4k", 2 * MIB, is_compressed=True,
                  image_commands=(("resize", "-q", "FILE", "12M"),),
                  late_commands=("write -P 2 11M 100k",))  # fmt: skip
    yield Variant("shrunk", "cluster_size=4k", 2 * MIB,
                  image_commands=(("resize", "-q", "--shrink", "FILE", "700k"),))  # fmt: skip
    yield Variant("with-bitmap", "cluster_size=64k", 2 * MIB,
                  image_commands=(("bitmap", "--add", "FILE", "b0"),),
                  late_commands=("write -P 2 1M 100k",))  # fmt: skip
    yield Variant("amended", "compat=0.10", 2 * MIB,
                  image_commands=(("amend", "-o", "compat=1.1,lazy_refcounts=on", "FILE"),),
                  late_commands=("write -z 1M 100k",))  # fmt: skip
    mixed = ("write -c -P 1 0 64k", "write -P 2 64k 64k", "write -c -P 3 256k 64k",
             "write -P 4 270k 1k", "write -z 400k 300k", "write -c -P 5 448k 64k")  # fmt: skip
    yield Variant("mixed", "cluster_size=64k", MIB, False, commands=mixed)


def _random_writes(size_bytes: int, cluster_bytes: int, seed: int) -> Iterator[str]:
    """Yield compressed writes, then writes, zeros and discards at random places."""
    dice = random.Random(seed)
    clusters = size_bytes // cluster_bytes
    # QEMU refuses a compressed write into an allocated cluster.
    for cluster in sorted(dice.sample(range(clusters), min(10, clusters // 2))):
        yield f"write -c -P {cluster % 255 + 1} {cluster * cluster_bytes} {cluster_bytes}"
    unit = max(512, cluster_bytes // 32)
    for number in range(30):
        at = dice.randrange(size_bytes // unit) * unit
        length = min(dice.randrange(1, 200) * unit, size_bytes - at)
        match dice.randrange(5):
            case 0:
                yield f"write -z {at} {length}"
            case 1:
                yield f"write -z -u {at} {length}"
            case 2:
                yield f"discard {at} {length}"
            case _:
                yield f"write -P {number + 1} {at} {min(length, 8 * unit)}"
