# SPDX-License-Identifier: Apache-2.0
"""The worker process: opens cache and nursery, runs the agent, closes both."""

import functools
import gc
import logging
import os
import pathlib
import signal

import trio
from oslo_config import cfg

from acstor_agent import daemon
from acstor_agent import settings
from acstor_agent.cache import cache_files
from acstor_agent.cloud import membership
from acstor_agent.cloud import ring_keeper
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.images import replica_placement
from acstor_agent.core.mount import inodes
from acstor_agent.images.keep import pins
from acstor_agent.process import supervisor
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)


def run_worker(conf: cfg.ConfigOpts, inheritance: supervisor.Inheritance, secret: bytes) -> None:
    """Run a worker until SIGTERM.

    :param secret: of this host (see ``process/host_secret.py``)
    :raises errors.Unusable: the configuration, or what it names, cannot be used
    """
    trio.run(functools.partial(_work, conf, inheritance, secret))


async def _work(conf: cfg.ConfigOpts, inheritance: supervisor.Inheritance, secret: bytes) -> None:
    own = conf.acstor_agent
    chosen = settings.policies(own)
    io = disk_io.DiskIo(
        settings.disk_policy(own.disk_policy, own.cache_dir), chosen.disk_schedulers
    )
    here = settings.host_id(own.host)
    identity = settings.identity(own, here)
    rings = membership.ring_keeper_of(own, identity)
    is_shared = own.keep_images == "cloud"
    slab_bytes = cache_slab.slab_bytes_for(own.cache_limit_bytes)
    promised = pins.ImagePins(
        pathlib.Path(own.state_dir),
        own.cache_limit_bytes,
        slab_bytes,
        may_grow=own.cache_may_grow_for_pins,
        shares=_shares(own, here, rings) if is_shared else None,
    )
    if own.keep_images != "none":
        promised.load()
    cache = cache_files.CacheFiles.open(
        own.cache_dir,
        own.cache_limit_bytes,
        slab_bytes,
        chosen.cache_order,
        io=io,
        pins=promised.pins,
    )
    try:
        async with trio.open_nursery() as nursery:
            known = inodes.Inodes(inodes.keyed(secret))
            agent = daemon.Agent(conf, nursery, cache, io, known, promised, identity, rings)
            await agent.start(inheritance)
            gc.freeze()  # garbage collection of long-lived objects would delay guests
            with trio.open_signal_receiver(signal.SIGTERM) as stops:
                inheritance.ready()
                LOG.info("worker %d serves %s", os.getpid(), conf.acstor.mount_point)
                async for _ in stops:
                    break
            LOG.info("worker %d stops", os.getpid())
            await agent.leave()
            nursery.cancel_scope.cancel()
        await agent.stop()
    except BaseExceptionGroup as failures:
        if (unusable := failures.subgroup(errors.Unusable)) is not None:
            raise _first(unusable) from None
        raise
    finally:
        await cache.aclose()


def _shares(
    own: cfg.ConfigOpts.GroupAttr, here: ids.HostId, rings: ring_keeper.RingKeeper
) -> replica_placement.ReplicaPlacement:
    naming = settings.policies(own).identity()
    return replica_placement.ReplicaPlacement(
        here, rings.current_ring, naming.oid_of, is_by_place=naming.is_by_place
    )


def _first(group: BaseExceptionGroup) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
