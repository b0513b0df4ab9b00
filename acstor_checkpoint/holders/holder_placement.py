# SPDX-License-Identifier: Apache-2.0
"""Placement of a disk's checkpoints on holders.

Only a holder that left the v-node table, is drained or unusable is replaced.  Replicas are in
different locations, and not in the owner's, if there are enough: a rack fails as a whole.  Among
equal hosts the ring decides by the disk's ID, which spreads the disks of a host.
"""

from collections.abc import Callable
from collections.abc import Sequence

from acstor_common.model import ids
from acstor_common.ring import hash_ring


def choose_holders(
    ring: hash_ring.Ring,
    owner: ids.HostId,
    disk: ids.ImageId,
    copies: int,
    current: Sequence[ids.HostId] = (),
    is_usable: Callable[[ids.HostId], bool] = lambda _host: True,
) -> tuple[ids.HostId, ...]:
    """Return the hosts that should keep a disk's checkpoints, fewer if there are not enough.

    :param owner: the disk's host, which is never chosen
    :param current: present holders, the oldest first
    """
    staying = [
        host
        for host in dict.fromkeys(current)
        if host != owner and host in ring and not ring.is_drained(host) and is_usable(host)
    ]
    chosen = staying[:copies]
    places = ring.host_locations()
    taken = {places.get(host, "") for host in (owner, *chosen)}
    others = [
        host
        for host in ring.owners_at(ids.oid_of(ids.cid_of(ids.image_id_bytes(disk))))
        if host != owner and host not in chosen and is_usable(host)
    ]
    for host in others:
        if len(chosen) < copies and places[host] not in taken:
            chosen.append(host)
            taken.add(places[host])
    chosen += [host for host in others if host not in chosen][: max(0, copies - len(chosen))]
    return tuple(chosen)
