# SPDX-License-Identifier: Apache-2.0
"""Figures 12 and 13 of S2: a boot beside programs that use device or memory."""

import itertools
from collections.abc import Callable
from collections.abc import Sequence

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.papers import experiment
from evaluation.papers import s2_many
from evaluation.papers import s2_scene

POLICIES = (s2_scene.ALL_AT_ONCE, s2_scene.PREFETCHING, s2_scene.ACSTOR)
NORMAL = s2_scene.ALL_AT_ONCE
MOST = 15
MEMORIES_MIB = (96, 16)
"""Of the guest's process and its page cache: the first fits all reads of a boot."""
_SLOW_S = {"hdd": (9, 160), "ssd": (5, 25), "network": (10, 60)}

# Figure 12


def disk_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figure 12."""
    is_whole = scale is experiment.Scale.WHOLE
    wanted = [(device, (0, MOST)) for device in s2_many.DEVICES]
    return [
        s2_many.case(
            s2_scene.Scene(device, policy, programs=count),
            _disk_name(device, count, policy),
            about_s=_disk_about_s(device, count, policy),
        )
        for device, counts in (wanted if is_whole else [("ssd", (MOST,))])
        for count in counts
        for policy in POLICIES
    ]


def _disk_about_s(device: str, count: int, policy: str) -> float:
    least_s, most_s = _SLOW_S[device]
    wait_s = (most_s - least_s) * count / MOST
    if policy == s2_scene.ACSTOR:
        return 8 + wait_s / 10
    return 2 + least_s + wait_s * (1.0 if policy == NORMAL else 0.4)


def _disk_name(device: str, count: int, policy: str) -> str:
    return f"{device}, {count} programs, {policy}"


CLAIMS = {
    ("hdd", MOST): ("2 minutes; acstor's idea 5 times as fast", 5.0),
    ("ssd", MOST): ("20 s against 4 s: 5 times", 5.0),
    ("network", MOST): ("107 s against 58 s: 2 times", 107 / 58),
}


def disk_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figure 12."""
    return _rows(outcomes, (0, MOST), _disk_name, _disk_row)


def _rows(
    outcomes: experiment.Outcomes,
    sizes: Sequence[int],
    name: Callable[[str, int, str], str],
    row: Callable[[str, int, str, float, float], experiment.Row],
) -> list[experiment.Row]:
    """Return a row for each device, size and policy with an outcome besides acstor.

    :param name: of a case of a device, size and policy
    :param row: of a device, size and policy, with the seconds of acstor and of the policy
    """
    found = []
    for device, size in itertools.product(s2_many.DEVICES, sizes):
        ours = outcomes.get(name(device, size, s2_scene.ACSTOR))
        for policy in (NORMAL, s2_scene.PREFETCHING):
            theirs = outcomes.get(name(device, size, policy))
            if ours and theirs:
                found.append(row(device, size, policy, ours["all_s"], theirs["all_s"]))
    return found


def _disk_row(
    device: str, count: int, policy: str, ours_s: float, theirs_s: float
) -> experiment.Row:
    paper, goal = CLAIMS.get((device, count), ("no number", None))
    is_claimed = policy == NORMAL
    return experiment.Row.speed_up(
        part="Figure 12",
        what=f"{s2_many.DEVICES[device]}, {count} programs write: time to boot one guest, acstor "
        f"against {'a normal boot' if is_claimed else policy}",
        paper=paper if is_claimed else "no number",
        ours=ours_s,
        baseline=theirs_s,
        baseline_name="normal" if is_claimed else policy,
        goal=goal if is_claimed else None,
        is_headline=is_claimed and goal is not None,
        because="acstor's boot takes hardly longer than the guest's processor time (3 s) and its "
        "own writes; how much longer the normal boot takes depends on the requests that a "
        "read waits for, at most one of 256 KiB of each of 15 programs",
    )


def draw_disk(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw the seconds over the number of programs, a panel for each device."""
    devices = [device for device in s2_many.DEVICES
               if any(name.startswith(device) for name in outcomes)]  # fmt: skip
    panels = picture.subplots(1, len(devices), squeeze=False)[0]
    for axes, device in zip(panels, devices, strict=True):
        for policy in POLICIES:
            points = [
                (count, outcomes[name]["all_s"])
                for count in (0, MOST)
                if (name := _disk_name(device, count, policy)) in outcomes
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=policy)
        axes.set(title=s2_many.DEVICES[device], xlabel="programs", ylim=(0, None))
        axes.set_xticks((0, MOST))
    panels[0].set_ylabel("time to boot one guest, s")
    panels[0].legend()


# Figure 13


def memory_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figure 13."""
    is_whole = scale is experiment.Scale.WHOLE
    return [
        s2_many.case(
            s2_scene.Scene(device, policy, memory_bytes=mib * geometry.MIB),
            _memory_name(device, mib, policy),
        )
        for device in (s2_many.DEVICES if is_whole else ("hdd",))
        for mib in (MEMORIES_MIB if device == "hdd" and is_whole else MEMORIES_MIB[-1:])
        for policy in POLICIES
    ]


def _memory_name(device: str, mib: int, policy: str) -> str:
    return f"{device}, {mib} MiB, {policy}"


def memory_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figure 13."""
    return _rows(outcomes, MEMORIES_MIB, _memory_name, _memory_row)


def _memory_row(
    device: str, mib: int, policy: str, ours_s: float, theirs_s: float
) -> experiment.Row:
    is_normal = policy == NORMAL
    is_claimed = device == "hdd" and mib == MEMORIES_MIB[-1]
    paper, goal = ("up to 4 times", 4.0) if is_normal else ("almost 2 times", 2.0)
    return experiment.Row.speed_up(
        part="Figure 13",
        what=f"{s2_many.DEVICES[device]}, {mib} MiB for the guest's page cache: time to boot one "
        f"guest, acstor against {'a normal boot' if is_normal else policy}",
        paper=paper if is_claimed else "no number",
        ours=ours_s,
        baseline=theirs_s,
        baseline_name="normal" if is_normal else policy,
        goal=goal if is_claimed else None,
        because="both contain the guest's processor time and its writes; without them the "
        "difference is that of figure 11 without think times",
    )


def _drawn(group: str) -> str:
    """Return the label below the bars of a device and a memory size."""
    device, _, memory = group.partition(", ")
    return f"{s2_many.DEVICES[device]}, {memory}"


def draw_memory(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw bars of the policies for each device and memory size."""
    axes = picture.subplots()
    groups = list(dict.fromkeys(name.rpartition(", ")[0] for name in outcomes))
    for at, policy in enumerate(POLICIES):
        places = [number + 0.27 * (at - 1) for number in range(len(groups))]
        seconds = [outcomes[f"{group}, {policy}"]["all_s"] for group in groups]
        axes.bar(places, seconds, width=0.25, label=policy)
    axes.set_xticks(range(len(groups)), [_drawn(group) for group in groups])
    axes.set_ylabel("time to boot one guest, s")
    axes.legend()
