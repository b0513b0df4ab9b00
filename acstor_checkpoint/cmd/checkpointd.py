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

from acstor_checkpoint import agent_files
from acstor_checkpoint import conf as checkpoint_conf
from acstor_checkpoint import metrics
from acstor_checkpoint import vault_service
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
from acstor_common.wire import message_bus

PROG = "acstor-checkpointd"


def load_conf(args: list[str]) -> cfg.ConfigOpts:
    """Return the configuration of command line ``args``, or raise cfg.Error."""
    conf = cfg.ConfigOpts()
    options = checkpoint_conf.list_opts()
    description = "Take checkpoints of this host's servers, and store those of other hosts."
    common_conf.load(conf, args, PROG, checkpoint_conf.register_opts, options, description)
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

    :param register: registers checkpoints; None: the message bus, or without bus only the vault
    :raises errors.Unusable: invalid configuration or environment
    """
    signals.install(conf.mutate_config_files)
    os.umask(0o077)  # stored data is private
    ended = _end_on_signal()
    own = conf.acstor_checkpoint
    if register is None and not conf.transport_url and not own.vault_listen:
        raise errors.Unusable(
            "[DEFAULT] transport_url, [acstor_checkpoint] vault_listen",
            f"neither is set in {_files_of(conf)}, so there is nothing to do",
            "Set the broker of the message bus to take checkpoints of this host's servers, and an "
            "address to store those of other hosts",
        )
    agent = checkpoint_conf.agent_options(conf)
    identity, files = vault_service.open_identity(agent), agent_files.AgentFiles.from_options(agent)
    proof = vault_service.load_credentials(identity)
    with contextlib.ExitStack() as stack:
        authorized = authorized_hosts.AuthorizedHosts(files)
        served = vault_service.serve_vault(own, identity.host, proof, authorized)
        vault = stack.enter_context(served)
        collectors: list[registry.Collector] = []
        if vault is not None:
            collectors.append(metrics.VaultCollector(vault))
        if register is not None or conf.transport_url:
            captures = _start_captures(conf, files, identity, proof, vault, register, stack)
            collectors.append(metrics.CheckpointCollector(captures))
        if collectors and own.metrics_listen:
            stack.callback(metrics.serve(own.metrics_listen, *collectors))
        ended.wait()
    return 0


def _end_on_signal() -> threading.Event:
    ended = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return ended


def _files_of(conf: cfg.ConfigOpts) -> str:
    return ", ".join(conf.config_file or []) or "any file (give one with --config-file)"


def _start_captures(
    conf: cfg.ConfigOpts,
    files: agent_files.AgentFiles,
    identity: identity_files.IdentityFiles,
    proof: credentials.Credentials,
    vault: vault_store.VaultStore | None,
    register: checkpoint_record.Register | None,
    stack: contextlib.ExitStack,
) -> metrics.CheckpointStatus:
    """Take checkpoints until the stack closes, or raise Unusable; ``register``: see :func:`run`."""
    from acstor_checkpoint import capture_service  # needs libvirt, and a vault alone does not

    bus = None
    if register is None:
        bus = _open_bus(conf, identity, vault, stack)
        link = capture_service.DecisionLink(
            bus.register_checkpoint, bus.list_retained, bus.fetch_intervals
        )
    else:
        link = capture_service.DecisionLink(register)
    running = capture_service.run_captures(
        conf.acstor_checkpoint, files, conf.acstor.mount_point, identity.host, proof, link
    )
    captures = stack.enter_context(running)
    if bus is not None:
        bus.listen_for_requests(captures.request_checkpoint)
    return captures


def _open_bus(
    conf: cfg.ConfigOpts,
    identity: identity_files.IdentityFiles,
    vault: vault_store.VaultStore | None,
    stack: contextlib.ExitStack,
) -> bus_client.BusClient:
    """Return the client on the message bus, stopped when the stack closes, or raise Unusable."""
    bus = bus_client.BusClient(
        identity.host,
        identity,
        message_bus.open_global_transport(conf.config_file or [], conf.config_dir or []),
        None if vault is None else vault.health,
    )
    stack.callback(bus.stop)
    if vault is not None:
        stack.enter_context(owner_deletion.run_deletion(vault, bus.departed_owners))
    return bus


if __name__ == "__main__":
    sys.exit(main())
