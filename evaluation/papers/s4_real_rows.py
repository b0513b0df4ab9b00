# SPDX-License-Identifier: Apache-2.0
"""The rows of S4's experiments on real agents."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from evaluation.papers import experiment
from evaluation.papers import s4_real_traffic as traffic

Row = experiment.Row
LESS = experiment.Better.LESS
BY_OID, BY_PLACE, BY_CONTENT = "by OID", "by place", "by content"
NO_REMAP = "by OID, no remap"
GAIN = 2.6
WHY_BY_CHANCE = (
    "a content has as many homes as there are images with it, so the new home of one of its names "
    "has it only by chance: here two thirds of the contents have three other names, among eight "
    "hosts. By content all its names move together, and one miss serves them all."
)
WHY_FIRST = (
    "only the first request for a content that moved is a miss: so the avoided share follows from "
    "the number of names of a content, two here on average."
)
MOST = 0.5
"""From this share on, "most" of something is avoided."""


def traffic_pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the lower bound of each way: the same downloads beside the same traffic."""
    bounds = [one["limit_s"] for one in outcomes.values()]
    return {"alone from the source": bounds} if bounds else {}


def traffic_rows(outcomes: experiment.Outcomes) -> Sequence[Row]:
    """Return the figures of all ways with an outcome."""
    collaborative, acstor = (outcomes.get(way) for way in (traffic.COLLABORATIVE, traffic.ACSTOR))
    if not (collaborative and acstor):
        return [Row("5.4.2", "mean time, collaborative / acstor", "2.6 x", None, goal=GAIN)]
    bound_s = (collaborative["limit_s"] + acstor["limit_s"]) / 2
    most = collaborative["mean_s"] / bound_s
    found = [
        _against(collaborative, acstor, "acstor", goal=GAIN, because=_why_no_more(most, acstor)),
        Row(
            "5.4.2",
            "upper bound of the gain of any exchange: collaborative / each host alone from the "
            "source",
            "no number",
            bound_s,
            "s",
            collaborative["mean_s"],
            "collaborative",
            most,
        ),
        Row.cost(
            "5.4.2",
            "acstor / each host alone from the source, under the same traffic",
            "no number",
            acstor["mean_s"],
            "s",
            acstor["limit_s"],
            "alone",
        ),
        _against(collaborative, acstor, "acstor, idle hosts alone", "idle_mean_s"),
    ]
    if paper := outcomes.get(traffic.PAPER):
        found.append(_against(collaborative, paper, "the paper's rules with remap"))
        found.append(_cv(collaborative, paper, "the paper's rules with remap"))
    if still := outcomes.get(traffic.NO_REMAP):
        found.append(_against(collaborative, still, "acstor without remap"))
        found.append(_against(still, acstor, "remap alone: acstor", of="acstor without remap"))
    found.append(_cv(collaborative, acstor, "acstor"))
    return found


def _why_no_more(most: float, acstor: Mapping[str, Any]) -> str:
    """Return the limit of the gain, measured in the same run, in words."""
    share = acstor["mean_s"] / acstor["limit_s"]
    return (
        f"{most:.2f} is the upper bound of this run: a busy host's own download has only the "
        "capacity that traffic leaves of its link, whatever the sender, and counts in the mean. "
        f"acstor took {share:.2f} times as long as that bound."
    )


def _against(
    baseline: Mapping[str, Any],
    ours: Mapping[str, Any],
    who: str,
    field: str = "mean_s",
    *,
    of: str = traffic.COLLABORATIVE,
    goal: float | None = None,
    because: str = "",
) -> Row:
    return Row.speed_up(
        "Figure 6(b), 5.4.2",
        f"mean time, mean load 70 MB/s, CV 1.2: {of} / {who}",
        "2.6 x" if goal else "no number",
        ours[field],
        baseline[field],
        of,
        goal=goal,
        because=because,
        is_headline=goal is not None,
    )


def _cv(baseline: Mapping[str, Any], ours: Mapping[str, Any], who: str) -> Row:
    return Row.cost(
        "Figure 10, 5.6",
        f"CV of all traffic while hosts read, other traffic of CV 1.2: {who}",
        '"significantly reduced"',
        ours["traffic_cv"],
        "",
        baseline["traffic_cv"],
        traffic.COLLABORATIVE,
        goal=1.0,
    )


# 5.7


