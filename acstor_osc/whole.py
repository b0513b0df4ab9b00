# SPDX-License-Identifier: Apache-2.0
"""How far images are from being whole, in words for people and in numbers for machines.

A service that is older than this client says less: what it does not tell is "not told".
"""

from collections.abc import Mapping
from typing import Any

from cliff import columns

from acstor_osc import printable

Whole = Mapping[str, Any]
"""How far an image is on a host, as the API tells it."""

NOT_TOLD = "not told"
BEHIND = {
    "booting": "the rest comes when its boot is over",
    "queued": "the host fills other images first",
    "paused": "an operator paused it, so that it stays so (openstack acstor image resume)",
    "no room": "that stays so, {why}: raise cache_limit_bytes there, let the cache grow "
    "(cache_may_grow_for_pins), or unpin another image",
    "failing": "{why}; it is tried again",
    "not kept": "that stays so: {why}",
}
"""Why a server depends on others still, by the state of its image."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


class WholeColumn(columns.FormattableColumn[Whole | None]):
    """How far an image is on a host."""

    def human_readable(self) -> str:
        """Return it in words."""
        return words(self._value)

    def machine_readable(self) -> Any:
        """Return it as the API told it."""
        return self._value


class ByHostColumn(columns.FormattableColumn[Mapping[str, Whole | None]]):
    """How far an image is on each host."""

    def human_readable(self) -> str:
        """Return a line for each host that is to have all of it."""
        return "\n".join(
            f"{printable.text(host)}: {words(whole)}"
            for host, whole in self._value.items()
            if whole is not None and (whole["is_used"] or whole["is_asked"])
        )

    def machine_readable(self) -> Any:
        """Return it as the API told it, for all hosts."""
        return dict(self._value)


def of_image(image: Mapping[str, Any]) -> str:
    """Return on how many of the hosts that use an image it is whole."""
    if image.get("using_hosts") is None:
        return NOT_TOLD
    if not image["using_hosts"]:
        return "no host uses it"
    return f"on {image['whole_hosts']} of {image['using_hosts']} hosts that use it"


def words(whole: Whole | None) -> str:
    """Return how far an image is on a host.

    >>> words({"state": "filling", "why": "", "share": 0.4, "bytes_s": 3_000_000, "left_s": 95.0,
    ...        "is_used": True, "is_asked": True, "due_in_s": None, "pace": "hurry"})
    'filling, 40 %, 2.9 MiB/s, 1 min 35 s left, in a hurry, pinned'
    """
    if whole is None:
        return NOT_TOLD
    told = [printable.text(whole["state"])]
    if whole["share"] is not None and whole["state"] != "whole":
        told.append(f"{int(100 * whole['share'])} %")
    if whole["bytes_s"]:
        told.append(f"{_size(whole['bytes_s'])}/s")
    if whole["left_s"] is not None:
        told.append(f"{duration(whole['left_s'])} left")
    if whole.get("due_in_s") is not None:
        told.append(_due(whole["due_in_s"], is_late=bool(whole.get("is_late"))))
    elif whole["pace"] == "hurry" and whole["state"] != "whole":
        told.append("in a hurry")
    if whole["is_asked"]:
        told.append("pinned")
    said = ", ".join(told)
    return f"{said}: {printable.text(whole['why'])}" if whole["why"] else said


ON_DEAD_MOUNT = (
    "a mount that has ended: its reads of the image fail until it is stopped and started again "
    "(openstack server reboot --hard)"
)


def depends_on(whole: Whole | None) -> str:
    """Return whom a server needs, beside its own host, for the image that it runs from."""
    if whole is None:
        return "nobody can tell: its host does not say how far its image is"
    if whole["state"] == "whole" and whole.get("is_shared"):
        return (
            "other hosts, of which any one may be lost: they keep its image together; no image "
            "store and no entry in Glance is needed for it any more"
        )
    if whole["state"] == "whole":
        return (
            "nobody: all of its image is on its host, and stays there as long as it is used; "
            "no other host, no image store and no entry in Glance is needed for it any more"
        )
    left = "what of its image is not on its host"
    if whole["left_bytes"] is not None:
        left = f"{_size(whole['left_bytes'])} of the {_size(whole['total_bytes'])} of its image"
    why = BEHIND.get(whole["state"], "").format(why=printable.text(whole["why"]))
    if whole["left_s"] is not None:
        why = f"for about {duration(whole['left_s'])} more"
    return f"other hosts and the image store, for {left}" + (f"; {why}" if why else "")


def duration(seconds: float) -> str:
    """Return a time with its two greatest units.

    >>> duration(0.4), duration(95), duration(93_780)
    ('1 s', '1 min 35 s', '1 d 2 h')
    """
    left = max(1, round(seconds))
    parts: list[str] = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def _due(due_in_s: float, *, is_late: bool) -> str:
    if due_in_s <= 0:
        return f"was due {duration(-due_in_s)} ago"
    return f"due in {duration(due_in_s)}" + (", will be late" if is_late else "")


def _size(count: int) -> str:
    return printable.mib(count)
