# SPDX-License-Identifier: Apache-2.0
"""Messages about replicas of images; a fault is a ValueError or struct.error.

A host whose instances use an image asks others to keep shares for a lease; they report progress.
"""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple
from typing import TypeVar

from acstor_common.model import ids

MAX_REQUESTS = 256
MAX_REPORTS = 128
MAX_LEASE_S = 24 * 3600  # longest lease; a longer one is a protocol violation
MAX_BYTES = (1 << 63) - 1

_KEEP = struct.Struct(">16sI")  # image, lease
_EPOCH = struct.Struct(">Q")
_KEPT = struct.Struct(">16sBQQ")  # image, state, total, remaining

MAX_REQUEST_BYTES = MAX_REQUESTS * _KEEP.size
MIN_REQUEST_BYTES = _KEEP.size
MAX_REPORT_BYTES = _EPOCH.size + MAX_REPORTS * _KEPT.size
MIN_REPORT_BYTES = _EPOCH.size + _KEPT.size


class ShareState(enum.IntEnum):
    """State of a host's share of an image."""

    KEPT = 1  # the rest is being fetched
    NO_ROOM = 2  # no space in its cache
    FAILING = 3  # fetching failed; it is retried
    REFUSED = 4  # the source has no such image, or denies this host
    CROWDED = 5  # its limit of images for other hosts is reached


class Lease(NamedTuple):
    """An image that instances of the sender use, and for how long to keep it; 0 s: release it."""

    image_id: ids.ImageId
    lease_s: int


class ReplicaRequest(NamedTuple):
    """Asks a host to keep its shares of 1 to 256 images."""

    leases: tuple[Lease, ...]


class ImageShare(NamedTuple):
    """State of the sender's share of one image: its chunks, and those not cached."""

    image_id: ids.ImageId
    state: ShareState
    total_bytes: int
    left_bytes: int


class ReplicaReport(NamedTuple):
    """Reports 1 to 128 shares, which the table of ``ring_epoch`` determined."""

    ring_epoch: int
    shares: tuple[ImageShare, ...]


_T = TypeVar("_T", Lease, ImageShare)


def encode_request(keep: ReplicaRequest) -> bytes:
    """Return the body of a Keep."""
    _check_leases(keep.leases)
    return b"".join(
        _KEEP.pack(ids.image_id_bytes(lease.image_id), lease.lease_s) for lease in keep.leases
    )


def decode_request(body: bytes) -> ReplicaRequest:
    """Return the Keep of a body."""
    if len(body) % _KEEP.size:
        raise ValueError(f"{len(body)} bytes of leases")
    found = (Lease(ids.image_id_from_bytes(raw), s) for raw, s in _KEEP.iter_unpack(body))
    leases = tuple(found)
    _check_leases(leases)
    return ReplicaRequest(leases)


def encode_report(kept: ReplicaReport) -> bytes:
    """Return the body of a Kept."""
    _check_shares(kept.shares)
    return _EPOCH.pack(kept.ring_epoch) + b"".join(
        _KEPT.pack(ids.image_id_bytes(share.image_id), *share[1:]) for share in kept.shares
    )


def decode_report(body: bytes) -> ReplicaReport:
    """Return the Kept of a body."""
    (ring_epoch,) = _EPOCH.unpack_from(body)
    if (len(body) - _EPOCH.size) % _KEPT.size:
        raise ValueError(f"{len(body)} bytes of shares")
    shares = tuple(_shares_in(body[_EPOCH.size :]))
    _check_shares(shares)
    return ReplicaReport(ring_epoch, shares)


def _shares_in(body: bytes) -> Iterator[ImageShare]:
    for raw, state, total_bytes, left_bytes in _KEPT.iter_unpack(body):
        yield ImageShare(ids.image_id_from_bytes(raw), ShareState(state), total_bytes, left_bytes)


def _check_leases(leases: tuple[Lease, ...]) -> None:
    _check_images(leases, MAX_REQUESTS)
    for lease in leases:
        if not 0 <= lease.lease_s <= MAX_LEASE_S:
            raise ValueError(f"a lease of {lease.lease_s} s")


def _check_shares(shares: tuple[ImageShare, ...]) -> None:
    _check_images(shares, MAX_REPORTS)
    for share in shares:
        if not 0 <= share.left_bytes <= share.total_bytes <= MAX_BYTES:
            raise ValueError(f"{share.left_bytes} of {share.total_bytes} bytes are left")


def _check_images(entries: tuple[_T, ...], limit: int) -> None:
    if not 1 <= len(entries) <= limit:
        raise ValueError(f"{len(entries)} images")
    if len({entry.image_id for entry in entries}) != len(entries):
        raise ValueError("an image twice")
