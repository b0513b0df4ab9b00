# SPDX-License-Identifier: Apache-2.0
"""Fill status of images, in words for people and in numbers for machines."""

from collections.abc import Mapping
from typing import Any

from cliff import columns

from acstor_osc import output_columns

Fill = Mapping[str, Any]  # fill status of an image on a host, as the API returns it

UNKNOWN = "unknown"
BEHIND = {
    "booting": "the fill goes on after the boot",
    "queued": "the host fills other images first",
    "paused": "an operator paused the fill (openstack acstor image resume)",
    "no_space": "{why}: raise cache_limit_bytes there, or unpin another image",
    "failing": "{why}; the agent tries again",
    "evictable": "the agent does not fill it: {why}",
}
"""Reason why an image is not fully cached, by its state."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


class FillColumn(columns.FormattableColumn[Fill | None]):
    """Fill status of an image on a host."""

    def human_readable(self) -> str:
        """Return it in words."""
        return describe(self._value)

    def machine_readable(self) -> Any:
        """Return it as the API returned it."""
        return self._value


class FillByHostColumn(columns.FormattableColumn[Mapping[str, Fill | None]]):
    """Fill status of an image on each host."""

    def human_readable(self) -> str:
        """Return a line for each host that uses the image or has it pinned."""
        return "\n".join(
            f"{output_columns.text(host)}: {describe(fill)}"
            for host, fill in self._value.items()
            if fill is not None and (fill["is_used"] or fill["is_pinned"])
        )

    def machine_readable(self) -> Any:
        """Return it as the API returned it, for all hosts."""
        return dict(self._value)


def count_full_hosts(image: Mapping[str, Any]) -> str:
    """Describe on how many hosts that use an image it is fully cached."""
    if not image["using_hosts"]:
        return "no host uses it"
    return f"on {image['fully_cached_hosts']} of {image['using_hosts']} hosts that use it"


def describe(fill: Fill | None) -> str:
    """Describe the fill status of an image on a host.

    >>> describe({"state": "filling", "why": "", "cached_share": 0.4, "rate_bytes_s": 3_000_000,
    ...        "remaining_s": 95.0, "is_pinned": True, "due_in_s": None, "mode": "urgent"})
    'filling, 40 %, 2.9 MiB/s, 1 min 35 s left, urgent, pinned'
    """
    if fill is None:
        return UNKNOWN
    parts = [output_columns.text(fill["state"]).replace("_", " ")]
    if fill["cached_share"] is not None and fill["state"] != "fully_cached":
        parts.append(f"{int(100 * fill['cached_share'])} %")
    if fill["rate_bytes_s"]:
        parts.append(f"{_size(fill['rate_bytes_s'])}/s")
    if fill["remaining_s"] is not None:
        parts.append(f"{duration(fill['remaining_s'])} left")
    if fill["due_in_s"] is not None:
        parts.append(_due(fill["due_in_s"], is_late=bool(fill["is_late"])))
    elif fill["mode"] == "urgent" and fill["state"] != "fully_cached":
        parts.append("urgent")
    if fill["is_pinned"]:
        parts.append("pinned")
    found = ", ".join(parts)
    return f"{found}: {output_columns.text(fill['why'])}" if fill["why"] else found


ON_DEAD_MOUNT = "a dead mount: its reads fail until you restart it (openstack server reboot --hard)"


def depends_on(fill: Fill | None) -> str:
    """Describe the services that a server needs, besides its host, to read its image."""
    if fill is None:
        return "unknown: its host does not report the fill status of its image"
    if fill["state"] == "fully_cached" and fill["is_shared"]:
        return (
            "other hosts, any one of which may fail: they keep its image together; it no longer "
            "needs the image store or Glance"
        )
    if fill["state"] == "fully_cached":
        return (
            "nothing: its host has the image fully cached and pinned; it no longer needs other "
            "hosts, the image store or Glance"
        )
    left = "the part of its image that is not cached"
    if fill["remaining_bytes"] is not None:
        left = f"{_size(fill['remaining_bytes'])} of the {_size(fill['total_bytes'])} of its image"
    why = BEHIND.get(fill["state"], "").format(why=output_columns.text(fill["why"]))
    if fill["remaining_s"] is not None:
        why = f"for about {duration(fill['remaining_s'])} more"
    return f"other hosts and the image store, for {left}" + (f"; {why}" if why else "")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

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
    return output_columns.mib(count)
