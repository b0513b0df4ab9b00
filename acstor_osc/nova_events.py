# SPDX-License-Identifier: Apache-2.0
"""Nova's events before a server's boot, from its instance actions, in whole seconds."""

import datetime
from typing import Any

from openstack import exceptions

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart

BOOTING = frozenset({"create", "start", "reboot", "rebuild", "unshelve", "rescue", "unrescue"})
LONGEST_S = 3600.0  # an action earlier than this before a boot did not cause it
SLACK_S = 2.0  # tolerance for Nova's whole seconds and its clock
MOST = 12


def list_before(
    compute: Any, server_id: str, timeline: boot_timeline.Timeline
) -> list[boot_chart.Event]:
    """Return Nova's events that led to a boot: the request, then those of services, if any."""
    try:
        asked = [action for action in compute.server_actions(server_id) if action.action in BOOTING]
        led = [action for action in asked if _led_to(_at_s(action.start_time), timeline)]
        if not led:
            return []
        last = max(led, key=lambda action: _at_s(action.start_time))
        whole = compute.get_server_action(last.request_id, server_id)
        return _events(last, whole.events or (), timeline.began_at_s + timeline.last_s)
    except (exceptions.SDKException, ValueError, TypeError):
        return []


def _led_to(asked_s: float, timeline: boot_timeline.Timeline) -> bool:
    opened_at_s = timeline.began_at_s + timeline.opened_s
    return -SLACK_S <= opened_at_s - asked_s <= LONGEST_S


def _events(action: Any, events: Any, end_at_s: float) -> list[boot_chart.Event]:
    asked_s = _at_s(action.start_time)
    found = []
    for event in events:
        record = event if isinstance(event, dict) else event.to_dict()
        if record.get("start_time"):
            from_s = _at_s(record["start_time"])
            to_s = _at_s(record["finish_time"]) if record.get("finish_time") else end_at_s
            what = str(record.get("event", "")).removeprefix("compute_").removeprefix("_do_")
            found.append(boot_chart.Event(what, from_s, max(from_s, to_s)))
    found.sort(key=lambda event: event.from_at_s)
    first_s = found[0].from_at_s if found else asked_s
    asked = boot_chart.Event(f"{action.action} requested", asked_s, max(asked_s, first_s))
    return [asked, *found[:MOST]]


def _at_s(text: str) -> float:
    """Return a time of Nova, UTC by default, as seconds since 1970."""
    at = datetime.datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
