# SPDX-License-Identifier: Apache-2.0
"""What agents say to each other of images that stay whole in the cloud, and its bytes.

A host on which instances use an image asks the others to keep their shares of it (Keep), for a
while; each of them says how far its share is (Kept).

A fault is a ValueError or struct.error here.
"""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple
from typing import TypeVar

from acstor_common.model import ids

MAX_REQUESTS = 256
MAX_REPORTS = 128
MAX_LEASE_S = 24 * 3600
"""Who asks for more breaks the protocol: nobody keeps a thing for ever because of one message."""
MAX_BYTES = (1 << 63) - 1

_KEEP = struct.Struct(">16sI")  # image, lease
_EPOCH = struct.Struct(">Q")
_KEPT = struct.Struct(">16sBQQ")  # image, state, total, left

MAX_REQUEST_BYTES = MAX_REQUESTS * _KEEP.size
MIN_REQUEST_BYTES = _KEEP.size
MAX_REPORT_BYTES = _EPOCH.size + MAX_REPORTS * _KEPT.size
MIN_REPORT_BYTES = _EPOCH.size + _KEPT.size


class ShareState(enum.IntEnum):
    """What a host says of its share of an image."""

    KEPT = 1  # what is left of it, if anything, is being fetched
    NO_ROOM = 2  # its cache has no room for it
    FAILING = 3  # it cannot be had now; it is tried again
    REFUSED = 4  # the source has no such image, or does not let this host read it
    CROWDED = 5  # it keeps as many images for others as it may


class Lease(NamedTuple):
    """One image that instances of the sender use.

    :param lease_s: for so long the receiver keeps its share, unless it is told again; 0: the image
        is used no longer
    """

    image_id: ids.ImageId
    lease_s: int


class ReplicaRequest(NamedTuple):
    """Asks a host to keep its shares of images.

    :param leases: 1 to 256 of them, no image twice
    """

    leases: tuple[Lease, ...]


class Share(NamedTuple):
    """How far the sender's share of one image is.

    :param total_bytes: of the contents that belong to it
    :param left_bytes: what of them is not in its cache
    """

    image_id: ids.ImageId
    state: ShareState
    total_bytes: int
    left_bytes: int


class ReplicaReport(NamedTuple):
    """Answers a Keep, and tells of what has changed since.

    :param ring_epoch: of the v-node table by which the shares were found
    :param shares: 1 to 128 of them, no image twice
    """

    ring_epoch: int
    shares: tuple[Share, ...]


_T = TypeVar("_T", Lease, Share)


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


def _shares_in(body: bytes) -> Iterator[Share]:
    for raw, state, total_bytes, left_bytes in _KEPT.iter_unpack(body):
        yield Share(ids.image_id_from_bytes(raw), ShareState(state), total_bytes, left_bytes)


def _check_leases(leases: tuple[Lease, ...]) -> None:
    _check_images(leases, MAX_REQUESTS)
    for lease in leases:
        if not 0 <= lease.lease_s <= MAX_LEASE_S:
            raise ValueError(f"a lease of {lease.lease_s} s")


def _check_shares(shares: tuple[Share, ...]) -> None:
    _check_images(shares, MAX_REPORTS)
    for share in shares:
        if not 0 <= share.left_bytes <= share.total_bytes <= MAX_BYTES:
            raise ValueError(f"{share.left_bytes} of {share.total_bytes} bytes are left")


def _check_images(entries: tuple[_T, ...], limit: int) -> None:
    if not 1 <= len(entries) <= limit:
        raise ValueError(f"{len(entries)} images")
    if len({entry.image_id for entry in entries}) != len(entries):
        raise ValueError("an image twice")
