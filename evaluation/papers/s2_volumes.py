# SPDX-License-Identifier: Apache-2.0
"""Figures 3 to 6 of S2: reads and writes of a boot over time, and best prefetch."""

import functools
import threading
import time
from collections.abc import Sequence

from matplotlib import figure

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s2_boot
from evaluation.papers import s2_many
from evaluation.papers import s2_replay
from evaluation.papers import s2_scene
from tests.lab import agents
from tests.lab import runs

MB = 1e6
BINS = 60
RECORDED = "one guest, recorded"
TIME_ORDER, OFFSET_ORDER, BOOT_IMAGE = "time order", "offset order", "boot image"
ORDERS = (TIME_ORDER, OFFSET_ORDER, BOOT_IMAGE)

# Figures 3 to 5


def volume_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figures 3 to 5."""
    counts = (1, 4, 16) if scale is experiment.Scale.WHOLE else (1, 4)
    scenes = [
        s2_scene.Scene("ssd", s2_scene.ALL_AT_ONCE, count, not is_copied, is_copied=is_copied)
        for count in counts
        for is_copied in (False, True)
    ]
    return [
        experiment.Case(RECORDED, _recorded, 5),
        *(s2_many.case(scene, volume_name(scene.guests, scene.is_copied), 6) for scene in scenes),
    ]


def volume_name(count: int, is_copied: bool) -> str:
    """Return the name of the case of ``count`` guests."""
    return f"{s2_scene.of_guests(count)}, {'no shared' if is_copied else 'shared'} image"


def _recorded(say: harness.Say) -> experiment.Outcome:
    """Return one guest's requests, as recorded from QEMU."""
    boot = s2_boot.ensure(say)
    found: experiment.Outcome = {}
    for name, ops in (("shared", boot.ops()), ("copied", boot.ops(is_copied=True))):
        reads = [op for op in ops if op[1] == s2_boot.READ]
        writes = [op for op in ops if op[1] == s2_boot.WRITE]
        found[name] = {
            "reads": len(reads),
            "read_mb": round(sum(op[3] for op in reads) / MB, 2),
            "writes": len(writes),
            "written_mb": round(sum(op[3] for op in writes) / MB, 2),
        }
    found["over_time"] = over_time(boot.ops())
    found["image_mb"] = round(boot.image.stat().st_size / MB)
    found["facts"] = boot.facts
    return found


def over_time(ops: Sequence[s2_boot.Op]) -> dict[str, list[float]]:
    """Return the MB read of the image in each part of a boot, and the parts' ends.

    >>> over_time([(0.0, "r", 0, 10**6), (60.0, "r", 0, 2 * 10**6)])["mb"][0]
    1.0
    """
    whole_s = sum(op[0] for op in ops) or 1.0
    read_mb = [0.0] * BINS
    now_s = 0.0
    for think_s, kind, _, length in ops:
        now_s += think_s
        if kind == s2_boot.READ:
            read_mb[min(BINS - 1, int(now_s / whole_s * BINS))] += length / MB
    seconds = [round(whole_s * (number + 1) / BINS, 2) for number in range(BINS)]
    return {"s": seconds, "mb": [round(mb, 3) for mb in read_mb]}


def volume_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figures 3 to 5."""
    found: list[experiment.Row | experiment.Absent] = []
    if RECORDED in outcomes:
        found += _recorded_rows(outcomes[RECORDED])
    for is_copied in (False, True):
        for count in (4, 16):
            ours = outcomes.get(volume_name(count, is_copied))
            one = outcomes.get(volume_name(1, is_copied))
            if ours and one:
                found.append(_grown(count, is_copied, ours, one))
    return found


def _recorded_rows(outcome: experiment.Outcome) -> list[experiment.Row | experiment.Absent]:
    shared, copied = outcome["shared"], outcome["copied"]
    mb = outcome["over_time"]["mb"]
    busiest = sum(sorted(mb, reverse=True)[: BINS // 5]) / sum(mb)

    def row(part: str, what: str, paper: str, ours: float, unit: str) -> experiment.Row:
        return experiment.Row(part, f"One guest: {what}", paper, ours, unit)

    return [
        row("Figure 3(a)", "read, shared image", "about 50 MB", shared["read_mb"], "MB"),
        row("Figure 3(a)", "written, shared image", "10 MB", shared["written_mb"], "MB"),
        row("Figure 3(b)", "read, no shared image", "about 50 MB", copied["read_mb"], "MB"),
        row("Figure 3(b)", "written, no shared image", "2 MB", copied["written_mb"], "MB"),
        row("Figure 4(a)", "read requests, shared image", "no number", shared["reads"], ""),
        row("Figure 4(a)", "write requests, shared image", "no number", shared["writes"], ""),
        row("Figure 4(b)", "read requests, no shared image", "no number", copied["reads"], ""),
        row("Figure 4(b)", "write requests, no shared image", "no number", copied["writes"], ""),
        row(
            "Figure 5",
            "share of the read data in the busiest fifth of the boot's time",
            "reading alternates with computing",
            100 * busiest,
            "%",
        ),
    ]


def _grown(
    count: int, is_copied: bool, ours: experiment.Outcome, one: experiment.Outcome
) -> experiment.Row:
    letter, kind = ("b", "no shared") if is_copied else ("a", "shared")
    return experiment.Row(
        part=f"Figure 3({letter})",
        what=f"{count} guests: read from storage, {kind} image",
        paper=f"{count} times that of one" if is_copied else "about that of one",
        ours=ours["device"]["read_bytes"] / MB,
        unit="MB",
        baseline=one["device"]["read_bytes"] / MB,
        baseline_name="1 guest",
        ratio=ours["device"]["read_bytes"] / one["device"]["read_bytes"],
        goal=count if is_copied else 1.0,
        better=experiment.Better.LESS,
    )


def draw_volumes(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw bytes over guests, requests over guests, and the reads of a boot over time."""
    volumes, requests, over = picture.subplots(1, 3)
    for is_copied in (False, True):
        kept = {n: outcomes[name]["device"] for n in s2_many.COUNTS
                if (name := volume_name(n, is_copied)) in outcomes}  # fmt: skip
        kind = "no shared image" if is_copied else "shared image"
        style = "--" if is_copied else "-"
        for what, label, axes, unit in (
            ("read_bytes", "read", volumes, MB),
            ("written_bytes", "written", volumes, MB),
            ("reads", "read", requests, 1),
            ("writes", "written", requests, 1),
        ):
            values = [device[what] / unit for device in kept.values()]
            axes.plot(list(kept), values, style, marker="o", label=f"{label}, {kind}")
    volumes.set(xlabel="guests", ylabel="MB from and to storage", yscale="log")
    requests.set(xlabel="guests", ylabel="requests to storage", yscale="log")
    for axes in (volumes, requests):
        axes.set_xticks(s2_many.COUNTS)
        axes.legend(fontsize="small")
    if RECORDED in outcomes:
        times = outcomes[RECORDED]["over_time"]
        over.bar(times["s"], times["mb"], width=times["s"][0])
    over.set(xlabel="s (emulation)", ylabel="MB read of the image")


