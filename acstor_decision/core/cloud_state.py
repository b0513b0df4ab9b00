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
    """State of a host.

    :param is_heard: its agent sends samples
    :param unheard_s: age of its certificate if it never sent a sample
    :param is_waiting: it waits for an operator's approval
    :param lifetime_left: remaining share of its certificate's lifetime; None: it has none
    """

    name: str
    is_heard: bool
    unheard_s: float | None = None
    is_drained: bool = False
    is_overloaded: bool = False
    epoch: int = 0
    is_waiting: bool = False
    lifetime_left: float | None = None
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
    """The newest checkpoint of a server.

    :param taken_s: by the clock of its host
    :param interval_s: 0: none is promised
    :param changed_bytes: data of the disk that differs from its image
    """

    instance_id: str
    taken_s: float
    interval_s: int
    changed_bytes: int


class CloudState(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a cloud's state.

    :param epoch: of the last published v-node table; 0: none
    :param published_ago_s: its age; None: none
    :param images: None: Glance does not respond
    :param instance: the instance that published the last table
    :param checkpoint_failures: by the host that reports them
    """

    now_s: float
    epoch: int
    published_ago_s: float | None
    hosts: Sequence[HostStatus]
    images: Sequence[ImageStatus] | None
    why_no_images: str = ""
    instance: str = ""
    listeners: Sequence[ListenerStatus] = ()
    unfinished: Sequence[UnfilledImage]
    checkpoints: Sequence[NewestCheckpoint]
    checkpoint_failures: Mapping[str, Sequence[checkpoint_messages.Failing]] = {}
