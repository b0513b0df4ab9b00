# SPDX-License-Identifier: Apache-2.0
"""The decision service: processes samples in rounds and publishes v-node tables.

Every instance receives every sample, so a new leader knows the members at once. A table is stored
in the database before it is published. During an outage the service keeps its table and retries.
"""

import collections
import dataclasses
import logging
import threading
import time

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import conf as decision_conf
from acstor_decision import leader_election
from acstor_decision import metrics
from acstor_decision import rpc
from acstor_decision.core import decider
from acstor_decision.core import health_checks
from acstor_decision.core import ring_conversion
from acstor_decision.core import threshold
from acstor_decision.core.membership import members
from acstor_decision.core.membership import sample_inbox
from acstor_decision.db import database
from acstor_decision.db import identity_queries
from acstor_decision.db import ring_queries
from acstor_decision.identity import address_verifier
from acstor_decision.identity import certificate_authority
from acstor_decision.identity import trust_state
from acstor_decision.switch_loads import base

LOG = logging.getLogger(__name__)

HIGHEST_TRUSTED_EPOCH = hash_ring.MAX_EPOCH // 2
"""A higher epoch is ignored, because following it would exhaust the epochs."""
RESEND_AFTER_S = 45.0  # age at which an unacknowledged task is sent again; the command waits longer
ACKNOWLEDGED_WITHIN = 2  # collections within which a host acknowledges a task
FORGET_EVERY_S = 3600.0
TRAFFIC_KEPT_S = 3600  # how long the database keeps traffic; 1,000 hosts write 200 rows a second
TABLES_KEPT = 200  # v-node tables kept in the database; one of 1,000 hosts has 84 KiB to 321 KiB
_CLAIMS = (
    members.Refusal.TAKEN_ADDRESS,
    members.Refusal.UNREACHABLE,
    members.Refusal.CROWDED,
)

_EMPTY_TABLE = decision_messages.RingTable(0, hash_ring.encode(hash_ring.Ring(0, ())).decode())


