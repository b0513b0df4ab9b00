# SPDX-License-Identifier: Apache-2.0
"""Snapshot of a cloud's state, of which :mod:`health_checks` yields findings."""

import enum
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from acstor_common.wire import checkpoint_messages
from acstor_common.wire import decision_messages


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a host."""

    name: str
    is_up: bool  # its agent sends samples
    no_sample_s: float | None = None  # age of its certificate if it never sent a sample
    is_drained: bool = False
    is_overloaded: bool = False
    epoch: int = 0
    is_waiting: bool = False  # it waits for an operator's approval
    lifetime_left: float | None = None  # share of its certificate's; None: it has none
    health: decision_messages.HostHealth | None = None


class ImageState(enum.StrEnum):
    """Preparation state of an image in Glance."""

    READY = "ready"  # servers boot from its mirror
    PREPARING = "preparing"
    NOT_BEGUN = "not begun"  # although the image is not new
    FAILED = "failed"  # the listener retries
    NOT_SERVED = "not served"  # unsupported; servers boot from it without acstor


class ImageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of an image in Glance."""

    image_id: str
    name: str
    state: ImageState
    why: str = ""


class UnfilledImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in use that does not become fully cached on a host."""

    host: str
    image_id: str
    why: str


class ListenerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A Glance listener, named after its host."""

    name: str
    reported_ago_s: float


class NewestCheckpoint(NamedTuple):
    """The newest checkpoint of a server."""

    instance_id: str
    taken_s: float  # by the clock of its host
    interval_s: int  # 0: none is promised
    changed_bytes: int  # data of the disk that differs from its image


class CloudState(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a cloud's state."""

    now_s: float
    epoch: int  # of the last published v-node table; 0: none
    published_ago_s: float | None  # None: no table was published
    hosts: Sequence[HostStatus]
    images: Sequence[ImageStatus] | None  # None: Glance does not respond
    why_no_images: str = ""
    instance: str = ""  # the instance that published the last table
    damaged_epochs: Sequence[int] = ()  # of the last two tables, those with damaged rows
    listeners: Sequence[ListenerStatus] = ()
    unfinished: Sequence[UnfilledImage]
    checkpoints: Sequence[NewestCheckpoint]
    checkpoint_failures: Mapping[str, Sequence[checkpoint_messages.Failing]] = {}  # by host
