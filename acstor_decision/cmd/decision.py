# SPDX-License-Identifier: Apache-2.0
"""``acstor-decision``: the decision service, without oslo.service: systemd restarts it."""

import dataclasses
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import console_script
from acstor_common.service import signals
from acstor_common.service import tracing
from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_decision import checkpoint_registry
from acstor_decision import conf as decision_conf
from acstor_decision import image_grants
from acstor_decision import interval_lookup
from acstor_decision import leader_election
from acstor_decision import metrics
from acstor_decision import nova_client
from acstor_decision import rpc
from acstor_decision import service
from acstor_decision.db import database
from acstor_decision.identity import address_verifier
from acstor_decision.switch_loads import base

LOG = logging.getLogger(__name__)

RETRY_S = 2.0


def main() -> int:
    """Run the service until SIGTERM or SIGINT; return an exit status."""
    try:
        conf = decision_conf.load(sys.argv[1:])
        return run(conf)
    except (errors.Unusable, cfg.Error) as e:
        print(f"acstor-decision: {console_script.error_text(e)}", file=sys.stderr)
        return 1


def run(conf: cfg.ConfigOpts) -> int:
    """Run the service; Unusable if an option's value cannot be used."""
    stopping = _stop_event(conf)
    own, name = conf.acstor_decision, f"{socket.gethostname()}.{os.getpid()}"
    leader_election.check_driver(own.coordination_url)
    tracing.enable(conf, "decision")
    lead = leader_election.LeaderElection(
        own.coordination_url, name, decision_messages.COLLECTION_S
    )
    store, loads = database.Database(conf), base.load(own.switch_loads, conf)
    bus = rpc.AgentBus(conf, name)
    verifier = address_verifier.AddressVerifier() if own.verify_addresses else None
    made = service.DecisionService(conf, store, lead, loads, bus, verifier)
    nova = nova_client.NovaClient(conf)
    checkpoints = _checkpoint_registry(own, store, made, nova)
    grants = image_grants.ImageGrants(store, nova, made.trust_state)
    if not _wait_for_database(store, made.load_trust, stopping):
        return 0
    stop_metrics = _serve_metrics(own, made, bus, checkpoints, grants)
    if verifier is not None:
        verifier.start(stopping)
    methods = {**checkpoints.rpc_methods(), **grants.rpc_methods()}
    bus.start_server(made.accept_sample, methods)
    supervision.start(
        "checkpoints", lambda: checkpoints.run_cleanup(lambda: made.leads, stopping), stopping
    )
    LOG.info("%s is ready", name)
    try:
        supervision.run(
            "rounds", lambda: _rounds(made, decision_messages.COLLECTION_S, stopping), stopping
        )
    finally:
        lead.step_down()
        bus.stop_server()
        stop_metrics()
        store.close()
    return 0


def _stop_event(conf: cfg.ConfigOpts) -> threading.Event:
    signals.install(conf.mutate_config_files)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def _checkpoint_registry(
    own: cfg.ConfigOpts.GroupAttr,
    store: database.Database,
    made: service.DecisionService,
    nova: nova_client.NovaClient,
) -> checkpoint_registry.CheckpointRegistry:
    return checkpoint_registry.CheckpointRegistry(
        store,
        nova,
        made.trust_state,
        interval_lookup.IntervalLookup(nova, own.checkpoint_metadata_min_interval_s),
        kept=own.checkpoints_per_server,
        kept_after_s=float(own.checkpoint_retention_after_delete_s),
    )


def _serve_metrics(
    own: cfg.ConfigOpts.GroupAttr,
    made: service.DecisionService,
    bus: rpc.AgentBus,
    checkpoints: checkpoint_registry.CheckpointRegistry,
    grants: image_grants.ImageGrants,
) -> Callable[[], None]:
    def current() -> metrics.InstanceMetrics:
        return dataclasses.replace(
            made.metrics,
            refused={**made.metrics.refused, **bus.refused},
            checkpoints=checkpoints.newest,
            checkpoints_registered=checkpoints.registered,
            checkpoints_refused=dict(checkpoints.refused),
            grants_refused=dict(grants.refused),
        )

    if not own.metrics_listen:
        return lambda: None
    return metrics.serve(own.metrics_listen, current)


def _wait_for_database(
    store: database.Database, prepare: Callable[[], None], stopping: threading.Event
) -> bool:
    """Wait for the database, and prepare; return False if stopped first; may raise Unusable."""
    was_logged = False
    while not stopping.is_set():
        try:
            if is_current := store.is_current():
                prepare()
        except database.DatabaseError as e:
            if not was_logged:
                LOG.warning("the database fails: %s; trying again", e)
            was_logged = True
            stopping.wait(RETRY_S)
            continue
        if not is_current:
            raise errors.Unusable(
                "[database] connection",
                "its schema does not match this version",
                "Run acstor-decision-manage db-sync",
            )
        return True
    return False


def _rounds(made: service.DecisionService, collection_s: float, stopping: threading.Event) -> None:
    due_s = time.monotonic()
    while not stopping.is_set():
        made.run_round()
        due_s = max(due_s + collection_s, time.monotonic())
        stopping.wait(due_s - time.monotonic())


if __name__ == "__main__":
    sys.exit(main())
