# SPDX-License-Identifier: Apache-2.0
"""Counts Nova's fallbacks by reason, and reports them to the agent, when it answers."""

import collections
import logging
import threading
import time

from acstor_common import errors
from acstor_common.util import supervision
from acstor_common.wire import control_wire
from acstor_nova import agent_client

LOG = logging.getLogger(__name__)

RETRY_S = 10.0


class Fallbacks:
    """The fallback counters of one nova-compute, which never fail."""

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._total: collections.Counter[control_wire.Fallback] = collections.Counter()
        self._unreported: collections.Counter[control_wire.Fallback] = collections.Counter()
        self._is_reporting = False

    def record_fallback(self, reason: control_wire.Fallback, image_id: str, why: str) -> None:
        """Count and log a fallback."""
        with self._lock:
            self._total[reason] += 1
            self._unreported[reason] += 1
            times = self._total[reason]
        LOG.warning(
            "image %s falls back to Nova's download: %s [%s, %d since the start]",
            image_id,
            why,
            reason.value,
            times,
        )

    def report_later(self, agent: agent_client.AgentClient) -> None:
        """Report to the agent in a thread, as soon as it answers."""
        with self._lock:
            if self._is_reporting:
                return
            self._is_reporting = True
        supervision.start_once("fallbacks", lambda: self._report_until_known(agent))

    def _report_until_known(self, agent: agent_client.AgentClient) -> None:
        is_known = False
        while not is_known:
            time.sleep(self._retry_s)
            try:
                is_answered = self.report(agent)
            except Exception:
                self._is_reporting = False
                raise
            with self._lock:  # later fallbacks start another thread
                is_known = is_answered or not self._unreported
                self._is_reporting = not is_known

    def report(self, agent: agent_client.AgentClient) -> bool:
        """Report new fallbacks to the agent; return whether it answered."""
        is_answered = True
        with self._lock:
            untold, self._unreported = self._unreported, collections.Counter()
        for reason in list(untold):
            try:
                agent.count_fallback(reason, untold[reason])
            except errors.AgentRefused as e:  # the agent is too old for this reason
                LOG.info("fallbacks are not counted by the agent yet: %s", e)
                continue
            except errors.AgentUnreachable as e:
                LOG.debug("fallbacks are not counted by the agent yet: %s", e)
                is_answered = False
                break
            del untold[reason]
        with self._lock:
            self._unreported += untold
        return is_answered

    @property
    def counts_by_reason(self) -> dict[control_wire.Fallback, int]:
        """Fallbacks since the start, by reason."""
        with self._lock:
            return dict(self._total)
