# SPDX-License-Identifier: Apache-2.0
"""Client of the decision service on the message bus, and checkpoint requests.

A checkpoint counts only after the service's acknowledgement; without it the next one ignores it.
"""

import base64
import logging
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

import msgspec
import oslo_messaging

from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.vault import vault_health
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import replay_filter
from acstor_common.identity import sealed_box
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages

LOG = logging.getLogger(__name__)

SEND_RETRIES: Final = 1

_T = TypeVar("_T", bound=msgspec.Struct)
_ResponseType = TypeVar("_ResponseType", bound=messages.Response)


class BusLimits(NamedTuple):
    """Limits of calls."""

    answer_s: float = 60.0  # timeout; the service asks Nova, and writes to its database
    pauses_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)  # while it is busy, randomized by half


LIMITS = BusLimits()


class _Identity(NamedTuple):
    key: bytes
    certificate: bytes


RequestCheckpoint = Callable[[ids.ImageId], int]
"""Schedules an instance next; returns the number of its last started checkpoint.

Raises errors.Unusable if it has no checkpoints here."""


class BusClient:
    """This host's calls to the decision service; thread-safe.

    Calls raise errors.NotAuthenticated if this host has no certificate or the service's signature
    is invalid, and errors.DecisionUnreachable if the service does not answer or is busy.

    :param health: of this host's vault; None: it has none
    """

    def __init__(
        self,
        host: ids.HostId,
        files: identity_files.IdentityFiles,
        transport: Any,
        health: vault_health.VaultHealth | None = None,
        clock: clocks.Clock = time,
        limits: BusLimits = LIMITS,
    ) -> None:
        self._limits = limits
        self._host, self._files, self._transport = host, files, transport
        self._health, self._clock = health, clock
        self._freshness, self._lock = replay_filter.ReplayFilter(), threading.Lock()
        self._stopping = threading.Event()
        self._server: message_bus.BusServer | None = None

    def register_checkpoint(self, record: checkpoint_record.CheckpointRecord) -> set[str]:
        """Register a checkpoint, or raise CheckpointRefused; return manifests to retain, in hex."""
        what = f"checkpoint {record.checkpoint_id}"
        answer = self._registered(record)
        for pause_s in self._limits.pauses_s:
            if not answer.is_transient or self._stopping.wait(pause_s * random.uniform(0.5, 1.5)):
                break
            answer = self._registered(record)
        if answer.is_transient:
            raise errors.DecisionUnreachable("the message bus", f"{what}: {answer.why}")
        if answer.why:
            raise errors.CheckpointRefused(what, f"the decision service refuses it: {answer.why}")
        return {
            checkpoint.manifest_name
            for checkpoint in answer.kept
            if checkpoint.vault_disk == record.vault_disk
        }

    def _registered(
        self, record: checkpoint_record.CheckpointRecord
    ) -> messages.CheckpointResponse:
        self._identity()  # a host without a certificate asks for no key
        sealed = self._encrypt_record(self._message_of(record))
        return self._ask(messages.REGISTER_CHECKPOINT, sealed, messages.CheckpointResponse)

    def list_retained(self) -> dict[str, set[str]]:
        """Return manifests to retain, by vault disk."""
        asked = messages.RetentionRequest(host=self._host, sent_s=self._clock.time())
        answer = self._query(messages.KEPT_CHECKPOINTS, asked, messages.CheckpointResponse)
        if not answer.is_complete:
            why = "it has more checkpoints than it lists"
            raise errors.DecisionUnreachable("the message bus", why)
        kept: dict[str, set[str]] = {}
        for checkpoint in answer.kept:
            kept.setdefault(checkpoint.vault_disk, set()).add(checkpoint.manifest_name)
        return kept

    def fetch_intervals(self, failing: Sequence[messages.Failing] = ()) -> nova_intervals.Intervals:
        """Return Nova's intervals; report failures and the vault's issues to operators."""
        issues = self._health.list_issues() if self._health else ()
        reported = (*(messages.Failing("", issue) for issue in issues), *failing)
        asked = messages.IntervalRequest(
            host=self._host, sent_s=self._clock.time(), failing=reported[: messages.MAX_FAILING]
        )
        purpose = signing.CHECKPOINT_INTERVALS
        answer = self._query(messages.INTERVALS, asked, messages.IntervalResponse, purpose)
        of_servers = {server.instance_id: server.interval_s for server in answer.of_servers}
        return nova_intervals.Intervals(answer.of_host, of_servers)

    def departed_owners(self, owners: Collection[ids.HostId]) -> set[ids.HostId]:
        """Return which of these (at most MAX_OWNERS) left the cloud and have no checkpoint."""
        asked = messages.OwnerRequest(
            host=self._host, owners=tuple(owners), sent_s=self._clock.time()
        )
        purpose = signing.CHECKPOINT_OWNERS
        answer = self._query(messages.OWNERS, asked, messages.OwnerResponse, purpose)
        return set(map(ids.HostId, answer.gone))

    def _message_of(
        self, record: checkpoint_record.CheckpointRecord
    ) -> messages.RegisteredCheckpoint:
        return messages.RegisteredCheckpoint(
            checkpoint_id=record.checkpoint_id,
            host=self._host,
            instance_id=record.instance_id,
            project_id=record.project,
            vault_disk=record.vault_disk,
            image_id=record.image_id,
            taken_ms=record.taken_ms,
            consistency=record.consistency.name.lower(),
            number=record.number,
            size_bytes=record.disk_bytes,
            changed_bytes=record.changed_bytes,
            sent_bytes=record.sent_bytes,
            interval_s=record.interval_s,
            manifest_name=record.manifest_name,
            holders=tuple(messages.RegisteredHolder(*holder) for holder in record.holders),
            key=record.key,
            sent_s=self._clock.time(),
        )

    def _encrypt_record(self, taken: messages.RegisteredCheckpoint) -> messages.SealedMessage:
        """Encrypt a checkpoint to the service, because the bus is shared."""
        purpose = signing.CHECKPOINT_KEY
        key = self._verify_reply(self._call(messages.SERVICE_KEY, {}), purpose, messages.ServiceKey)
        data, reply = msgspec.json.encode(taken), taken.host.encode()
        box = sealed_box.encrypt(bytes.fromhex(key.public), data, reply)
        return messages.SealedMessage(
            host=taken.host, box=base64.b64encode(box).decode(), sent_s=taken.sent_s
        )

    def _verify_reply(self, reply: object, purpose: str, kind: type[_T]) -> _T:
        signed = decision_messages.decode(reply, decision_messages.Signed)
        return signed_messages.verify_from_service(signed, purpose, self._files.signer_keys(), kind)

    def _identity(self) -> _Identity:
        identity = self._files.current_credentials()
        if identity.certificate is None:
            what = f"this host ({self._files.files.certificate})"
            raise errors.NotAuthenticated(what, "it has no certificate")
        return _Identity(identity.key, identity.certificate.pem)

    def _query(
        self,
        method: str,
        payload: messages.RetentionRequest | messages.IntervalRequest | messages.OwnerRequest,
        kind: type[_ResponseType],
        purpose: str = signing.CHECKPOINT_ANSWER,
    ) -> _ResponseType:
        answer = self._ask(method, payload, kind, purpose)
        if answer.why:
            raise errors.DecisionUnreachable("the message bus", answer.why)
        return answer

    def _ask(
        self,
        method: str,
        payload: messages.SealedMessage
        | messages.RetentionRequest
        | messages.IntervalRequest
        | messages.OwnerRequest,
        kind: type[_ResponseType],
        purpose: str = signing.CHECKPOINT_ANSWER,
    ) -> _ResponseType:
        signed = signed_messages.sign_payload(payload, signing.CHECKPOINT, *self._identity())
        reply = self._call(method, decision_messages.encode(signed))
        answer = self._verify_reply(reply, purpose, kind)
        if not answer.why and (answer.host, answer.sent_s) != (self._host, payload.sent_s):
            raise errors.NotAuthenticated(
                "the decision service's answer", "it answers another request"
            )
        return answer

    def _call(self, method: str, payload: dict[str, Any]) -> object:
        target = oslo_messaging.Target(
            topic=decision_messages.TOPIC, version=decision_messages.VERSION
        )
        client = oslo_messaging.get_rpc_client(
            self._transport, target, timeout=self._limits.answer_s, retry=SEND_RETRIES
        )
        try:
            reply: object = client.call({}, method, payload=payload)
        except Exception as e:  # also errors of kombu
            why = message_bus.why_unreachable(e, self._transport)
            raise errors.DecisionUnreachable("the message bus", why) from e
        return reply

    def listen_for_requests(self, ask: RequestCheckpoint) -> None:
        """Listen for requested checkpoints in a thread."""
        methods = {
            messages.CHECKPOINT_WANTED: lambda payload: self.request_checkpoint(payload, ask)
        }
        endpoint = message_bus.Endpoint(methods)
        supervision.start("bus-listener", lambda: self._serve(endpoint), self._stopping)

    def request_checkpoint(self, payload: object, ask: RequestCheckpoint) -> dict[str, Any]:
        """Handle a CheckpointRequest; return the encoded reply.

        :raises errors.NotAuthenticated: invalid signature, replayed, or for another host
        :raises errors.RemoteProtocolError: malformed
        """
        signed = decision_messages.decode(payload, decision_messages.Signed)
        signers = self._files.signer_keys()
        purpose = signing.CHECKPOINT_WANTED
        wanted = signed_messages.verify_from_service(
            signed, purpose, signers, messages.CheckpointRequest
        )
        what = f"request {wanted.request} for a checkpoint"
        if wanted.host != self._host:
            raise errors.NotAuthenticated(what, f"it is for {wanted.host}")
        with self._lock:
            fault = self._freshness.check_and_remember(
                wanted.request, wanted.given_s, self._clock.time()
            )
        if fault:
            raise errors.NotAuthenticated(what, fault)
        number, why = 0, ""
        try:
            number = ask(ids.ImageId(wanted.instance_id))
        except errors.Unusable as e:
            why = str(e)[:1000]
        reply = messages.CheckpointReply(
            request=wanted.request, host=self._host, why=why, number=number
        )
        return decision_messages.encode(
            signed_messages.sign_payload(reply, signing.CHECKPOINT_HEARD, *self._identity())
        )

    def _serve(self, endpoint: message_bus.Endpoint) -> None:
        target = oslo_messaging.Target(topic=messages.DAEMON_TOPIC, server=self._host)
        self._server = message_bus.serve(self._transport, target, endpoint, self._stopping)

    def stop(self) -> None:
        """Disconnect; waits for a few seconds at most."""
        self._stopping.set()
        message_bus.close_in_background(self._close)()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._transport.cleanup()