# Figure 6


def prefetch_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of figure 6: one for each device and number of images."""
    is_whole = scale is experiment.Scale.WHOLE
    return [
        experiment.Case(
            _prefetch_name(device, count),
            functools.partial(_prefetch_all, device, count),
            10 + (7 if device == "hdd" else 3) * count,
        )
        for device in (s2_many.DEVICES if is_whole else ("hdd",))
        for count in ((1, 4) if is_whole else (1,))
    ]


def _prefetch_name(device: str, count: int) -> str:
    return f"{device}, {count} image{'s' if count > 1 else ''}"


def _prefetch_all(device: str, count: int, say: harness.Say) -> experiment.Outcome:
    """Return the times to load all boots' data into memory, in each order."""
    boot = s2_boot.ensure(lambda _: None)
    found = {order: round(prefetch_s(boot, device, count, order), 3) for order in ORDERS}
    say(str(found))
    return found


def prefetch_s(boot: s2_boot.Boot, device: str, count: int, order: str) -> float:
    """Return the time to read the boot data of ``count`` images concurrently."""
    policy = s2_scene.ACSTOR if order == BOOT_IMAGE else s2_scene.PREFETCHING
    scene = s2_scene.Scene(
        device, policy, count, is_same=False, is_loaded=False, boot_device="images"
    )
    with runs.Run() as run:
        place = s2_scene.Place(run.folder, run.folder / "store")
        for number in range(count):
            (run.folder / f"own-{number}").touch()
        with s2_scene.stored(boot, scene, place):
            if order == BOOT_IMAGE:
                with s2_scene.attached(boot, scene, place) as agent:
                    return _load_s(boot, agent, count)
            return _read_s(boot, place, count, order)


def _load_s(boot: s2_boot.Boot, agent: agents.Agent, count: int) -> float:
    """Let an agent load boot images: read and check them, into memory."""
    wanted = [boot.image_id(number) for number in range(count)]
    began_s = time.monotonic()
    for image_id in wanted:
        agents.request(agent.control_socket, "attach-image", image_id=image_id)

    def are_ready() -> bool:
        shown = agent.status()["images"]
        return all((shown[one]["boot_image"] or {}).get("state") == "ready" for one in wanted)

    runs.wait_for(are_ready, s2_scene.READY_S, "the boot images", agent.log)
    return time.monotonic() - began_s


def _read_s(boot: s2_boot.Boot, place: s2_scene.Place, count: int, order: str) -> float:
    """Read into the page cache, like the paper's script."""
    pages = s2_scene.spans(boot.ops())
    if order == TIME_ORDER:
        pages = [(op[2], op[3]) for op in boot.ops() if op[1] == s2_boot.READ]
    readers = [
        threading.Thread(target=s2_replay.prefetch, args=(str(place.image(boot, number)), pages))
        for number in range(count)
    ]
    began_s = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return time.monotonic() - began_s


def prefetch_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows of figure 6."""
    found = []
    for name, seconds in outcomes.items():
        for order in (TIME_ORDER, OFFSET_ORDER):
            found.append(
                experiment.Row.speed_up(
                    part="Figure 6",
                    what=f"{name}: load the data of boots into memory, as boot images against "
                    f"{order}",
                    paper="boot images are fastest",
                    ours=seconds[BOOT_IMAGE],
                    baseline=seconds[order],
                    baseline_name=order,
                    goal=1.0,
                    because="acstor verifies every chunk by its hash and decompresses it, which "
                    "the script does not, so on a fast device the processor is the bound",
                )
            )
    return found


def draw_prefetch(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw bars of the three orders."""
    axes = picture.subplots()
    names = list(outcomes)
    for at, order in enumerate(ORDERS):
        places = [number + 0.27 * (at - 1) for number in range(len(names))]
        axes.bar(places, [outcomes[name][order] for name in names], width=0.25, label=order)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="s until all is in memory", yscale="log")
    axes.legend()
