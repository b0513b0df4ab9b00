# SPDX-License-Identifier: Apache-2.0
"""Guests that boot with and without boot images, for P6, P12b and S2's page."""

import dataclasses
import mmap
import os
import pathlib
from typing import Any

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.boot import boot_builder
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import local
from tests.lab import network
from tests.lab import runs

READY_S = 120.0


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The lab's image at a source: raw, with chunk map and boot image."""

    images: local.ImageFolder
    image_id: ids.ImageId
    image: pathlib.Path
    head: boot_image.Head
    summary: dict[str, Any]


def prepare(folder: pathlib.Path, say: harness.Say) -> Prepared:
    """Copy the lab's image, hash it, and build its boot image."""
    source = guest_image.ensure(say).raw
    images = local.ImageFolder(folder / "images")
    image_id = images.adopt(source)
    image = images.path(image_id)
    map_of = chunk_map.ChunkMap.parse(images.map_path(image_id).read_bytes(), "the map")
    say("the builder boots the image")
    summary = boot_builder.build(image, map_of, images.boot_image_path(image_id))
    say(f"built: {summary}")
    raw = images.boot_image_path(image_id).read_bytes()
    head = boot_frames.check_boot_image([raw], "the boot image")
    return Prepared(images, image_id, image, head, dataclasses.asdict(summary))


def wait_ready(agent: agents.Agent, image_id: ids.ImageId) -> None:
    """Let an agent load a boot image, and wait until it is in memory."""
    agents.request(agent.control_socket, "attach-image", image_id=image_id)

    def is_ready() -> bool:
        shown = agent.status()["images"][image_id]["boot_image"]
        if shown and shown["state"] in ("none", "ignored", "refused", "failed"):
            raise errors.Unusable("boot image", shown["state"])
        return bool(shown and shown["state"] == "ready")

    runs.wait_for(is_ready, READY_S, "the boot image", agent.log)


def read_whole(path: pathlib.Path, *, is_direct: bool = False) -> None:
    """Read a whole file, past the page cache if ``is_direct``."""
    buffer = mmap.mmap(-1, geometry.MIB)
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if is_direct else 0))
    with open(descriptor, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def forget(path: pathlib.Path) -> None:
    """Sync a file and drop it from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def overlay(host: network.Host, backing: pathlib.Path) -> pathlib.Path:
    """Make a guest's disk."""
    size_bytes = backing.stat().st_size
    return guest.make_overlay(host.folder / "disk.qcow2", backing, "raw", size_bytes)


def login_s(host: network.Host, backing: pathlib.Path) -> float:
    """Boot a guest and return the seconds to its login prompt.

    QEMU uses the page cache (``writeback``), as on acstor's disks in Nova.
    """
    with guest.Guest(host, overlay(host, backing), cache="writeback") as booted:
        seen = booted.wait_booted()
    if seen.login_s is None:
        raise errors.Unusable("guest", "no login prompt")
    return seen.login_s
