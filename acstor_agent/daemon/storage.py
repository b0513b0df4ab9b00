# SPDX-License-Identifier: Apache-2.0
"""The storage of a host: disk I/O, pins and chunk cache."""

import pathlib
from typing import NamedTuple
from typing import Self

from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cache import cache_files
from acstor_agent.cloud import ring_store
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.images import replica_placement
from acstor_agent.images.keep import pins
from acstor_agent.runtime import disk_io
from acstor_common.model import ids


class Storage(NamedTuple):
    """Disk I/O, pinned images, and the cache that has their chunks."""

    io: disk_io.DiskIo
    pins: pins.ImagePins
    cache: cache_files.CacheFiles

    @classmethod
    def open(
        cls, own: cfg.ConfigOpts.GroupAttr, host: ids.HostId, rings: ring_store.RingStore
    ) -> Self:
        """Open the configured cache, or raise Unusable if it cannot be used; blocks."""
        chosen = settings.load_policies(own)
        policy = settings.disk_policy(own.disk_policy, own.cache_dir)
        io = disk_io.DiskIo(policy, chosen.disk_schedulers)
        slab_bytes = cache_slab.slab_bytes_for(own.cache_limit_bytes)
        pinned = pins.ImagePins(
            pathlib.Path(own.state_dir),
            own.cache_limit_bytes,
            slab_bytes,
            shares=_replica_placement(own, host, rings) if own.keep_images == "cloud" else None,
        )
        if own.keep_images != "none":
            pinned.load()
        cache = cache_files.CacheFiles.open(
            own.cache_dir,
            own.cache_limit_bytes,
            slab_bytes,
            chosen.cache_order,
            io=io,
            pins=pinned.pins,
        )
        pinned.cache = cache
        return cls(io, pinned, cache)


def _replica_placement(
    own: cfg.ConfigOpts.GroupAttr, host: ids.HostId, rings: ring_store.RingStore
) -> replica_placement.ReplicaPlacement:
    naming = settings.load_policies(own).identity_scheme()
    return replica_placement.ReplicaPlacement(
        host, rings, naming.oid_of, is_by_place=naming.is_by_place
    )