class DecisionService:
    """One instance of the decision service."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        store: database.Database,
        lead: leader_election.LeaderElection,
        loads: base.SwitchLoads,
        bus: rpc.AgentBus,
        verifier: address_verifier.AddressVerifier | None = None,  # None: trust addresses
        *,
        clock: clocks.Clock = time,
    ) -> None:
        self.own = conf.acstor_decision
        limits = decision_conf.membership_limits(self.own)
        limits = dataclasses.replace(limits, verify_addresses=verifier is not None)
        self.members = members.Members(limits)
        policy = decision_conf.remap_policy(self.own)
        self.decider = decider.Decider(policy, self.members, decider.VNodeTable({}))
        self.current = _EMPTY_TABLE
        self.leads = False
        self.metrics = metrics.InstanceMetrics()
        self._store, self._lead, self._loads = store, lead, loads
        self._bus, self._verifier = bus, verifier
        self._clock = clock
        self._authority = certificate_authority.CertificateAuthority(self.own, store, clock)
        self._trust = trust_state.TrustState()
        self._refused_enrolments: dict[str, int] = {}
        self._inbox = sample_inbox.SampleInbox(members.silent_s(limits))
        self._inbox_lock = threading.Lock()
        self._warnings = message_bus.ThrottledWarnings(clock)
        self._refusal_log = message_bus.ThrottledWarnings(clock, logging.INFO)
        self._new_samples: dict[str, decision_messages.Sample] = {}
        self._published_s = 0.0
        self._stored_epoch = 0  # of the newest row, damaged or not
        self._last_epoch = hash_ring.MAX_EPOCH  # rows above are damaged
        self._cleanup_due_s = float("-inf")
        self._has_database = self._knows_loads = True
        self._failed = ""
        self._accepted = self._moved = self._untrusted = 0
        self._silent = identity_queries.Silent()
        self._tables_published: collections.Counter[str] = collections.Counter()

    def load_trust(self) -> None:
        """Load the trust state, before any sample is received."""
        self._authority.issuing_authority()
        self._reload_trust()

    def accept_sample(self, message: decision_messages.Signed) -> None:
        """Queue a sample for the next round; thread-safe, never waits.

        :raises errors.NotAuthenticated: the sample is not signed by its host
        :raises errors.RemoteProtocolError: the message is not a sample
        """
        certificate, sample = signed_messages.verify_from_host(
            message, signing.SAMPLE, self._trust.ca, decision_messages.Sample
        )
        if certificate.host != sample.host:
            raise errors.NotAuthenticated(
                f"a sample of {sample.host}", f"it is signed by {certificate.host}"
            )
        with self._inbox_lock:
            before = self._inbox.dropped
            received = sample_inbox.Received(self._clock.monotonic(), certificate, sample)
            refusal = self._inbox.add_sample(received, self._clock.time())
            has_dropped, waiting = self._inbox.dropped > before, len(self._inbox)
        if refusal is not None:
            words = (sample.host, sample.number, refusal.value)
            self._refusal_log.log_line("%s: sample %d is refused: %s", *words)
        elif has_dropped:
            self._warnings.log_line("%s: its sample is dropped, %d queued", sample.host, waiting)

    def trust_state(self) -> trust_state.TrustState:
        """Return the trust state; thread-safe."""
        return self._trust

    def current_ring(self) -> decision_messages.RingTable:
        """Return the current v-node table; thread-safe."""
        return self.current

    def run_round(self) -> None:
        """Process samples, load the newest table, and decide if this instance leads."""
        self._new_samples.clear()
        try:
            try:
                self._reload_trust()
            finally:  # even if the database failed, with the last trust state
                self._take_samples()
            self._load_newest_table()
            self.leads = self._lead.is_leader()
            if self.leads:
                self._lead_round()
        except ring_queries.EpochTaken as e:
            LOG.warning("%s; stepping down", e)
            self._stored_epoch = -1  # unknown
            self._lead.step_down()
        except database.DatabaseError as e:
            if self._has_database:
                LOG.warning("the database fails: %s; keeping the last table", e)
            self._has_database = False
            self._lead.step_down()
        except Exception as e:  # no error may end the service
            if repr(e) != self._failed:
                LOG.exception("a round failed; keeping the last table")
            self._failed = repr(e)
            self.leads = False
            self._lead.step_down()
        else:
            self._failed = ""
            if not self._has_database:
                LOG.info("the database answers again")
            self._has_database = True
        self.leads = self.leads and self._has_database
        self.members.forget_dead(self._clock.monotonic())
        self.metrics = self._new_metrics()

    def _reload_trust(self) -> None:
        self._trust = self._authority.load_trust_state()
        self._refused_enrolments = self._store.refused_enrolments()
        self._silent = self._store.silent_hosts(self._clock.time() - health_checks.NO_SAMPLE_S)
        revoked = self._trust.list_revoked(self._clock.time())
        self.members.remove_hosts(host for host in revoked if not self._trust.is_enrolled(host))
        self.decider.set_revoked(revoked)
        if self.current.table:
            self.current = self._signed(self.current.epoch, self.current.table)

    def _signed(self, epoch: int, text: str) -> decision_messages.RingTable:
        signature = self._trust.sign_data(signing.TABLE, text.encode())
        return decision_messages.RingTable(epoch, text, signature)

    def _take_samples(self) -> None:
        with self._inbox_lock:
            received = self._inbox.drain_samples(self._clock.monotonic())
        for received_s, certificate, sample in received:
            if fault := self._trust.why_untrusted(certificate, self._clock.time()):
                self._untrusted += 1
                words = (sample.host, sample.number, fault)
                self._warnings.log_line("%s: sample %d is refused: %s", *words)
                continue
            self._accept(sample, received_s)

    def _accept(self, sample: decision_messages.Sample, received_s: float) -> None:
        refusal = self.members.accept_sample(sample, received_s, self._clock.time())
        if refusal is None:
            self._merge_sample(sample)
            self._accepted += 1
            return
        log = self._warnings if refusal in _CLAIMS else self._refusal_log
        words = (sample.host, sample.number, refusal.value, sample.address)
        log.log_line("%s: sample %d is refused: %s (%s)", *words)

    def _merge_sample(self, sample: decision_messages.Sample) -> None:
        former = self._new_samples.get(sample.host)
        if former is not None:
            images = former.images if sample.images is None else sample.images
            boots = (*former.boots, *sample.boots)[-decision_messages.MAX_BOOTS :]
            sample = msgspec.structs.replace(sample, images=images, boots=boots)
        self._new_samples[sample.host] = sample

    def _load_newest_table(self) -> None:
        """Load the newest undamaged table; another leader's table reveals a lost lock."""
        if self._store.latest_epoch(self._last_epoch) == self._stored_epoch:
            return
        known, former_epoch = self._known_epoch(), self._stored_epoch
        found = self._store.newest_rings(known)
        self._stored_epoch = found[0].row.epoch if found else 0
        is_new = self._stored_epoch > former_epoch  # else rows were deleted
        if self.leads and is_new and found[0].row.instance != self._lead.instance:
            words = self._stored_epoch, found[0].row.instance
            LOG.warning("epoch %d was published by %s; stepping down", *words)
            self._lead.step_down()
        last = found[-1] if found and found[-1].ring else None
        self._last_epoch = max(known, last.row.epoch if last else 0) + hash_ring.MAX_LEAP
        if last is None or last.ring is None or last.row.epoch <= self.current.epoch:
            return  # no table is left but the present one
        self.decider.load_table(ring_conversion.from_ring(last.ring))
        self.current = self._signed(last.row.epoch, last.row.table or "")
        for host in last.ring.hosts:
            name = ids.HostId(host.host)
            self.members.restore_member(name, host.address, host.location, self._clock.monotonic())

    def _lead_round(self) -> None:
        self._store_samples()
        self._prove_addresses()
        self.decider.observe_loads(self._busy_levels())
        decision = self.decider.decide_table(self._clock.monotonic(), self._store.list_drained())
        is_newest = self._stored_epoch == self.current.epoch == self._highest_epoch()
        if decision is None and self.decider.table.hosts and not is_newest:
            decision = decider.Decision(self.decider.table, decider.ChangeReason.EPOCH, 0)
        if decision is not None:
            self._publish_decision(decision)
        elif self._clock.monotonic() - self._published_s > decision_messages.COLLECTION_S:
            self._resend_table()
        self._resend_tasks()

    def _store_samples(self) -> None:
        rows = {
            host: (sample, self.members[ids.HostId(host)].overloaded_in_a_row)
            for host, sample in self._new_samples.items()
            if ids.HostId(host) in self.members
        }
        self._store.record_samples(rows)
        self._store.delete_traffic(self._clock.time() - TRAFFIC_KEPT_S)
        if self._clock.monotonic() >= self._cleanup_due_s:
            self._store.delete_stale(self._clock.time())
            self._cleanup_due_s = self._clock.monotonic() + FORGET_EVERY_S

    def _prove_addresses(self) -> None:
        if self._verifier is None:
            return
        for proof in self._verifier.take_results():
            self.members.record_proof(proof.address, proof.host, self._clock.monotonic())
            if not proof.host:
                words = (*proof.address, proof.why)
                self._warnings.log_line("no agent authenticates at %s port %d: %s", *words)
        in_flight = self._verifier.in_flight()
        due = self.members.take_addresses(in_flight, self._clock.monotonic())
        self._verifier.submit_addresses(due, self._trust)

    def _busy_levels(self) -> tuple[int, ...] | None:
        hosts = {
            host: base.HostLoad(
                sample.location, members.other_traffic_share(sample) * sample.link_bytes_s
            )
            for host in self.members.list_live(self._clock.monotonic())
            for sample in [self.members[host].last]
        }
        try:
            busy = threshold.busy_levels(self._loads.read_levels(hosts))
        except base.LoadsUnknown as e:
            if self._knows_loads:
                LOG.warning("%s; keeping the thresholds", e)
            self._knows_loads = False
            return None
        self._knows_loads = True
        return busy

    def _highest_epoch(self) -> int:
        return max(self._known_epoch(), self._stored_epoch)

    def _known_epoch(self) -> int:
        """Return the last epoch; if higher, that of most hosts: one lying host changes nothing."""
        living = self.members.list_live(self._clock.monotonic())
        claimed = sorted(self.members[host].last.ring_epoch for host in living)
        most = claimed[(len(claimed) - 1) // 2] if claimed else 0
        return max(self.current.epoch, most if most < HIGHEST_TRUSTED_EPOCH else 0)

    def _publish_decision(self, decision: decider.Decision) -> None:
        """Store a table in the database, then publish it; raise EpochTaken if too late."""
        epoch = self._highest_epoch() + 1
        text = hash_ring.encode(ring_conversion.to_ring(decision.table, epoch)).decode()
        if len(text) > hash_ring.MAX_FILE_BYTES:
            why = f"{len(text)} bytes, more than {hash_ring.MAX_FILE_BYTES}"
            raise errors.RingFormatError(f"epoch {epoch}", hash_ring.MAX_FILE_BYTES, why)
        places = decision.table.hosts.values()
        new = ring_queries.Publication(
            epoch=epoch,
            published_s=self._clock.time(),
            reason=decision.reason.value,
            overloaded=decision.overloaded,
            moved=decision.moved,
            vnodes=sum(len(place.names) for place in places),
            hosts=len(places),
            instance=self._lead.instance,
            table=text,
        )
        self._store.store_ring(new, TABLES_KEPT)
        self.decider.commit_decision(decision)
        self.current, self._stored_epoch = self._signed(epoch, text), epoch
        self._published_s = self._clock.monotonic()
        self._tables_published[new.reason] += 1
        self._moved += new.moved
        LOG.info(
            "epoch %d (%s): %d of %d v-nodes move, %d hosts",
            epoch,
            new.reason,
            new.moved,
            new.vnodes,
            new.hosts,
        )
        self._bus.publish_table(self.current)

    def _resend_table(self) -> None:
        """Send the table to its hosts that report an older one; others join with a newer one."""
        for host, sample in sorted(self._new_samples.items()):
            is_late = host in self.decider.table.hosts and sample.ring_epoch < self.current.epoch
            if is_late and not self._bus.send_table(host, self.current):
                return

    def _resend_tasks(self) -> None:
        now_s = self._clock.time()
        due_s = now_s - ACKNOWLEDGED_WITHIN * decision_messages.COLLECTION_S
        for given in self._store.unacknowledged_tasks(now_s - RESEND_AFTER_S):
            if given.host not in self._new_samples or given.sent_s > due_s:
                continue
            LOG.info("%s did not acknowledge task %d: resending it", given.host, given.task.request)
            again = decision_messages.TaskForHosts(
                task=given.task, hosts=(given.host,), given_s=self._clock.time()
            )
            if not self._bus.send_task(
                given.host, self._authority.sign_payload(again, signing.TASK)
            ):
                return

    def _new_metrics(self) -> metrics.InstanceMetrics:
        now_s, places = self._clock.monotonic(), self.decider.table.hosts
        hosts: dict[str, metrics.HostMetrics] = {}
        for host in self.members.list_live(now_s):
            member = self.members[host]
            vnodes = len(places[host].names) if host in places else 0
            is_overloaded = member.overloaded_in_a_row > 0
            hosts[host] = metrics.HostMetrics(vnodes, member.traffic_share(), is_overloaded)
        silent = self._silent if self.leads and hosts else identity_queries.Silent()
        return metrics.InstanceMetrics(
            leads=self.leads,
            round_s=self._clock.time(),
            has_database=self._has_database,
            has_loads=self._knows_loads,
            epoch=self.current.epoch,
            thresholds=self.decider.table.thresholds,
            segment_chunks=self.decider.table.segment_chunks,
            places=len(self.decider.table.policies),
            traffic_cv=self.members.traffic_cv(now_s),
            hosts=hosts,
            silent=silent.names,
            silent_total=silent.total,
            accepted_samples=self._accepted,
            refused={
                **{
                    reason.value: times + self._inbox.refused[reason]
                    for reason, times in self.members.refused.items()
                },
                "disbelieved": self._untrusted,
            },
            refused_enrolments=self._refused_enrolments,
            published=dict(self._tables_published),
            moved=self._moved,
        )
