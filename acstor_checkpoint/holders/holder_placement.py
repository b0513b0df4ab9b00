# SPDX-License-Identifier: Apache-2.0
"""Which hosts keep the checkpoints of a disk.

A holder stays one while it lives.  A change of the v-node table moves no checkpoint; only a
host that left the table, is drained, or is known to be unusable is replaced.

No two copies are in one place, and none in that of the owner, as long as there are places: a
rack fails as a whole.  A place is a whole location.  Among hosts that are as good, the ring
decides by the disk, so that the disks of one host are spread over many.
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
    """Return the hosts that are to keep a disk's checkpoints, fewer if there are no more.

    :param owner: the host that takes them, which is none of those
    :param copies: how many are wanted
    :param current: those that keep them now, the longest first
    :param is_usable: says no to one that is full, or has not answered for long
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
