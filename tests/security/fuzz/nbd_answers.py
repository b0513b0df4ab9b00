# SPDX-License-Identifier: Apache-2.0
"""Target: all messages of a QEMU over NBD while a checkpoint is read, over a real socket.

The disk ends in a short chunk, and its status needs three requests.

"""

import functools
import struct
import threading

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import rate_limit
from acstor_common import errors
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from tests.fakes import checkpoint_copies
from tests.fakes import nbd_server as fake
from tests.security.fuzz import checkpoints
from tests.security.fuzz.target import Target

GIB = 1 << 30
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES = 2 * GIB + CHUNK + 512
CONTEXT = "qemu:dirty-bitmap:since"
CUT = geometry.Geometry(DISK_BYTES, CHUNK)
SUBJECT = checkpoints.SUBJECT._replace(cut=CUT)
TIMEOUT_S = 1.0

Taken = tuple[list[checkpoint_manifest.Entry], checkpoint_copies.Holder, disk_capture.DiskCapture]


@functools.cache
def _qemu() -> fake.Repeater:
    return fake.Repeater(DISK_BYTES)


def _capture(data: bytes) -> Taken:
    """Capture the writes since an empty checkpoint from a server that sends ``data``."""
    before = checkpoint_manifest.build(SUBJECT, ())
    manifest = checkpoint_manifest.Manifest.parse(before, "before")
    _qemu().said = data
    with nbd_client.ExportedDisk(_qemu().export, CONTEXT, TIMEOUT_S) as disk:
        holder, free = checkpoint_copies.Holder(), rate_limit.RateLimit(0, threading.Event())
        taking = disk_capture.DiskCapture(disk, CHUNK, checkpoints.SEAL, holder, free)
        seen = disk_capture.ChangedRanges(
            manifest,
            lambda: (
                extent[:2] for extent in disk.iter_extents() if extent.flags & nbd_client.DIRTY
            ),
            lambda: (),
        )
        return list(taking.iter_entries(seen)), holder, taking


def _check(taken: Taken, _data: bytes) -> None:
    """Check that it gives a manifest, and that the vault holds each chunk named in it."""
    entries, holder, taking = taken
    manifest = checkpoint_manifest.build(SUBJECT, entries)
    names = checkpoint_manifest.Manifest.parse(manifest, "it").iter_names()
    assert not holder.missing_names(sorted(set(names)))
    assert taking.read_bytes == taking.changed_bytes <= DISK_BYTES


def export_info(size_bytes: int) -> bytes:
    return struct.pack(">HQH", 0, size_bytes, 3)


def status(cookie: int, *extents: tuple[int, int]) -> bytes:
    body = b"".join(struct.pack(">II", *extent) for extent in extents)
    return fake.reply(5, struct.pack(">I", 7) + body, cookie)


AGREED = fake.AGREED.replace(export_info(fake.MIB), export_info(DISK_BYTES)).replace(
    fake.option(4, struct.pack(">I", 7) + nbd_client.ALLOCATION.encode(), 10),
    fake.option(4, struct.pack(">I", 7) + CONTEXT.encode(), 10),
)


def _data(cookie: int, at: int, data: bytes, flags: int = 1) -> bytes:
    return fake.reply(1, struct.pack(">Q", at) + data, cookie, flags)


def _hole(cookie: int, at: int, length: int, flags: int = 1) -> bytes:
    return fake.reply(2, struct.pack(">QI", at, length), cookie, flags)


def _seeds() -> list[bytes]:
    first, last = status(1, (CHUNK, 1), (GIB - CHUNK, 0)), status(3, (CHUNK + 512, 1))
    return [
        AGREED
        + (first + status(2, (GIB, 0)) + last)
        + (_data(4, 512, b"a" * 512, 0) + _hole(4, 0, 512, 0) + _hole(4, 1024, CHUNK - 1024, 0))
        + (fake.reply(0, b"", 4) + _hole(5, 2 * GIB, CHUNK, 0))
        + _data(5, 2 * GIB + CHUNK, b"b" * 512),
        AGREED + status(1, (GIB, 0)) + status(2, (GIB, 2)) + status(3, (1 << 31, 0)),
        AGREED + first + fake.reply(0x8001, struct.pack(">IH", 5, 3) + b"bad", 2),
        fake.GREETING + fake.option(1 << 31 | 6, b"no such export", 8),
    ]


NBD_ANSWERS = Target(
    "nbd_answers", _capture, (errors.Unusable,), _seeds, _check, max_bytes=40_000, time_limit_s=4.0
)

ALL = (NBD_ANSWERS,)
