# SPDX-License-Identifier: Apache-2.0
"""A guest's boot, recorded once: QEMU's requests with times, and the boot image.

The guest boots under emulation, with its files in the page cache, so that the time between two
requests has almost no waits.  QEMU's own trace events have the reads and writes, in its block
layer: on a disk that shares its image (qcow2 over the image), and on one that does not (a copy of
the image).  The product's builder makes the boot image with a boot of its own.

Each image is recorded once; the lab's cache stores the recording.
"""

import contextlib
import dataclasses
import fcntl
import json
import pathlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_glance.boot import guest_disk
from acstor_glance.prepare import prehash
from evaluation.bench import boots
from evaluation.bench import harness
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs

VERSION = 1
"""Of recordings; other versions are recorded again."""
EVENTS = ("bdrv_co_preadv_part", "bdrv_co_pwritev_part")
_LINE = re.compile(
    r"^\d+@(?P<at>[0-9.]+):bdrv_co_p(?P<kind>read|write)v_part bs (?P<node>0x[0-9a-f]+) "
    r"offset (?P<offset>\d+) bytes (?P<length>\d+)",
    re.MULTILINE,
)
BUILT, RECORDED = "built.json", "recorded.json"
READ, READ_OWN, WRITE = "r", "o", "w"
"""Reads of the image; of the guest's own file; writes to the guest's own file."""
Op = tuple[float, str, int, int]
"""Seconds since the previous request, kind, offset in its file, length."""


@dataclasses.dataclass(frozen=True)
class Boot:
    """A recorded boot of an image.

    :param folder: of the recording
    :param image: the image, raw and read-only
    """

    folder: pathlib.Path
    image: pathlib.Path

    def ops_file(self, *, is_copied: bool) -> pathlib.Path:
        """Return the requests of a guest that shares the image, or has a copy of it."""
        return self.folder / ("copied.json" if is_copied else "shared.json")

    def ops(self, *, is_copied: bool = False) -> list[Op]:
        """Return the requests in the file; of a guest that shares the image for both its files."""
        return _ops(self.ops_file(is_copied=is_copied))

    @property
    def facts(self) -> dict[str, float]:
        """Facts of the builder's boot and of both recordings."""
        found: dict[str, float] = json.loads((self.folder / BUILT).read_text())
        if (self.folder / RECORDED).exists():
            found |= json.loads((self.folder / RECORDED).read_text())
        return found

    @property
    def trace(self) -> tuple[int, ...]:
        """The boot trace: chunk numbers in the order of first access."""
        return tuple(json.loads((self.folder / "trace.json").read_text()))

    def image_id(self, number: int) -> ids.ImageId:
        """Return the id of one of the images, which all have these bytes."""
        return ids.parse_image_id(str(uuid.uuid5(uuid.NAMESPACE_OID, f"S2 {number}")))

    def map_file(self, number: int) -> pathlib.Path:
        """Return the chunk map of one of the images; make it if it is missing."""
        path = self.folder / f"{number}.acmap"
        if not path.exists():
            prehash.prehash(self.image, path, self.image_id(number))
        return path

    def boot_image_file(self, number: int) -> pathlib.Path:
        """Return the boot image of one of the images; make it if it is missing."""
        path = self.folder / f"{number}.acboot"
        if not path.exists():
            self._write_boot_image(number, path)
        return path

    def _write_boot_image(self, number: int, path: pathlib.Path) -> None:
        image_map = _map(self.map_file(number))
        with self.image.open("rb") as file:
            disk = guest_disk.GuestDisk(file.fileno(), image_map)
            trace = boot_image.ProfiledTrace(self.trace)
            boot_builder.write_boot_image(disk, image_map, trace, path, revision=1)

    @property
    def boot_image_bytes(self) -> int:
        """The length of a boot image."""
        return self.boot_image_file(0).stat().st_size


def ensure(say: harness.Say) -> Boot:
    """Return the recorded boot of the lab's guest image; record it if needed."""
    boot = built(guest_image.ensure(say).raw, say)
    with _locked(boot):
        if not (boot.folder / RECORDED).exists():
            _record(boot, say)
    return boot


