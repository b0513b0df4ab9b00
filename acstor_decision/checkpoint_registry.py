# SPDX-License-Identifier: Apache-2.0
"""Registers checkpoints of hosts, and deletes those of servers that are gone.

A host may register a checkpoint only for a server that Nova reports on it: otherwise a server could
be recovered with a forged disk. While Nova does not respond, the host must retry.
"""

import base64
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import msgspec

from acstor_common import errors
from acstor_common.identity import replay_filter
from acstor_common.identity import sealed_box
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import interval_lookup
from acstor_decision import nova_client
from acstor_decision.core import cloud_state
from acstor_decision.core import enrolment_rules
from acstor_decision.core import holder_check
from acstor_decision.db import database
from acstor_decision.db import models
from acstor_decision.identity import trust_state

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 30.0  # interval at which the leader updates the metrics of checkpoints
SWEEP_EVERY_S = 300.0  # interval at which Nova is asked whether servers with checkpoints exist
SWEPT = 200  # servers in one page of a sweep
BETWEEN_S = 0.02
NOTE_EVERY_S = 60.0  # minimum time between two writes of one host's checkpoint failures
_GONE = (enrolment_rules.EnrolmentState.REVOKED, enrolment_rules.EnrolmentState.FORGOTTEN)


class CheckpointRegistry:
    """Handles checkpoint messages of hosts, and cleans up."""

    def __init__(
        self,
        store: database.Database,
        nova: nova_client.NovaClient,
        trust: Callable[[], trust_state.TrustState],
        intervals: interval_lookup.IntervalLookup,
        *,
        kept: int,  # checkpoints of each server
        kept_after_s: float,  # after Nova deleted the server
        clock: clocks.Clock = time,
    ) -> None:
        self.newest: tuple[cloud_state.NewestCheckpoint, ...] = ()  # none unless it leads
        self.registered = 0
        self.refused = dict.fromkeys(("not_authentic", "not_its_own", "unknown", "stale"), 0)
        self._store, self._nova, self._trust, self._intervals = store, nova, trust, intervals
        self._kept, self._kept_after_s, self._clock = kept, kept_after_s, clock
        # One for each host, so that a busy host does not displace others.
        self._freshness: dict[str, replay_filter.ReplayFilter] = {}
        self._noted_s: dict[str, float] = {}
        self._asking: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()
        self._warnings = message_bus.ThrottledWarnings(clock)

    def rpc_methods(self) -> Mapping[str, Callable[[object], dict[str, Any]]]:
        """Return the RPC handlers by method name."""
        return {
            messages.REGISTER_CHECKPOINT: self.register_checkpoint,
            messages.KEPT_CHECKPOINTS: self.list_kept,
            messages.INTERVALS: self.answer_intervals,
            messages.OWNERS: self.list_orphaned_owners,
            messages.SERVICE_KEY: self.service_key,
        }

    def register_checkpoint(self, payload: object) -> dict[str, Any]:
        """Register a host's checkpoint; called in threads of the message bus."""
        return self._answered(payload, messages.SealedMessage, self._revealed)

    def list_kept(self, payload: object) -> dict[str, Any]:
        """Return which checkpoints of a host are kept."""
        return self._answered(payload, messages.RetentionRequest, self._kept_of)

    def answer_intervals(self, payload: object) -> dict[str, Any]:
        """Return the checkpoint intervals of a host, and record its failures."""
        return self._answered(
            payload,
            messages.IntervalRequest,
            self._intervals_of,
            signing.CHECKPOINT_INTERVALS,
        )

    def list_orphaned_owners(self, payload: object) -> dict[str, Any]:
        """Return which owners of checkpoints in a host's vault are gone for good."""
        return self._answered(
            payload, messages.OwnerRequest, self._gone_of, signing.CHECKPOINT_OWNERS
        )

    def service_key(self, _payload: object) -> dict[str, Any]:
        """Return the public key that encrypts checkpoint registrations."""
        signer = self._trust().signer
        key = messages.ServiceKey(sealed_box.public_key(signer).hex())
        return decision_messages.encode(
            signed_messages.sign_payload(key, signing.CHECKPOINT_KEY, signer)
        )

    def _answered(
        self,
        payload: object,
        kind: type[Any],
        work: Callable[[Any], messages.Response],
        purpose: str = signing.CHECKPOINT_ANSWER,
    ) -> dict[str, Any]:
        host, sent_s = "", 0.0

        def done() -> messages.Response:
            nonlocal host, sent_s
            message = self._checked(payload, kind)
            host, sent_s = message.host, message.sent_s
            with self._alone(message.host, purpose, kind):
                return work(message)

        answer = msgspec.structs.replace(self._respond(done), host=host, sent_s=sent_s)
        made = signed_messages.sign_payload(answer, purpose, self._trust().signer)
        return decision_messages.encode(made)

    def _respond(self, work: Callable[[], messages.Response]) -> messages.Response:
        try:
            return work()
        except errors.NotAuthenticated as e:
            self.refused["not_authentic"] += 1
            self._warnings.log_line("checkpoints: %s", e)
            return messages.Response(str(e))
        except errors.RemoteProtocolError as e:
            self.refused["not_authentic"] += 1
            return messages.Response(str(e))
        except nova_client.NovaBusy as e:  # not logged: a flood of requests would flood the log
            self.refused["unknown"] += 1
            return messages.Response(str(e), is_transient=True)
        except (nova_client.NovaUnreachable, database.DatabaseError) as e:
            self.refused["unknown"] += 1
            self._warnings.log_line("checkpoints: a host must retry: %s", e)
            is_database = isinstance(e, database.DatabaseError)  # its address is not for hosts
            return messages.Response(
                "the database is unreachable" if is_database else str(e), is_transient=True
            )

    @contextlib.contextmanager
    def _alone(self, host: str, *what: object) -> Iterator[None]:
        """Limit a host to one request of a kind at a time; raise NovaBusy otherwise."""
        with self._lock:
            if (host, *what) in self._asking:
                raise nova_client.NovaBusy(f"another request of {host} is in progress")
            self._asking.add((host, *what))
        try:
            yield
        finally:
            with self._lock:
                self._asking.discard((host, *what))

    def _checked(self, payload: object, kind: type[Any]) -> Any:
        signed = decision_messages.decode(payload, decision_messages.Signed)
        trust = self._trust()
        certificate, message = signed_messages.verify_from_host(
            signed, signing.CHECKPOINT, trust.ca, kind
        )
        what = f"a message of {message.host} on its checkpoints"
        if certificate.host != message.host:
            raise errors.NotAuthenticated(what, f"it is signed by {certificate.host}")
        if fault := trust.why_untrusted(certificate, self._clock.time()):
            raise errors.NotAuthenticated(what, fault)
        with self._lock:
            its = self._freshness.setdefault(message.host, replay_filter.ReplayFilter())
            if fault := its.check_and_remember(
                (kind.__name__, message.sent_s), message.sent_s, self._clock.time()
            ):
                raise errors.NotAuthenticated(what, fault)
        return message

    def _revealed(self, message: messages.SealedMessage) -> messages.CheckpointResponse:
        what = f"the checkpoint that {message.host} reports"
        try:
            box = base64.b64decode(message.box, validate=True)
            raw = sealed_box.decrypt(self._trust().signer, box, message.host.encode())
            taken = msgspec.json.decode(raw, type=messages.RegisteredCheckpoint)
        except (ValueError, msgspec.DecodeError, RecursionError) as e:
            raise errors.RemoteProtocolError(message.host, str(e)) from e
        if (taken.host, taken.sent_s) != (message.host, message.sent_s):
            raise errors.NotAuthenticated(what, "its host or time differs from that of the message")
        return self._register(taken)

    def _register(self, taken: messages.RegisteredCheckpoint) -> messages.CheckpointResponse:
        server = self._nova.get_server(ids.ImageId(taken.instance_id), taken.host)
        why = _fault_of(taken, server) or self._fault_of_holders(taken)
        if why:
            self.refused["not_its_own"] += 1
            words = (taken.host, taken.checkpoint_id, why)
            self._warnings.log_line("%s: checkpoint %s is refused: %s", *words)
            return messages.CheckpointResponse(why)
        stays = self._store.record_checkpoint(taken, self._clock.time(), self._kept)
        if stays is None:
            self.refused["stale"] += 1
            return messages.CheckpointResponse(
                "a newer one of this disk, or another with this ID, is registered"
            )
        self.registered += 1
        return messages.CheckpointResponse(kept=tuple(map(_kept, stays)))

    def _fault_of_holders(self, taken: messages.RegisteredCheckpoint) -> str:
        known = self._store.addresses_of([taken.host, *(holder.host for holder in taken.holders)])
        return holder_check.holder_fault(
            taken.host, taken.holders, known, self._trust().is_enrolled
        )

    def _kept_of(self, asked: messages.RetentionRequest) -> messages.CheckpointResponse:
        rows: Sequence[models.Checkpoint] = self._store.checkpoints_of_host(
            asked.host, messages.MAX_KEPT + 1
        )
        kept = tuple(_kept(row) for row in rows[: messages.MAX_KEPT])
        return messages.CheckpointResponse(kept=kept, is_complete=len(rows) <= messages.MAX_KEPT)

    def _intervals_of(self, asked: messages.IntervalRequest) -> messages.IntervalResponse:
        if self._clock.monotonic() >= self._noted_s.get(asked.host, -math.inf) + NOTE_EVERY_S:
            self._noted_s[asked.host] = self._clock.monotonic()
            self._store.record_checkpoint_failures(asked.host, asked.failing, self._clock.time())
        return self._intervals.intervals_of_host(asked.host)

    def _gone_of(self, asked: messages.OwnerRequest) -> messages.OwnerResponse:
        """Return the owners that are gone; unknown ones stay, as the database may be old."""
        hosts = self._trust().hosts
        left = [owner for owner in asked.owners if owner in hosts and hosts[owner].state in _GONE]
        needed = self._store.checkpointed_hosts(left)
        return messages.OwnerResponse(gone=tuple(owner for owner in left if owner not in needed))

    def run_cleanup(self, leads: Callable[[], bool], stopping: threading.Event) -> None:
        """Update metrics and delete checkpoints of gone servers, while this one leads."""
        sweeps_s = self._clock.monotonic() + SWEEP_EVERY_S
        while not stopping.wait(CHECK_INTERVAL_S):
            try:
                self.newest = tuple(self._store.newest_checkpoints()) if leads() else ()
                if leads() and self._nova.is_configured and self._clock.monotonic() >= sweeps_s:
                    sweeps_s = self._clock.monotonic() + SWEEP_EVERY_S
                    self.sweep_servers(stopping)
            except (nova_client.NovaUnreachable, database.DatabaseError) as e:
                LOG.warning("checkpoints: %s", e)
            except Exception:
                LOG.exception("the cleanup of checkpoints failed")

    def sweep_servers(self, stopping: threading.Event) -> None:
        """Ask Nova for each server with checkpoints; may raise NovaUnreachable."""
        marker = ""
        while found := self._store.checkpointed_instances(marker, SWEPT):
            for instance_id in found:
                if stopping.wait(BETWEEN_S):
                    return
                server = self._nova.get_server(ids.ImageId(instance_id))
                host = None if server is None else server.host
                gone = self._store.record_presence(
                    instance_id, host, self._clock.time(), self._kept_after_s
                )
                if gone:
                    LOG.info(
                        "server %s was deleted: removed %d checkpoint records", instance_id, gone
                    )
            marker = found[-1]


def _fault_of(taken: messages.RegisteredCheckpoint, server: nova_client.Server | None) -> str:
    if server is None:
        return f"according to Nova, there is no server {taken.instance_id}"
    if server.host != taken.host:
        return f"according to Nova, server {taken.instance_id} is on {server.host or 'no host'}"
    if server.project_id != taken.project_id:
        return f"according to Nova, server {taken.instance_id} is of project {server.project_id}"
    return ""


def _kept(row: models.Checkpoint) -> messages.RetainedCheckpoint:
    return messages.RetainedCheckpoint(
        row.checkpoint_id, row.instance_id, row.vault_disk, row.manifest_name
    )
