# SPDX-License-Identifier: Apache-2.0
"""Receives v-node tables and tasks that the decision service signed; refuses and logs others."""

import logging
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Protocol

import trio

from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_store
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import replay_filter
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

LOG = logging.getLogger(__name__)


class Bus(Protocol):
    """The message bus (:class:`acstor_agent.cloud.bus.Bus`)."""

    def cast_message(
        self, topic: str, method: str, payload: Mapping[str, Any], *, is_fanout: bool = False
    ) -> None:
        """Queue a message; never waits."""

    def call_method(
        self, topic: str, method: str, payload: Mapping[str, Any], timeout_s: float
    ) -> object:
        """Send a request and return the response; blocks."""

    def subscribe(self, topic: str, handlers: Mapping[str, Callable[[Any], None]]) -> None:
        """Receive messages to a topic."""

    def stop(self) -> None:
        """Close the connection."""


class TaskQueue(Protocol):
    """Where tasks about images go."""

    def queue_task(self, task: decision_messages.ImageTask) -> None:
        """Queue a task."""


class DecisionReceiver:
    """Puts tables in force, and queues tasks, that trusted signers have signed."""

    def __init__(
        self,
        host: ids.HostId,
        bus: Bus,
        files: identity_files.IdentityFiles,
        rings: ring_store.RingStore,
        tasks: TaskQueue,
    ) -> None:
        self._host, self._bus, self._files = host, bus, files
        self._rings, self._tasks = rings, tasks
        self._replay_filter = replay_filter.ReplayFilter()
        self._is_subscribed = False

    def subscribe(self, token: trio.lowlevel.TrioToken) -> None:
        """Subscribe once; the bus keeps the subscription and its threads."""
        if not self._files.signer_keys():
            LOG.warning(
                "v-node tables and tasks are refused for now: %s", message_signing.NO_SIGNERS
            )
        if self._is_subscribed:
            return
        handlers = {
            decision_messages.RING_PUBLISHED: lambda payload: self._receive_table(payload, token),
            decision_messages.IMAGE_TASK_GIVEN: lambda payload: self._receive_task(payload, token),
        }
        self._bus.subscribe(decision_messages.AGENT_TOPIC, handlers)
        self._is_subscribed = True

    # In a thread of the bus

    def _receive_table(self, payload: object, token: trio.lowlevel.TrioToken) -> None:
        """Verify a table here, as large ones take seconds; use it or raise NotAuthenticated."""
        sent = decision_messages.decode(payload, decision_messages.RingTable)
        if why := self._rings.rejection_reason(sent.epoch):
            if sent.epoch == self._rings.ring.epoch:
                return  # it was sent to all, and to this host alone
            raise errors.NotAuthenticated(f"v-node table {sent.epoch}", why)
        table = message_signing.verify_table(sent, self._files.signer_keys())
        try:
            trio.from_thread.run_sync(self._rings.accept_table, table, sent, trio_token=token)
        except trio.RunFinishedError:
            LOG.debug("epoch %d arrived after the agent had stopped", sent.epoch)
        except ValueError as e:
            LOG.debug("%s", e)  # a newer one was faster

    def _receive_task(self, payload: object, token: trio.lowlevel.TrioToken) -> None:
        """Verify a task; raise NotAuthenticated if it is forged, for another host, or old."""
        signed = decision_messages.decode(payload, decision_messages.Signed)
        signers = self._files.signer_keys()
        given = signed_messages.verify_from_service(
            signed, signing.TASK, signers, decision_messages.TaskForHosts
        )
        try:
            why = trio.from_thread.run_sync(self._accept_task, given, trio_token=token)
        except trio.RunFinishedError:
            LOG.debug(
                "a task for image %s arrived after the agent had stopped", given.task.image_id
            )
        else:
            if why:
                raise errors.NotAuthenticated(f"a task for image {given.task.image_id}", why)

    def _accept_task(self, given: decision_messages.TaskForHosts) -> str:
        task = given.task
        message = (task.request, task.kind, task.image_id, given.given_s)
        if given.hosts and self._host not in given.hosts:
            return "it is for other hosts"
        if why := self._replay_filter.check_and_remember(message, given.given_s, time.time()):
            return why
        self._tasks.queue_task(task)
        return ""