def built(image: pathlib.Path, say: harness.Say) -> Boot:
    """Return an image with its boot image; build that if needed."""
    boot = Boot(runs.CACHE_FOLDER / f"s2-{VERSION}-{image.parent.name}", image)
    runs.CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    with _locked(boot):
        if not (boot.folder / BUILT).exists():
            shutil.rmtree(boot.folder, ignore_errors=True)
            boot.folder.mkdir()
            _build(boot, say)
    return boot


@contextlib.contextmanager
def _locked(boot: Boot) -> Iterator[None]:
    """Lock the folder of a recording for one process."""
    with boot.folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(boot: Boot, say: harness.Say) -> None:
    say("the builder boots the image")
    summary = boot_builder.build(boot.image, _map(boot.map_file(0)), boot.folder / "0.acboot")
    head = boot_frames.check_boot_image([(boot.folder / "0.acboot").read_bytes()], "the boot image")
    # The builder's own trace, without zero chunks; the other images' boot images use it.
    (boot.folder / "trace.json").write_text(json.dumps(list(head.trace)))
    facts = {f"build_{key}": value for key, value in dataclasses.asdict(summary).items()}
    del facts["build_path"]
    (boot.folder / BUILT).write_text(json.dumps(facts, indent=1) + "\n")


def _record(boot: Boot, say: harness.Say) -> None:
    """Record both boots of a guest."""
    facts = {}
    for name in ("shared", "copied"):
        say(f"a guest boots, recorded: {name}")
        facts |= {f"{name}_{key}": value for key, value in _record_one(boot, name).items()}
    (boot.folder / RECORDED).write_text(json.dumps(facts, indent=1) + "\n")


def _record_one(boot: Boot, name: str) -> dict[str, float]:
    with runs.Run() as run:
        host = local.LocalHost("h1", "", local.LOOPBACK, run.folder)
        boots.read_whole(boot.image)
        if name == "shared":
            disk, disk_format = boots.overlay(host, boot.image), "qcow2"
        else:
            disk, disk_format = run.folder / "disk.raw", "raw"
            runs.tool(["cp", "--sparse=always", boot.image, disk])
        with Traced(host, disk, cache="writethrough", disk_format=disk_format) as booted:
            seen = booted.wait_booted()
            ended = time.time()
        ops = requests(booted.traced.read_text(), ended, shares_image=name == "shared")
    (boot.folder / f"{name}.json").write_text(json.dumps(ops))
    login_s = seen.login_s or 0.0
    return {"login_s": round(login_s, 2), "ops": len(ops)}


class Traced(guest.Guest):
    """A guest whose QEMU traces the requests for each file."""

    @property
    def traced(self) -> pathlib.Path:
        """The path of the trace."""
        return self.disk.with_suffix(".trace")

    def _argv(self) -> list[str]:
        events = [word for event in EVENTS for word in ("-trace", f"enable={event}")]
        return [*super()._argv(), *events, "-D", str(self.traced), "-msg", "timestamp=on"]


def requests(text: str, ended: float, *, shares_image: bool) -> list[Op]:
    """Return the requests for files in QEMU's trace until a time.

    QEMU's block layer has a node for each format and one below it for its file; the trace has a
    request for each node that it passes.  A node first appears after those above it, except for a
    qcow2 file, whose header is read before all.
    """
    lines = [
        (float(at), kind, node, int(offset), int(length))
        for at, kind, node, offset, length in _LINE.findall(text)
    ]
    nodes = list(dict.fromkeys(node for _, _, node, _, _ in lines))
    if len(nodes) != (4 if shares_image else 2):
        raise errors.Unusable(boot_guest.QEMU, f"its trace has {len(nodes)} nodes")
    own, image = (nodes[0], nodes[3]) if shares_image else (nodes[1], None)
    ops: list[Op] = []
    last_s = lines[0][0]
    for at_s, kind, node, offset, length in lines:
        if at_s <= ended and node in (own, image):
            is_image = node == image or image is None
            name = WRITE if kind == "write" else READ if is_image else READ_OWN
            ops.append((round(at_s - last_s, 6), name, offset, length))
            last_s = at_s
    return ops


def _ops(path: pathlib.Path) -> list[Op]:
    return [(*op,) for op in json.loads(path.read_text())]


def _map(path: pathlib.Path) -> chunk_map.ChunkMap:
    return chunk_map.ChunkMap.parse(path.read_bytes(), str(path))
