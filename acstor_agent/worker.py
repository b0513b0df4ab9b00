# SPDX-License-Identifier: Apache-2.0
"""The worker process: opens cache and nursery, runs the agent, closes both."""

import functools
import gc
import logging
import os
import signal

import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.core.mount import inodes
from acstor_agent.daemon import agent
from acstor_agent.daemon import storage
from acstor_agent.process import supervisor
from acstor_common import errors

LOG = logging.getLogger(__name__)


def run_worker(conf: cfg.ConfigOpts, inheritance: supervisor.Inheritance, secret: bytes) -> None:
    """Run a worker with this host's secret until SIGTERM; raise Unusable for bad options."""
    trio.run(functools.partial(_work, conf, inheritance, secret))


async def _work(conf: cfg.ConfigOpts, inheritance: supervisor.Inheritance, secret: bytes) -> None:
    own = conf.acstor_agent
    host = settings.host_id(own.host)
    identity = settings.make_identity_files(own, host)
    rings = membership.ring_store_of(own, identity)
    stored = storage.Storage.open(own, host, rings)
    try:
        async with trio.open_nursery() as nursery:
            inode_numbers = inodes.Inodes(inodes.keyed(secret))
            daemon = agent.Agent(conf, nursery, stored, inode_numbers, identity, rings)
            await daemon.start(inheritance)
            gc.freeze()  # garbage collection of long-lived objects would delay guests
            with trio.open_signal_receiver(signal.SIGTERM) as stops:
                inheritance.ready()
                LOG.info("worker %d serves %s", os.getpid(), conf.acstor.mount_point)
                async for _ in stops:
                    break
            LOG.info("worker %d stops", os.getpid())
            await daemon.leave_bus()
            nursery.cancel_scope.cancel()
        await daemon.stop()
    except BaseExceptionGroup as failures:
        if (unusable := failures.subgroup(errors.Unusable)) is not None:
            raise _first(unusable) from None
        raise
    finally:
        await stored.cache.aclose()


def _first(group: BaseExceptionGroup) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
