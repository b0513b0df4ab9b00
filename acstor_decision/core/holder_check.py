# SPDX-License-Identifier: Apache-2.0
"""Checks the holders that a host names: a recovery connects to them, and a host may lie."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from acstor_common.model import addresses
from acstor_common.wire import checkpoint_messages


def holder_fault(
    owner: str,
    holders: Iterable[checkpoint_messages.RegisteredHolder],
    known: Mapping[str, str],  # ``ip:port`` of agents, as they report
    is_enrolled: Callable[[str], bool],
) -> str:
    """Return why a host may not name these holders; "" if it may."""
    is_local = not (at := known.get(owner, "")) or addresses.is_loopback(addresses.parse(at)[0])
    for holder in holders:
        what, ip = f"{holder.host} at {holder.address}", addresses.parse(holder.address)[0]
        if not is_enrolled(holder.host):
            return f"{what} has not enrolled here"
        agent = known.get(holder.host, "")
        if agent and addresses.parse(agent)[0] != ip:
            return f"{what} reports the address {agent}"
        if addresses.is_loopback(ip) and not is_local:
            return f"{what} has a loopback address, which would be {owner} itself"
    return ""
