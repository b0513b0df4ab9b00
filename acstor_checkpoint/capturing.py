# SPDX-License-Identifier: Apache-2.0
"""Puts together from options what takes checkpoints of this host's servers, and runs it.

Where nobody registers checkpoints none are taken.
"""

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
from acstor_checkpoint import checkpointing
from acstor_checkpoint import daemon
from acstor_checkpoint import domains
from acstor_checkpoint import garbage_collection
from acstor_checkpoint import intervals as intervals_
from acstor_checkpoint import off_pull
from acstor_checkpoint import pulling
from acstor_checkpoint import record
from acstor_checkpoint import recovered
from acstor_checkpoint import ring_places
from acstor_checkpoint import scratch as scratch_
from acstor_checkpoint import states
from acstor_checkpoint import vault_files
from acstor_common import errors
from acstor_common.identity import credentials as credentials_
from acstor_common.model import ids
from acstor_common.util import supervision

_ENDS_WITHIN_S = 60.0
_MAX_FOLDER_BYTES = 70

Options = cfg.ConfigOpts.GroupAttr


class Link(NamedTuple):
    """What is said to the decision service, and asked.

    :param register: registers a checkpoint
    :param kept: asks which stay; None: what is deleted stays until the next one is registered
    :param intervals: asks what Nova says of intervals; None: nothing
    """

    register: record.Register
    kept: garbage_collection.Kept | None = None
    intervals: intervals_.Ask | None = None


@contextlib.contextmanager
def running(
    own: Options,
    mount_point: str,
    host: ids.HostId,
    proof: credentials_.Credentials,
    link: Link,
) -> Iterator[daemon.Daemon]:
    """Take checkpoints as long as the block lasts.

    :param mount_point: where the agent shows mirrors
    :param proof: what this host proves to vaults
    :raises errors.Unusable: a folder cannot be used
    """
    ended = threading.Event()
    # What one has drop, another one may just have found there.
    with _alone(pathlib.Path(own.state_dir)):
        scratch = scratch_.Scratch(pathlib.Path(own.socket_dir), own.scratch_limit_bytes)
        made, collection = _made(own, mount_point, host, proof, link, scratch, ended)
        threads = [
            *(supervision.start("checkpoints", made.run, ended) for _ in range(daemon.WORKERS)),
            supervision.start("scratch files", lambda: scratch.run(ended), ended),
            supervision.start("pulling", _pulling(own, mount_point, ended).run, ended),
        ]
        if collection is not None:
            loop = collection.run
            threads.append(supervision.start("garbage collection", loop, ended, is_vital=False))
        try:
            yield made
        finally:
            ended.set()
            made.stop()
            until_s = time.monotonic() + _ENDS_WITHIN_S
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))


@contextlib.contextmanager
def _alone(state_dir: pathlib.Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            why = "another process takes checkpoints of this host"
            stack.enter_context(vault_files.locked(state_dir, why))
        except OSError as e:
            raise errors.Unusable(f"[acstor_checkpoint] state_dir {state_dir}", str(e)) from e
        yield


def _made(
    own: Options,
    mount_point: str,
    host: ids.HostId,
    proof: credentials_.Credentials,
    link: Link,
    scratch: scratch_.Scratch,
    ended: threading.Event,
) -> tuple[daemon.Daemon, garbage_collection.GarbageCollection | None]:
    files = agent_files.AgentFiles.of(own)
    bases = recovered.Bases(mount_point)
    folder = pathlib.Path(own.socket_dir)
    known = _states(pathlib.Path(own.state_dir), folder)
    served = domains.Domains(own.libvirt_uri, bases.image_of)
    only = _holders(own.checkpoint_holders)
    places = ring_places.RingPlaces(host, files.ring, proof, own.vault_port, only)
    taker = checkpointing.Checkpointing(
        checkpointing.Settings(
            host,
            own.checkpoint_copies,
            own.checkpoint_rate_bytes_s,
            folder,
            bases.mirrors,
            own.capture_slice_s,
            own.capture_limit_s,
            ended,
        ),
        served,
        known,
        files.image,
        places,
        link.register,
        scratch,
    )
    made = daemon.Daemon(
        served, taker, known, own.checkpoint_interval_s, ask_intervals=link.intervals
    )
    if link.kept is None:
        return made, None
    return made, garbage_collection.GarbageCollection(host, known, places, link.kept, made, ended)


def _pulling(own: Options, mount_point: str, ended: threading.Event) -> pulling.Pulling:
    bases = recovered.Bases(mount_point)
    return pulling.Pulling(
        domains.Domains(own.libvirt_uri, bases.checkpoint_of),
        recovered.Recovered(pathlib.Path(own.agent_state_dir)),
        bases,
        own.checkpoint_rate_bytes_s,
        ended,
        off_pull.Puller(ended),
    )


def _holders(named: Sequence[str]) -> list[ids.HostId]:
    try:
        return [ids.parse_host_id(name) for name in named]
    except ValueError as e:
        raise errors.Unusable("[acstor_checkpoint] checkpoint_holders", str(e)) from e


def _states(state_dir: pathlib.Path, folder: pathlib.Path) -> states.States:
    if len(bytes(folder)) > _MAX_FOLDER_BYTES:
        why = f"{folder} is too long for addresses of sockets"
        raise errors.Unusable("[acstor_checkpoint] socket_dir", why)
    try:
        if not folder.is_dir():
            folder.mkdir()
            owner = folder.parent.stat()  # libvirt's own folders are those of QEMU's user
            os.chown(folder, owner.st_uid, owner.st_gid)
        return states.States(state_dir)
    except OSError as e:
        raise errors.Unusable("[acstor_checkpoint] state_dir, socket_dir", str(e)) from e
