# SPDX-License-Identifier: Apache-2.0
"""Converts between the decider's table and the ring that agents use."""

from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_decision.core import decider
from acstor_decision.core import threshold


def to_ring(table: decider.VNodeTable, epoch: int) -> hash_ring.Ring:
    """Return a table as the ring of an epoch; ValueError if it exceeds a limit of the ring."""
    hosts = tuple(
        hash_ring.named_host(host, place.address, place.names, place.location)
        for host, place in table.hosts.items()
    )
    return hash_ring.Ring(
        *(epoch, hosts, *table.thresholds, table.revoked, table.policies),
        segment_chunks=table.segment_chunks,
    )


def from_ring(published: hash_ring.Ring) -> decider.VNodeTable:
    """Return a ring as the decider's table."""
    places = {
        ids.HostId(host.host): decider.TableHost(
            host.address, host.location, frozenset(host.iter_vnodes())
        )
        for host in published.hosts
    }
    thresholds = threshold.Thresholds(published.threshold, published.outer_threshold)
    settings = published.revoked, published.policies, published.segment_chunks
    return decider.VNodeTable(places, thresholds, *settings)
