# SPDX-License-Identifier: Apache-2.0
"""Figures 9 to 11 of S2: many concurrent boots, of one image or of different ones."""

import dataclasses
import functools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s2_boot
from evaluation.papers import s2_scene

DEVICES = {"hdd": "HDD", "ssd": "SSD", "network": "CEPH"}
COUNTS = (1, 4, 16)
"""Numbers of guests here; the paper also has those between."""
AGAIN = ", again"
STEADY_CASE = "hdd, 1 guest, all at once"
_WAIT_S = {"hdd": 7.5, "ssd": 0.2, "network": 2.0}
"""Wait time of an image's boot for each device."""


def play(scene: s2_scene.Scene, say: harness.Say) -> experiment.Outcome:
    """Run a scene of the lab's guest image."""
    boot = s2_boot.ensure(lambda _: None)
    found = s2_scene.play(boot, scene)
    say(f"{found['all_s']:.1f} s")
    return {**found, "think": round(s2_scene.think(boot, scene), 4)}


def name_of(scene: s2_scene.Scene) -> str:
    """Return the name of a scene's case."""
    return f"{scene.device}, {s2_scene.of_guests(scene.guests)}, {scene.policy}"


def case(scene: s2_scene.Scene, name: str = "", about_s: float = 0.0) -> experiment.Case:
    """Return the case of a scene."""
    return experiment.Case(
        name or name_of(scene), functools.partial(play, scene), about_s or _about_s(scene)
    )


def _about_s(scene: s2_scene.Scene) -> float:
    """Estimate a scene's duration: waits of its device, its guests, its agent."""
    wait_s = _WAIT_S[scene.device] * scene.images
    if scene.policy == s2_scene.ACSTOR:
        return 7.5 + scene.guests * 0.7
    return 5 + scene.guests / 4 + wait_s * (0.6 if scene.policy == s2_scene.PREFETCHING else 1.0)


def scenes(is_same: bool, scale: experiment.Scale) -> list[s2_scene.Scene]:
    """Return the scenes of figure 10 (one image) or 11 (different images)."""
    is_whole = scale is experiment.Scale.WHOLE
    policies = [
        policy
        for policy in s2_scene.POLICIES
        if policy != s2_scene.ONE_THEN_OTHERS or (is_same and is_whole)
    ]
    counts: dict[str, tuple[int, ...]] = {"hdd": (4,) if is_same else (1, 4)}
    if is_whole:
        others = (1, 16) if is_same else (16,)
        counts = {"hdd": COUNTS, "ssd": others, "network": others}
    return [
        s2_scene.Scene(device=device, policy=policy, guests=count, is_same=is_same)
        for device in counts
        for count in counts[device]
        for policy in policies
    ]


