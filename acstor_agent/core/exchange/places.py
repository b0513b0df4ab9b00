# SPDX-License-Identifier: Apache-2.0
"""Whom to ask for a chunk that is not here, and in which order.

Hosts that advertised it come first: they have it, and asking them spares the
home.  The home reads a chunk through from the source once for everybody; when
it is out of use the next host on the ring takes its part.  The source itself
ends the list of those that can always answer.  Behind it stand hosts that may
happen to hold the chunk: they are of use only while the source is down, so they
are never made to read it.
"""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common import ids

ACTING_HOMES = 2
"""Hosts that are asked to read a chunk through before this host turns to the source itself."""

HOLDERS = 2
"""Hosts that advertised the chunk which are asked before the home."""

LAST_RESORTS = 2
"""Hosts that are asked, behind the source, whether they happen to hold the chunk."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Somewhere to ask: a peer, or the source (``host`` is None)."""

    host: ids.HostId | None
    may_read_source: bool = True


SOURCE = Place(None)


def places(
    owners: Iterable[ids.HostId],
    here: ids.HostId,
    is_usable: Callable[[ids.HostId], bool],
    holders: Sequence[ids.HostId] = (),
    is_source_first: bool = False,
) -> list[Place]:
    """Return the places to ask, best first; the source is always among them.

    :param owners: the ring's answer: the home, then the hosts that follow it
    :param here: the host that asks; where it is the acting home it goes to the source itself
    :param is_usable: whether a host is worth asking now
    :param holders: usable hosts that advertised the chunk, the best first
    :param is_source_first: peers are clearly slower than the source; they come behind it

    >>> places(["h1", "h2", "h3"], "h9", lambda host: host != "h1")
    [Place(host='h2', may_read_source=True), Place(host='h3', may_read_source=True), \
Place(host=None, may_read_source=True)]
    >>> places([], "h9", lambda host: True)
    [Place(host=None, may_read_source=True)]
    """
    first = list(holders[:HOLDERS])
    usable = [host for host in owners if host not in first and (host == here or is_usable(host))]
    acting = list(itertools.takewhile(lambda host: host != here, usable[:ACTING_HOMES]))
    others = [host for host in usable[len(acting) :] if host != here][:LAST_RESORTS]
    peers = [
        *(Place(host, may_read_source=False) for host in first),
        *(Place(host) for host in acting),
    ]
    return [
        *([SOURCE, *peers] if is_source_first else [*peers, SOURCE]),
        *(Place(host, may_read_source=False) for host in others),
    ]
