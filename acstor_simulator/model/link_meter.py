# SPDX-License-Identifier: Apache-2.0
"""Measures the traffic of links: sums and peaks, without queued data."""

from collections.abc import Sequence

from acstor_simulator.model import network

LOOK_S = 1.0


class LinkMeter:
    """Samples links once a second."""

    def __init__(
        self,
        agenda: network.EventQueue,
        links: Sequence[network.NetworkLink],
        begin_s: float,
    ) -> None:
        self.peak = [0.0] * len(links)  # of each link, in bytes a second
        self.rates: list[float] = []  # bytes a second of all links, second by second
        self._agenda, self._links = agenda, links
        self._before = [0.0] * len(links)
        agenda.schedule_after(begin_s, self._look)

    @property
    def sent_bytes(self) -> float:
        """Return all bytes that the links have carried."""
        return sum(link.bytes_sent(self._agenda.now) for link in self._links)

    def _look(self) -> None:
        now = [link.bytes_sent(self._agenda.now) for link in self._links]
        rates = [(b - a) / LOOK_S for a, b in zip(self._before, now, strict=True)]
        self.peak = [max(pair) for pair in zip(self.peak, rates, strict=True)]
        self.rates.append(sum(rates))
        self._before = now
        self._agenda.schedule_after(LOOK_S, self._look)