def cases(is_same: bool, scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figure 10 or 11, and one of them once more."""
    found = [case(scene) for scene in scenes(is_same, scale)]
    if STEADY_CASE not in (one.name for one in found):
        return found
    again = s2_scene.Scene(policy=s2_scene.ALL_AT_ONCE, is_same=is_same)
    return [*found, case(again, STEADY_CASE + AGAIN)]


def pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the baseline that was measured twice."""
    names = (STEADY_CASE, STEADY_CASE + AGAIN)
    found = [outcomes[name]["all_s"] for name in names if name in outcomes]
    return {STEADY_CASE: found} if len(found) > 1 else {}


@dataclasses.dataclass(frozen=True)
class Claim:
    """The paper's claim for a number of guests on a device.

    :param gain: speed-up over all at once
    :param because: a reason for missing it
    """

    device: str
    guests: int
    paper: str
    gain: float | None = None
    is_headline: bool = False
    because: str = ""


_WRITES = (
    "the rest is the guests' own writes, which go to the same device in every policy, and the "
    "guests' processor time: "
)
SAME = (
    Claim("hdd", 1, "no number"),
    Claim("hdd", 4, "no number"),
    Claim(
        "hdd",
        16,
        "2 times",
        2.0,
        True,
        _WRITES + "where guests share one image, all at once also reads it from the disk only once",
    ),
    Claim("ssd", 16, "about the same", 1.0),
    Claim(
        "network",
        16,
        "2 times",
        2.0,
        True,
        _WRITES + "where guests share one image, all at once also reads it from the disks only "
        "once",
    ),
)
DIFFERENT = (
    Claim("hdd", 4, "no number"),
    Claim(
        "hdd",
        16,
        "107 s against 7.2 s: 13 times",
        13.0,
        True,
        _WRITES + "together they are acstor's lower bound",
    ),
    Claim("ssd", 16, "about the same, under 3 s", 1.0),
    Claim(
        "network",
        16,
        "6 times",
        6.0,
        True,
        _WRITES + "together they are acstor's lower bound",
    ),
)


def rows(
    part: str, claims: Sequence[Claim], outcomes: experiment.Outcomes
) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figure 10 or 11."""
    found = []
    for claim in claims:
        scene = s2_scene.Scene(device=claim.device, guests=claim.guests)
        ours = outcomes.get(name_of(scene))
        for policy in (s2_scene.ALL_AT_ONCE, s2_scene.PREFETCHING, s2_scene.ONE_THEN_OTHERS):
            theirs = outcomes.get(name_of(dataclasses.replace(scene, policy=policy)))
            if theirs or policy == s2_scene.ALL_AT_ONCE:
                found.append(_row(part, claim, policy, ours, theirs))
    return found


def _row(
    part: str,
    claim: Claim,
    policy: str,
    ours: Mapping[str, Any] | None,
    theirs: Mapping[str, Any] | None,
) -> experiment.Row:
    is_claimed = policy == s2_scene.ALL_AT_ONCE
    guests = s2_scene.of_guests(claim.guests)
    return experiment.Row(
        part=part,
        what=f"{DEVICES[claim.device]}, {guests}: time to boot all, acstor against {policy}",
        paper=claim.paper if is_claimed else "no number",
        ours=ours["all_s"] if ours and theirs else None,
        unit="s",
        baseline=theirs["all_s"] if ours and theirs else None,
        baseline_name=policy,
        ratio=theirs["all_s"] / ours["all_s"] if ours and theirs else None,
        goal=claim.gain if is_claimed else None,
        is_headline=is_claimed and claim.is_headline,
        because=claim.because,
    )


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw the seconds over the number of guests, a panel for each device."""
    devices = [device for device in DEVICES if any(name.startswith(device) for name in outcomes)]
    panels = picture.subplots(1, len(devices), squeeze=False)[0]
    for axes, device in zip(panels, devices, strict=True):
        for policy in s2_scene.POLICIES:
            points = [
                (count, outcomes[name]["all_s"])
                for count in COUNTS
                if (name := name_of(s2_scene.Scene(device, policy, count))) in outcomes
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=policy)
        axes.set(title=DEVICES[device], xlabel="guests", xlim=(0, COUNTS[-1] + 1))
        axes.set(xticks=COUNTS, ylim=(0, None))
    panels[0].set_ylabel("time to boot all, s")
    panels[0].legend()


# Figure 9


IN_MEMORY, ON_SSD, ON_SAME = "in memory", "on an SSD", "on the images' disk"
_SOURCES = {IN_MEMORY: (True, None), ON_SSD: (False, "boot"), ON_SAME: (False, "images")}


def memory_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figure 9: the boot images' place at the guests' start."""
    counts = (1, 16) if scale is experiment.Scale.WHOLE else (4,)
    return [
        case(
            s2_scene.Scene(
                guests=count, is_same=False, is_loaded=is_loaded, boot_device=boot_device
            ),
            memory_name(count, where),
        )
        for count in counts
        for where, (is_loaded, boot_device) in _SOURCES.items()
    ]


def memory_name(count: int, where: str) -> str:
    """Return the name of the case of ``count`` guests."""
    return f"{s2_scene.of_guests(count)}, boot images {where}"


def memory_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figure 9."""
    return [
        experiment.Row.cost(
            part="Figure 9",
            what=f"{s2_scene.of_guests(count)}, different images on HDD, boot images {where} "
            f"when guests begin: time to boot all, over that with boot images in memory",
            paper="almost 1" if where == ON_SSD else "no number",
            ours=outcomes[name]["all_s"],
            unit="s",
            baseline=outcomes[other]["all_s"],
            baseline_name=IN_MEMORY,
            goal=1.0 if where == ON_SSD else None,
            because="acstor verifies and decompresses a boot image before its guests start, once "
            "for each image, on the processors that the guests use",
        )
        for count in COUNTS
        for where in (ON_SSD, ON_SAME)
        if (name := memory_name(count, where)) in outcomes
        and (other := memory_name(count, IN_MEMORY)) in outcomes
    ]


def draw_memory(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw the seconds over the number of guests."""
    axes = picture.subplots()
    for where in _SOURCES:
        points = [
            (count, outcomes[name]["all_s"])
            for count in range(1, 17)
            if (name := memory_name(count, where)) in outcomes
        ]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"boot images {where}")
    axes.set(xlabel="guests", ylabel="time to boot all, s", ylim=(0, None))
    axes.legend()


# QEMU's guests beside replayed ones


QEMU, REPLAYED, NO_THINK = "of QEMU", "replayed", "replayed without think times"
_KINDS = (QEMU, REPLAYED, NO_THINK)


def real_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of QEMU's and of replayed guests, with and without think times."""
    counts = (1, 4) if scale is experiment.Scale.WHOLE else (1,)
    return [
        case(
            s2_scene.Scene(
                policy=policy,
                guests=count,
                is_same=False,
                is_real=kind == QEMU,
                think=0.0 if kind == NO_THINK else 1.0,
            ),
            real_name(count, policy, kind),
            about_s={QEMU: 14 + 10 * count, REPLAYED: 18 + 2 * count, NO_THINK: 6 + 2 * count}[
                kind
            ],
        )
        for count in counts
        for policy in (s2_scene.ALL_AT_ONCE, s2_scene.ACSTOR)
        for kind in (_KINDS if scale is experiment.Scale.WHOLE else (NO_THINK,))
    ]


def real_name(count: int, policy: str, kind: str) -> str:
    """Return the name of the case of ``count`` guests."""
    return f"{s2_scene.of_guests(count)} {kind}, {policy}"


def real_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of QEMU's guests beside replayed ones."""
    return [
        experiment.Row.speed_up(
            part="Figure 11(a)",
            what=f"{s2_scene.of_guests(count)} {kind}, different images, HDD: time to boot all",
            paper="no number",
            ours=ours["all_s"],
            baseline=theirs["all_s"],
            baseline_name=s2_scene.ALL_AT_ONCE,
        )
        for count in (1, 4)
        for kind in _KINDS
        if (ours := outcomes.get(real_name(count, s2_scene.ACSTOR, kind)))
        and (theirs := outcomes.get(real_name(count, s2_scene.ALL_AT_ONCE, kind)))
    ]


def draw_real(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw bars of QEMU's and of replayed guests, all at once and with acstor."""
    counts = [n for n in (1, 4) if real_name(n, s2_scene.ACSTOR, NO_THINK) in outcomes]
    panels = picture.subplots(1, 2, sharey=True)
    for axes, policy in zip(panels, (s2_scene.ALL_AT_ONCE, s2_scene.ACSTOR), strict=True):
        kinds = [kind for kind in _KINDS if real_name(1, policy, kind) in outcomes]
        for at, kind in enumerate(kinds):
            seconds = [outcomes[real_name(count, policy, kind)]["all_s"] for count in counts]
            places = [number + 0.27 * (at - 1) for number in range(len(counts))]
            axes.bar(places, seconds, width=0.25, label=kind)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set(xlabel="guests", title=policy)
    panels[0].set_ylabel("time to boot all, s")
    panels[0].legend()
