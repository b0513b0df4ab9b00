# SPDX-License-Identifier: Apache-2.0
"""Checks the agent's health by its status; skips parts that its version lacks."""

import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common.service import version
from acstor_nova import check_results

Finding = check_results.Finding
Level = check_results.Level
Status = dict[str, Any]


def check_health(status: Status, now_s: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yield the findings; ``now_s`` is the wall clock."""
    yield _version(status)
    yield _certificate(status, now_s())
    yield _table(status)
    yield from _troubles(status)
    yield _fallbacks(status)
    yield _guests(status)


def _version(status: Status) -> Finding:
    what, theirs, ours = "version", status.get("version"), version.installed()
    if theirs in (None, ours):
        return Finding(what, Level.OK, ours)
    detail = f"the agent runs {theirs}, Nova has acstor {ours}"
    remedy = "Install the same version of both, then restart the older one: agent or nova-compute."
    return Finding(what, Level.WARNING, detail, remedy)


def _certificate(status: Status, now_s: float) -> Finding:
    what, identity = "certificate", status.get("identity") or {}
    not_after_s = identity.get("certificate_not_after_s")
    if not_after_s is None:
        return Finding(what, Level.OK, "the host has none")
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(not_after_s))
    if now_s < not_after_s:
        return Finding(what, Level.OK, f"valid until {until}")
    why = (identity.get("enrolment") or {}).get("error")
    detail = f"expired at {until}" + (f"; the renewal fails: {why}" if why else "")
    remedy = (
        "Other hosts accept it for another 7 days. See [enrolment] of the agent and its log; "
        "without enrolment: acstor-decision-manage authority issue."
    )
    return Finding(what, Level.ERROR, detail, remedy)


def _table(status: Status) -> Finding:
    what, ring = "v-node table", status.get("ring")
    if ring is None:
        return Finding(what, Level.OK, "the agent is too old to tell")
    if ring["epoch"]:
        return Finding(what, Level.OK, f"epoch {ring['epoch']}, {ring['hosts']} hosts")
    detail = "the agent has none, so this host exchanges no chunks"
    remedy = (
        "Check that acstor-decision runs, and that [DEFAULT] transport_url of the agent names the "
        "same message bus. openstack acstor status shows whether the service gets samples."
    )
    return Finding(what, Level.WARNING, detail, remedy)


def _troubles(status: Status) -> Iterator[Finding]:
    troubles = status.get("faults") or {}
    for part, trouble in sorted(troubles.items()):
        remedy = "The agent retries. Its log has details."
        yield Finding(f"agent: {part}", Level.WARNING, trouble["why"], remedy)
    if not troubles:
        yield Finding("agent faults", Level.OK, "none")


def _fallbacks(status: Status) -> Finding:
    counted = status.get("nova", {}).get("fallbacks", {})
    seen = ", ".join(f"{reason} {times}" for reason, times in counted.items() if times)
    if seen:
        remedy = "The log of nova-compute names the images and the reasons."
        return Finding(
            "fallbacks", Level.WARNING, f"Nova fell back to its own download: {seen}", remedy
        )
    return Finding("fallbacks", Level.OK, "none since the agent's start")


def _guests(status: Status) -> Finding:
    if lost := status.get("guests", {}).get("on_dead_mounts", ()):
        detail = f"these use a dead mount, and their reads fail: {', '.join(lost)}"
        remedy = "Restart each (openstack server reboot --hard)."
        return Finding("guests", Level.ERROR, detail, remedy)
    return Finding("guests", Level.OK, "none uses a dead mount")
