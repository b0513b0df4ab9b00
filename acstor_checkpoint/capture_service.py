# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the checkpoint capture of this host from its options."""

import contextlib
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from oslo_config import cfg

from acstor_checkpoint import agent_files
from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import take_checkpoint
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_pool
from acstor_checkpoint.restore import offline_pull
from acstor_checkpoint.restore import pull_loop
from acstor_checkpoint.restore import recovered_disks
from acstor_checkpoint.schedule import garbage_collection
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.schedule import worker_pool
from acstor_checkpoint.vault import vault_files
from acstor_common import errors
from acstor_common.identity import credentials
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.util import supervision

_ENDS_WITHIN_S = 60.0
SCRATCH_DIR = "/var/lib/libvirt/qemu/acstor"
"""Where QEMU keeps data that guests overwrite during captures, and its sockets. The profiles of
libvirt (AppArmor, SELinux) let QEMU write here without a rule of their own."""
_MAX_FOLDER_BYTES = 70
VAULT_PORT = 7202  # of all vaults, where this host has none

Options = cfg.ConfigOpts.GroupAttr


class DecisionLink(NamedTuple):
    """Calls to the decision service."""

    register: checkpoint_record.Register  # registers a checkpoint
    list_retained: garbage_collection.ListRetained | None = None  # None: no garbage collection
    fetch_intervals: nova_intervals.FetchIntervals | None = None  # None: no intervals of Nova


@contextlib.contextmanager
def run_captures(
    own: Options,
    files: agent_files.AgentFiles,
    mount_point: str,
    host: ids.HostId,
    proof: credentials.Credentials,
    link: DecisionLink,
) -> Iterator[worker_pool.WorkerPool]:
    """Take checkpoints during the block, or raise Unusable; ``mount_point``: the agent's."""
    ended = threading.Event()
    # Two processes would delete each other's chunks from vaults.
    with _lock_state_dir(pathlib.Path(own.state_dir)):
        scratch = scratch_files.ScratchFiles(pathlib.Path(SCRATCH_DIR), own.scratch_limit_bytes)
        workers, collection = _make_workers(
            own, files, mount_point, host, proof, link, scratch, ended
        )
        pull = _make_pull_loop(own, files, mount_point, ended)
        threads = [
            *(
                supervision.start("checkpoints", workers.run, ended)
                for _ in range(worker_pool.WORKERS)
            ),
            supervision.start("scratch files", lambda: scratch.run(ended), ended),
            supervision.start("pulling", pull.run, ended),
        ]
        if collection is not None:
            loop = collection.run
            threads.append(supervision.start("garbage collection", loop, ended, is_vital=False))
        try:
            yield workers
        finally:
            ended.set()
            workers.stop()
            until_s = time.monotonic() + _ENDS_WITHIN_S
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))


@contextlib.contextmanager
def _lock_state_dir(state_dir: pathlib.Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            why = "another process takes checkpoints of this host"
            stack.enter_context(vault_files.locked(state_dir, why))
        except OSError as e:
            raise errors.Unusable(f"[acstor_checkpoint] state_dir {state_dir}", str(e)) from e
        yield


def _make_workers(
    own: Options,
    files: agent_files.AgentFiles,
    mount_point: str,
    host: ids.HostId,
    proof: credentials.Credentials,
    link: DecisionLink,
    scratch: scratch_files.ScratchFiles,
    ended: threading.Event,
) -> tuple[worker_pool.WorkerPool, garbage_collection.GarbageCollection | None]:
    bases = recovered_disks.BackingImages(mount_point)
    folder = pathlib.Path(SCRATCH_DIR)
    known = _open_states(pathlib.Path(own.state_dir), folder)
    served = domain_list.Domains(own.libvirt_uri, bases.image_of)
    only = _holders(own.checkpoint_holders)
    pool = holder_pool.HolderPool(host, files, proof, _vault_port(own), only)
    taker = take_checkpoint.CheckpointTaker(
        take_checkpoint.Settings(
            host,
            own.checkpoint_copies,
            own.checkpoint_rate_bytes_s,
            folder,
            bases.mirrors,
            ended,
        ),
        served,
        known,
        files.read_image,
        pool,
        link.register,
        scratch,
    )
    workers = worker_pool.WorkerPool(
        served, taker, known, own.checkpoint_interval_s, fetch_intervals=link.fetch_intervals
    )
    if link.list_retained is None:
        return workers, None
    return workers, garbage_collection.GarbageCollection(
        host, known, pool, link.list_retained, workers, ended
    )


def _make_pull_loop(
    own: Options, files: agent_files.AgentFiles, mount_point: str, ended: threading.Event
) -> pull_loop.PullLoop:
    bases = recovered_disks.BackingImages(mount_point)
    return pull_loop.PullLoop(
        domain_list.Domains(own.libvirt_uri, bases.checkpoint_of),
        recovered_disks.RecoveredDisks(files.state_dir),
        bases,
        own.checkpoint_rate_bytes_s,
        ended,
        offline_pull.OfflinePull(ended),
    )


def _vault_port(own: Options) -> int:
    return addresses.parse(own.vault_listen)[1] if own.vault_listen else VAULT_PORT


def _holders(named: Sequence[str]) -> list[ids.HostId]:
    try:
        return [ids.parse_host_id(name) for name in named]
    except ValueError as e:
        raise errors.Unusable("[acstor_checkpoint] checkpoint_holders", str(e)) from e


def _open_states(state_dir: pathlib.Path, folder: pathlib.Path) -> disk_states.DiskStates:
    if len(bytes(folder)) > _MAX_FOLDER_BYTES:
        why = "it is too long for addresses of sockets"
        raise errors.Unusable(str(folder), why)
    try:
        if not folder.is_dir():
            folder.mkdir()
            owner = folder.parent.stat()  # QEMU's user owns libvirt's folder
            os.chown(folder, owner.st_uid, owner.st_gid)
        return disk_states.DiskStates(state_dir)
    except OSError as e:
        raise errors.Unusable(f"[acstor_checkpoint] state_dir, or {folder}", str(e)) from e
