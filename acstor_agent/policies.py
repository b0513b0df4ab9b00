# SPDX-License-Identifier: Apache-2.0
"""Policies: the parts of the agent that experiments replace, each with the agent's default.

A variant is an entry point of ``acstor.policies``: a mapping from fields of :class:`Policies`.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import NoReturn

import stevedore

from acstor_agent.core.cache import cache_slot
from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import scheduler
from acstor_agent.core.images import prefetcher
from acstor_agent.core.images import readahead
from acstor_agent.engine import identity
from acstor_agent.engine import lockstep
from acstor_agent.engine.ring import ring_view
from acstor_agent.images.read import advertised_prefetch

NAMESPACE = "acstor.policies"


class Policies(NamedTuple):
    """One value per kind of policy.

    :param disk_schedulers: classes of disk schedulers, by the names of disk policies
    :param cache_order: eviction order of chunks of one class
    :param identity_scheme: makes the scheme that derives OIDs
    :param topology: returns the hosts that get announcements; None: no announcements
    :param prefetcher: decides which announced chunks to prefetch; None: none
    :param read_ahead: predicts reads, within a limit in bytes, of a source; None: no read-ahead
    :param lockstep_scheme: finds upstream hosts for hosts that read in lock-step
    """

    disk_schedulers: Mapping[str, type[policy.SchedulingPolicy]] = scheduler.POLICIES
    cache_order: type[cache_slot.Order] = cache_slot.LruOrder
    identity_scheme: Callable[[], identity.Identity] = identity.ByContent
    topology: ring_view.Topology | None = ring_view.on_ring
    prefetcher: advertised_prefetch.MakePolicy | None = prefetcher.default_prefetcher
    read_ahead: Callable[[int, readahead.Source], readahead.Predictor] | None = readahead.ReadAhead
    may_refer: bool = True  # a busy host refers requesters to other hosts
    may_hedge: bool = True  # a late request is also sent to the next provider
    may_ask_source_first: bool = True  # guest reads go to the source if peers are clearly slower
    gives_copy_hints: bool = True  # homes tell holders to evict surplus copies
    homes_keep: bool = False  # only the home of a chunk caches it
    lockstep_scheme: type[lockstep.Lockstep] = lockstep.Lockstep


@functools.cache
def load(variants: tuple[str, ...]) -> Policies:
    """Return the policies with variants, or raise ValueError if they are unknown or conflict."""
    changes: dict[str, Any] = {}
    changed_by: dict[str, str] = {}
    for name, change in _installed(variants).items():
        for field, value in change.items():
            if changes.setdefault(field, value) != value:
                both = " and ".join(sorted((name, changed_by[field])))
                raise ValueError(f"{both} exclude each other")
            changed_by[field] = name
    return Policies(**changes)


def _installed(variants: tuple[str, ...]) -> dict[str, Any]:
    if not variants:
        return {}
    found: stevedore.NamedExtensionManager[Any] = stevedore.NamedExtensionManager(
        NAMESPACE, variants, on_missing_entrypoints_callback=_refuse
    )
    return {extension.name: extension.plugin for extension in found}


def _refuse(missing: Iterable[str]) -> NoReturn:
    raise ValueError(f"{', '.join(sorted(missing))}: no such variant is installed")
