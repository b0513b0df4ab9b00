# SPDX-License-Identifier: Apache-2.0
"""Connections to libvirt, with timeouts."""

import threading
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import libvirt

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import call_deadline
from acstor_common.util import supervision

T = TypeVar("T")


class LibvirtLimits(NamedTuple):
    """Timeouts of libvirt, in seconds."""

    open_s: float = 30.0  # of a new connection
    keepalive_s: int = 5  # interval of keepalive messages, of which ``keepalive_count`` may be lost
    keepalive_count: int = 6
    call_s: float = 90.0  # of one step's calls, including a guest agent and the end of a job
    describe_s: float = 0.2  # of a description, after one failed or took ``slow_s``
    slow_s: float = 1.0


LIMITS = LibvirtLimits()


class LibvirtLink:
    """A libvirt connection for one server only, because a hung QEMU blocks other calls."""

    def __init__(self, timeout_s: float = LIMITS.call_s) -> None:
        self.connection: Any = None
        self.described = ids.ImageId("")
        """The server whose description was asked for last."""
        self.has_failed = False
        """Whether the last description of its server failed."""
        self._calls = call_deadline.CallDeadline("libvirt", timeout_s)

    @property
    def is_busy(self) -> bool:
        """Whether a call runs."""
        return self._calls.is_busy

    def call(self, what: str, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """Run calls to libvirt; return their result; ``undo`` them if they succeed too late.

        :raises errors.Unusable: they fail or time out, or an earlier call still runs
        """
        try:
            return self._calls.run_call(work, undo)
        except (libvirt.libvirtError, call_deadline.CallTimeout) as e:
            raise errors.Unusable(what, str(e)) from e


def open_connection(uri: str, limits: LibvirtLimits) -> Any:
    """Connect to libvirt; calls to a hung libvirtd fail then."""
    connection = libvirt.open(uri)
    connection.setKeepAlive(limits.keepalive_s, limits.keepalive_count)
    return connection


def run_events() -> None:
    """Run libvirt's event loop, needed for keepalive, until the process ends."""
    with _events_lock:
        if _events:
            return
        libvirt.registerErrorHandler(lambda *_: None, None)  # errors are raised as exceptions
        libvirt.virEventRegisterDefaultImpl()
        _events.append(supervision.start("libvirt", _event_loop))


def _event_loop() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


_events: list[threading.Thread] = []
_events_lock = threading.Lock()
