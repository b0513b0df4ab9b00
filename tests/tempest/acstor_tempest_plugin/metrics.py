# SPDX-License-Identifier: Apache-2.0
"""The counters of agents, from their Prometheus endpoints."""

import urllib.request
from collections.abc import Mapping

from prometheus_client import parser

_DEADLINE_S = 30.0


class Counters:
    """Totals of all agents at the time of construction.

    :param urls: each host's metrics endpoint
    :raises OSError: an agent does not respond
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._samples = []
        for host, url in urls.items():
            with opener.open(url, timeout=_DEADLINE_S) as answer:
                text = answer.read().decode()
            for family in parser.text_string_to_metric_families(text):
                self._samples += [(host, sample) for sample in family.samples]

    def total(self, name: str, host: str | None = None, **labels: str) -> int:
        """Return the sum of a counter over the hosts, or of one host, and over other labels."""
        return sum(
            int(sample.value)
            for where, sample in self._samples
            if sample.name == name
            and host in (None, where)
            and labels.items() <= sample.labels.items()
        )
