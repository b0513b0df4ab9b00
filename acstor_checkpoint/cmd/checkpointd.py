# SPDX-License-Identifier: Apache-2.0
"""``acstor-checkpointd``: the checkpoint daemon of each host."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any

from oslo_config import cfg
from prometheus_client import registry

from acstor_checkpoint import conf as checkpoint_conf
from acstor_checkpoint import metrics
from acstor_checkpoint import vault_service
from acstor_checkpoint.capture import agent_files
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.schedule import bus_client
from acstor_checkpoint.vault import authorized_hosts
from acstor_checkpoint.vault import owner_deletion
from acstor_checkpoint.vault import vault_store
from acstor_common import errors
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.service import signals

PROG = "acstor-checkpointd"


def load_conf(args: list[str]) -> cfg.ConfigOpts:
    """Return the configuration of command line ``args``, or raise cfg.Error."""
    conf = cfg.ConfigOpts()
    options = checkpoint_conf.list_opts()
    says = "Run what takes checkpoints of this host's servers, and keeps those of others."
    common_conf.load(conf, args, PROG, checkpoint_conf.register_opts, options, says)
    return conf


def main() -> int:
    """Run the daemon until SIGTERM or SIGINT; return an exit status."""
    try:
        return run(load_conf(sys.argv[1:]))
    except (errors.Unusable, cfg.Error) as e:
        print(f"{PROG}: {console_script.error_text(e)}", file=sys.stderr)
        return 1


def run(conf: cfg.ConfigOpts, register: checkpoint_record.Register | None = None) -> int:
    """Run the daemon.

    :param register: registers checkpoints; None: use the message bus, or without a bus only serve
        the vault
    :raises errors.Unusable: invalid configuration or environment
    """
    signals.install(conf.mutate_config_files)
    os.umask(0o077)  # stored data is private
    ended = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    own = conf.acstor_checkpoint
    if register is None and not conf.transport_url and not own.vault_listen:
        raise errors.Unusable(
            "[DEFAULT] transport_url, [acstor_checkpoint] vault_listen",
            f"neither is set in {_files_of(conf)}, so there is nothing to do",
            "Name the broker of the message bus to take checkpoints of this host's servers, and "
            "an address to keep those of others",
        )
    agent = checkpoint_conf.agent_options(conf)
    identity, files = vault_service.identity(agent), agent_files.AgentFiles.from_options(agent)
    proof = vault_service.credentials(identity)
    with contextlib.ExitStack() as stack:
        authorized = authorized_hosts.AuthorizedHosts(files.read_ring)
        served = vault_service.serve_vault(
            own, identity.here, proof, authorized.why_refused, authorized.hosts_at
        )
        vault = stack.enter_context(served)
        shown: list[registry.Collector] = [] if vault is None else [metrics.VaultCollector(vault)]
        if register is not None:
            from acstor_checkpoint import (
                capture_service,  # needs libvirt, and a vault alone does not
            )

            mount_point, link = conf.acstor.mount_point, capture_service.DecisionLink(register)
            running = capture_service.run_captures(
                own, files, mount_point, identity.here, proof, link
            )
            taken: metrics.CheckpointStatus | None = stack.enter_context(running)
        elif conf.transport_url:
            taken = _start_captures(conf, files, identity, proof, vault, stack)
        else:
            taken = None
        if taken is not None:
            shown.append(metrics.CheckpointCollector(taken, own.metrics_by_server))
        if shown and own.metrics_listen:
            stack.callback(metrics.serve(own.metrics_listen, *shown))
        ended.wait()
    return 0


def _files_of(conf: cfg.ConfigOpts) -> str:
    return ", ".join(conf.config_file or []) or "any file (give one with --config-file)"


def _start_captures(
    conf: cfg.ConfigOpts,
    files: agent_files.AgentFiles,
    identity: identity_files.IdentityFiles,
    proof: credentials.Credentials,
    vault: vault_store.VaultStore | None,
    stack: contextlib.ExitStack,
) -> metrics.CheckpointStatus:
    """Take checkpoints until the stack closes, and register them over the message bus.

    :param vault: of this host; orphaned data is deleted from it, and its issues are reported
    :raises errors.Unusable: invalid transport_url, or an unusable folder
    """
    from acstor_checkpoint import capture_service

    link = bus_client.BusClient(
        identity.here,
        identity,
        bus_client.open_transport(conf.config_file or [], conf.config_dir or []),
        lambda instance: taking.interval_s(instance),
        tuple if vault is None else vault.health.list_issues,
    )
    stack.callback(link.stop)
    if vault is not None:
        stack.enter_context(owner_deletion.run_deletion(vault, link.departed_owners))
    asked = capture_service.DecisionLink(
        link.register_checkpoint, link.list_retained, link.fetch_intervals
    )
    running = capture_service.run_captures(
        conf.acstor_checkpoint, files, conf.acstor.mount_point, identity.here, proof, asked
    )
    taking = stack.enter_context(running)
    link.listen_for_requests(taking.request_checkpoint)
    return taking


if __name__ == "__main__":
    sys.exit(main())
