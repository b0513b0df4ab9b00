# SPDX-License-Identifier: Apache-2.0
"""This host as a member of its cloud: identity, message bus, decision service."""

import contextlib
import importlib
import pathlib

import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import decision_link
from acstor_agent.cloud import decision_receiver
from acstor_agent.cloud import enrolment
from acstor_agent.cloud import grant_client
from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_store
from acstor_agent.cloud import traffic_meter
from acstor_agent.engine.ring import placement
from acstor_agent.runtime import supervised_tasks
from acstor_agent.sources import host_grants
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import trace_message
from acstor_common.wire import vault_paths

_BUS = "message bus"


def ring_store_of(
    own: cfg.ConfigOpts.GroupAttr, identity: identity_files.IdentityFiles
) -> ring_store.RingStore:
    """Return the keeper of the v-node table; blocks to read the stored one."""
    return ring_store.RingStore(
        pathlib.Path(own.state_dir) / "ring.json",
        pathlib.Path(own.ring_file) if own.ring_file else None,
        ring_store.FORMER_TABLE_LIFETIME_S,
        identity=identity,
    )


def import_optional(conf: cfg.ConfigOpts) -> None:
    """Import modules that this host needs, two fifths of a start, before a worker is forked."""
    if conf.transport_url:
        importlib.import_module("acstor_agent.cloud.bus")
    if conf.transport_url or conf.acstor_agent.keep_images != "none":
        importlib.import_module("pyroute2")


class Membership:
    """This host's connections to its cloud."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        host: ids.HostId,
        identity: identity_files.IdentityFiles,
        rings: ring_store.RingStore,
        supervised: supervised_tasks.SupervisedTasks,
    ) -> None:
        own = conf.acstor_agent
        self._conf, self.host = conf, host
        self.identity, self.rings = identity, rings
        self._sender = message_signing.MessageSigner(self.identity)
        self.vault_credentials = credentials.Credentials(
            identity, vault_paths.PROTOCOL, certificates.GRACE_S
        )
        self.enrolment = enrolment.from_conf(conf, host, self.identity, rings)
        self._bus = self._open_bus(supervised)
        self.decision: decision_link.DecisionLink | None = None
        """Set by :meth:`make_link` if there is a bus."""
        self.has_others = any((own.ring_file, self._bus, self.enrolment))
        """Whether a v-node table may arrive later."""

    def _open_bus(
        self, supervised: supervised_tasks.SupervisedTasks
    ) -> decision_receiver.Bus | None:
        conf = self._conf
        if not conf.transport_url:
            return None
        from acstor_agent.cloud import bus

        token = trio.lowlevel.current_trio_token()

        def report_fault(why: str) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(supervised.set_logged_state, _BUS, why)

        try:
            return bus.open_bus(
                self.host, conf.config_file or [], conf.config_dir or [], report_fault
            )
        except errors.Unusable as e:
            supervised.note_failure(_BUS, f"{e}; the agent does not retry before a restart")
            return None

    def credentials(self) -> credentials.Credentials | None:
        """Return the peer credentials, None if insecure; raise Unusable without a certificate."""
        return settings.peer_credentials(
            self._conf.acstor_agent, self.identity, may_come_later=self.enrolment is not None
        )

    def image_grants(self) -> host_grants.HostGrants | None:
        """Return this host's grants for images; None without a bus."""
        if self._bus is None:
            return None
        client = grant_client.GrantClient(self.host, self._bus, self.identity)
        return host_grants.HostGrants(client.request, self.identity)

    def make_link(
        self, report: decision_link.HostReport, tasks: decision_receiver.TaskQueue
    ) -> None:
        """Create the link to the decision service, if there is a bus."""
        if self._bus is None:
            return
        own = self._conf.acstor_agent
        self.decision = decision_link.DecisionLink(
            decision_link.HostAddress(self.host, settings.reachable_at(own), own.location),
            message_bus=self._bus,
            meter=traffic_meter.TrafficMeter(own.traffic_interfaces, own.link_mbit),
            sender=self._sender,
            receiver=decision_receiver.DecisionReceiver(
                self.host, self._bus, self.identity, self.rings, tasks
            ),
            rings=self.rings,
            report=report,
            collection_s=decision_messages.COLLECTION_S,
        )

    def delegated_host(self, image_id: ids.ImageId) -> str:
        """Describe which other host downloads an image for all; empty: this one may."""
        home = placement.image_home(self.rings.current_ring(), image_id)
        if home is None and self.has_others:
            return "there is no v-node table yet to select the host that reads it for all"
        return "" if home in (None, self.host) else f"{home} reads it as one stream, for all hosts"

    def count_received(self, peer: ids.HostId, count: int, took_s: float | None) -> None:
        """Count bytes of a chunk from a peer; see :class:`decision_link.DecisionLink`."""
        if self.decision is not None:
            self.decision.count_received(peer, count, took_s)

    def count_sent(self, peer: ids.HostId, count: int) -> None:
        """Count bytes of a chunk sent to a peer."""
        if self.decision is not None:
            self.decision.count_sent(peer, count)

    def cast_trace(self, trace: trace_message.BootTrace) -> bool:
        """Send a boot trace to the Glance listener; return False if that is impossible."""
        signed = self._sender.sign_message(trace, signing.TRACE) if self._bus else None
        if self._bus is None or signed is None:
            return False
        self._bus.cast_message(trace_message.TOPIC, trace_message.BOOT_TRACED, signed)
        return True

    async def stop(self) -> None:
        """Stop the message bus."""
        if self._bus is not None:
            await trio.to_thread.run_sync(self._bus.stop)
