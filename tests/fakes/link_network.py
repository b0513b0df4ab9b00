# SPDX-License-Identifier: Apache-2.0
"""A network in virtual time; its users inject the faults.

:meth:`LinkNetwork.run` executes events in order and advances the clock; nothing blocks.  With a
link rate, each host has an uplink that sends one message at a time, the most urgent first, and
a downlink that receives one at a time.  A message occupies both at once, like a stream.
"""

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import Any

Deliver = Callable[[str, Any], None]
"""Takes the sender and the message."""


@dataclasses.dataclass
class _Link:
    """A host's end of the network."""

    deliver: Deliver
    waiting: list[tuple[int, int, str, Any, int]] = dataclasses.field(default_factory=list)
    is_sending: bool = False
    receives_until: float = 0.0


class LinkNetwork:
    """Hosts, their links, and the clock.

    :param link_bytes_per_s: rate of each uplink and downlink; None: unlimited
    """

    def __init__(self, *, latency_s: float = 0.0005, link_bytes_per_s: float | None = None) -> None:
        self.now = 0.0
        self.sent: collections.Counter[str] = collections.Counter()
        self.sent_bytes: collections.Counter[str] = collections.Counter()
        self._latency_s = latency_s
        self._rate = link_bytes_per_s
        self._links: dict[str, _Link] = {}
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def attach(self, host: str, deliver: Deliver) -> None:
        """Connect a host."""
        self._links[host] = _Link(deliver)

    def call_at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call; times in the past mean now."""
        when = max(when, self.now)
        heapq.heappush(self._agenda, (when, next(self._numbers), call, arguments))

    def send(self, sender: str, to: str, message: Any, size_bytes: int, urgency: int = 0) -> None:
        """Send a message.

        :param urgency: lower numbers overtake on the uplink
        """
        self.sent[sender] += 1
        self.sent_bytes[sender] += size_bytes
        link = self._links[sender]
        item = (urgency, next(self._numbers), to, message, size_bytes)
        heapq.heappush(link.waiting, item)
        if not link.is_sending:
            self._send_next(sender, link)

    def run(self, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run events until none is left, ``until_s``, or ``is_done``."""
        while self._agenda and self._agenda[0][0] <= until_s and not is_done():
            self.now, _, call, arguments = heapq.heappop(self._agenda)
            call(*arguments)

    def _send_next(self, sender: str, link: _Link) -> None:
        link.is_sending = bool(link.waiting)
        if not link.waiting:
            return
        _, _, to, message, size_bytes = heapq.heappop(link.waiting)
        takes_s = size_bytes / self._rate if self._rate else 0.0
        self.call_at(self.now + takes_s, self._send_next, sender, link)
        arrives_s = self.now + takes_s + self._latency_s
        self.call_at(arrives_s, self._arrive, sender, to, message, takes_s)

    def _arrive(self, sender: str, to: str, message: Any, takes_s: float) -> None:
        """Handle the last byte's arrival; the downlink may be busy with other messages."""
        link = self._links.get(to)
        if link is None:
            return  # detached
        link.receives_until = max(self.now, link.receives_until + takes_s)
        if link.receives_until > self.now:
            self.call_at(link.receives_until, link.deliver, sender, message)
        else:
            link.deliver(sender, message)
