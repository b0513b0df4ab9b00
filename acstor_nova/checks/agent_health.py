# SPDX-License-Identifier: Apache-2.0
"""Checks the agent's health by its status."""

import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common.service import version
from acstor_nova.checks import check_results

CheckResult = check_results.CheckResult
Level = check_results.Level
Status = dict[str, Any]


def check_health(status: Status, now_s: Callable[[], float] = time.time) -> Iterator[CheckResult]:
    """Yield the findings; ``now_s`` is the wall clock."""
    yield _version(status)
    yield _certificate(status, now_s())
    yield _table(status)
    yield from _troubles(status)
    yield _fallbacks(status)
    yield _guests(status)


def _version(status: Status) -> CheckResult:
    what, theirs, ours = "version", status["version"], version.installed()
    if theirs == ours:
        return CheckResult(what, Level.OK, ours)
    detail = f"the agent runs {theirs}, Nova has acstor {ours}"
    remedy = "Install the same version of both, then restart the older one: agent or nova-compute."
    return CheckResult(what, Level.WARNING, detail, remedy)


def _certificate(status: Status, now_s: float) -> CheckResult:
    what, identity = "certificate", status.get("identity") or {}
    not_after_s = identity.get("certificate_not_after_s")
    if not_after_s is None:
        return CheckResult(what, Level.OK, "the host has none")
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(not_after_s))
    if now_s < not_after_s:
        return CheckResult(what, Level.OK, f"valid until {until}")
    why = (identity.get("enrolment") or {}).get("error")
    detail = f"expired at {until}" + (f"; the renewal fails: {why}" if why else "")
    remedy = (
        "Other hosts accept it for another 7 days. See [enrolment] of the agent and its log; "
        "without enrolment: acstor-decision-manage authority issue."
    )
    return CheckResult(what, Level.ERROR, detail, remedy)


def _table(status: Status) -> CheckResult:
    what, ring = "v-node table", status["ring"]
    if ring["epoch"]:
        return CheckResult(what, Level.OK, f"epoch {ring['epoch']}, {ring['hosts']} hosts")
    detail = "the agent has none, so this host exchanges no chunks"
    remedy = (
        "Check that acstor-decision runs, and that [DEFAULT] transport_url of the agent names the "
        "same message bus. openstack acstor status shows whether the service gets samples."
    )
    return CheckResult(what, Level.WARNING, detail, remedy)


def _troubles(status: Status) -> Iterator[CheckResult]:
    troubles = status.get("faults") or {}
    for part, trouble in sorted(troubles.items()):
        remedy = "The agent retries. Its log has details."
        yield CheckResult(f"agent: {part}", Level.WARNING, trouble["why"], remedy)
    if not troubles:
        yield CheckResult("agent faults", Level.OK, "none")


def _fallbacks(status: Status) -> CheckResult:
    counted = status.get("nova", {}).get("fallbacks", {})
    seen = ", ".join(f"{reason} {times}" for reason, times in counted.items() if times)
    if seen:
        remedy = "The log of nova-compute names the images and the reasons."
        return CheckResult(
            "fallbacks", Level.WARNING, f"Nova fell back to its own download: {seen}", remedy
        )
    return CheckResult("fallbacks", Level.OK, "none since the agent's start")


def _guests(status: Status) -> CheckResult:
    if lost := status.get("guests", {}).get("on_dead_mounts", ()):
        detail = f"these use a dead mount, and their reads fail: {', '.join(lost)}"
        remedy = "Restart each (openstack server reboot --hard)."
        return CheckResult("guests", Level.ERROR, detail, remedy)
    return CheckResult("guests", Level.OK, "none uses a dead mount")