def remap_rows(outcomes: experiment.Outcomes) -> Sequence[Row]:
    """Return misses, servers and times of the ways with an outcome."""
    found = [
        _misses(name, outcomes[name]) for name in (BY_PLACE, BY_OID, BY_CONTENT) if name in outcomes
    ]
    by_oid = outcomes.get(BY_OID)
    if by_oid is None:
        return found
    by_place = outcomes.get(BY_PLACE)
    found.append(_avoided(BY_OID, by_oid, by_place, WHY_BY_CHANCE))
    if by_content := outcomes.get(BY_CONTENT):
        own = "by content, acstor's own way"
        found.append(_avoided(own, by_content, by_place, WHY_FIRST))
    found.append(_uplinks("5.7", BY_OID, by_oid))
    if still := outcomes.get(NO_REMAP):
        found += [_uplinks("5.7", NO_REMAP, still), _pays(by_oid, still)]
    found.append(_without_service("3.7.2", by_oid))
    return found


def _misses(name: str, one: Mapping[str, Any]) -> Row:
    second = one["second"]
    what = (
        f"misses after the remap, found {name}: {one['moved']} of {one['names']} names moved, the "
        f"tables foresee {one['misses_if_asked_once']}; homes gave "
        f"{second['fetched_chunks']['home']} chunks, former homes {second['relayed_chunks']}"
    )
    return _misses_over_moved("5.7", what, "no number", one)


def _misses_over_moved(part: str, what: str, paper: str, one: Mapping[str, Any]) -> Row:
    missed = one["second"]["source_chunks"]
    return Row.cost(part, what, paper, missed, "chunks", one["moved"], "moved")


def _avoided(
    name: str, one: Mapping[str, Any], by_place: Mapping[str, Any] | None, because: str = ""
) -> Row:
    """Return the gain by another OID with the same CID, which is a hit."""
    return Row(
        "3.4.3",
        "share of the moved names without a miss, since the new home has their content from other "
        f"images: {name}",
        '"most of cache misses"',
        _no_miss(one),
        "",
        None if by_place is None else _no_miss(by_place),
        "an OID alone",
        goal=MOST,
        because=because,
    )


def _no_miss(one: Mapping[str, Any]) -> float | None:
    return 1 - one["second"]["source_chunks"] / one["moved"] if one["moved"] else None


def _uplinks(part: str, name: str, one: Mapping[str, Any]) -> Row:
    before, after = one["first"], one["second"]
    return Row.cost(
        part,
        f"chunks sent by the two busy hosts, of all chunks sent between hosts: {name}",
        "no number",
        100 * after["busy_share"],
        "%",
        100 * before["busy_share"],
        "before the remap",
    )


def _pays(by_oid: Mapping[str, Any], still: Mapping[str, Any]) -> Row:
    return Row.speed_up(
        "5.7",
        "mean time of the second reading: without remap and without a miss / with both",
        '"still has the better I/O performance"',
        by_oid["second"]["mean_s"],
        still["second"]["mean_s"],
        "no remap",
        goal=1.0,
    )


def _without_service(part: str, one: Mapping[str, Any]) -> Row:
    after, before = one["without service"], one["again"]
    return Row(
        part,
        "the decision service is killed, and hosts read an image again under the same traffic: "
        "mean time; no read failed",
        '"ACStor still can work"',
        after["mean_s"],
        "s",
        before["mean_s"],
        "with the service",
    )


def policy_rows(outcomes: experiment.Outcomes) -> Sequence[Row]:
    """Return each policy's hits, beside those of the core's cache."""
    return [
        Row(
            "3.3.2",
            f"hits of the public cache, of {one['reads']} reads: {policy}",
            "no number",
            100 * one["hits"] / one["reads"],
            "%",
            100 * one["foreseen_hits"] / one["reads"],
            "the core, without an agent",
        )
        for policy, one in outcomes.items()
    ]


def beyond_rows(outcomes: experiment.Outcomes) -> Sequence[Row]:
    """Return the same rows of agents with default options."""
    one = outcomes.get("acstor")
    if one is None:
        return []
    second = one["second"]
    what = (
        f"misses after the remap: {one['moved']} of {one['names']} names moved; homes sent "
        f"{second['fetched_chunks']['home']} chunks, other holders "
        f"{second['fetched_chunks']['peer']}; readers themselves read "
        f"{second['fetched_chunks']['source']} from the source, as homes or since it was faster"
    )
    return [
        _misses_over_moved("3.4.3", what, "no such experiment", one),
        _uplinks("5.7", "acstor", one),
    ]
