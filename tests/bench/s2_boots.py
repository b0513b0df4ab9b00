# SPDX-License-Identifier: Apache-2.0
"""S2's experiments: 1, 2 and 4 guests boot at once, of one image or of different ones.

Three policies (Nguyen 2019, section V): *normal*, guests on raw files of a cold
host; *prefetch script*, the same while a script reads what the boot needs, in the
order of offsets; *acstor*, guests on an agent that has the boot images in memory.
One guest also boots while another program uses the disk (stress-ng).

Run as ``python -m tests.bench.s2_boots [--guests 1,2,4] [--results DIR]``.  It is
no benchmark with a target: what it shows is how the policies differ on the machine
at hand.  Processors are few here, so contention for them is in every figure.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import figure

from acstor_common import geometry
from tests.bench import boots
from tests.bench import harness
from tests.lab import guest
from tests.lab import local
from tests.lab import runs

POLICIES = ("normal", "prefetch script", "acstor")
STRESS = ["stress-ng", "--hdd", "1", "--hdd-bytes", "256m", "--hdd-opts", "direct,wr-rnd"]
STRESS += ["--temp-path"]


def main() -> int:
    """Run the experiments; write JSON and a picture."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.s2_boots", description=__doc__)
    parser.add_argument("--guests", default="1,2,4", help="how many at once (default: 1,2,4)")
    parser.add_argument("--results", type=pathlib.Path, default=harness.ROOT / "results")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    counts = [int(text) for text in options.guests.split(",")]
    found = measure(counts, lambda line: print(line, flush=True))
    (options.results / "S2.json").write_text(json.dumps(found, indent=1) + "\n")
    picture = figure.Figure(figsize=(10, 6), layout="constrained")
    draw(picture, found, counts)
    picture.savefig(options.results / "S2.png")
    return 0


class Experiment(NamedTuple):
    """What one picture's group of bars is about."""

    is_stressed: bool
    is_same: bool
    guests: int


def experiments(counts: Sequence[int]) -> list[Experiment]:
    """Return the experiments; as in S2, it is the fewest guests who meet other users of the disk.

    >>> [tuple(one) for one in experiments([1, 2])]
    [(False, True, 1), (False, True, 2), (False, False, 2), (True, True, 1)]
    """
    quiet = [Experiment(False, True, count) for count in counts]
    several = [Experiment(False, False, count) for count in counts if count > 1]
    return [*quiet, *several, Experiment(True, True, min(counts))]


def measure(counts: Sequence[int], say: harness.Say) -> list[dict[str, object]]:
    """Return what each experiment took: the seconds to the last guest's login prompt."""
    found: list[dict[str, object]] = []
    wanted = experiments(counts)
    if shutil.which("stress-ng") is None:
        say("stress-ng is not installed: nothing uses the disk beside the guests")
        wanted = [one for one in wanted if not one.is_stressed]
    with runs.Run() as run:
        images = prepare(run.folder, max(counts), say)
        for one in wanted:
            used = [images[0 if one.is_same else n] for n in range(one.guests)]
            for policy in POLICIES:
                place = run.folder / f"run-{len(found)}"
                place.mkdir()
                seconds = boot(policy, used, place, one.is_stressed)
                found.append(
                    {
                        "policy": policy,
                        "guests": one.guests,
                        "images": "same" if one.is_same else "different",
                        "disk": "stressed" if one.is_stressed else "quiet",
                        "login_s": seconds,
                    }
                )
                say(json.dumps(found[-1]))
                shutil.rmtree(place)
    return found


def prepare(folder: pathlib.Path, count: int, say: harness.Say) -> list[boots.Prepared]:
    """Return as many images as guests; they are copies, each with a first sector of its own."""
    first = boots.prepare(folder, say)
    return [first, *(boots.copy(first, number) for number in range(1, count))]


def boot(
    policy: str, used: Sequence[boots.Prepared], folder: pathlib.Path, has_stress: bool
) -> float:
    """Boot a guest of each image at once on a cold host; return when the last one had booted."""
    with contextlib.ExitStack() as stack:
        backings = [image.image for image in used]
        if policy == "acstor":
            agent = stack.enter_context(local.agent(folder / "agent", used[0].images))
            agent.wait_ready()
            for image in used:
                boots.wait_ready(agent, image.image_id)
            backings = [agent.image_path(image.image_id) for image in used]
        for image in used:
            boots.forget(image.image)
        if has_stress:
            stack.enter_context(stressed(folder))
        guests = [
            stack.enter_context(guest.Guest(host, boots.overlay(host, backing), cache="writeback"))
            for host, backing in zip(hosts(folder, len(used)), backings, strict=True)
        ]
        if policy == "prefetch script":
            for image in {image.image_id: image for image in used}.values():
                threading.Thread(target=prefetch, args=(image,), daemon=True).start()
        seen = guest.boot_all(guests)
    return round(max(milestones.login_s or 0.0 for milestones in seen), 2)


def hosts(folder: pathlib.Path, count: int) -> Iterator[local.LocalHost]:
    """Yield this machine as so many hosts, each with a folder."""
    for number in range(count):
        place = folder / f"guest-{number}"
        place.mkdir()
        yield local.LocalHost(f"g{number}", "", local.LOOPBACK, place)


def prefetch(image: boots.Prepared) -> None:
    """Read what the boot needs, in the order of offsets, as S2's script does."""
    with image.image.open("rb", buffering=0) as file:
        for chunk_no in sorted(image.head.trace):
            os.pread(
                file.fileno(),
                geometry.DEFAULT_CHUNK_BYTES,
                chunk_no * geometry.DEFAULT_CHUNK_BYTES,
            )


@contextlib.contextmanager
def stressed(folder: pathlib.Path) -> Iterator[None]:
    """Let another program write to the same disk, at random and past the page cache."""
    process = subprocess.Popen(
        [*STRESS, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def draw(picture: figure.Figure, found: Sequence[dict[str, object]], counts: Sequence[int]) -> None:
    """Draw one panel for same and different images, with a quiet and a stressed disk."""
    panels = sorted({(str(run["images"]), str(run["disk"])) for run in found}, reverse=True)
    axes_of = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (which, disk) in zip(axes_of, panels, strict=True):
        for number, policy in enumerate(POLICIES):
            seconds = {
                run["guests"]: run["login_s"]
                for run in found
                if (run["policy"], run["images"], run["disk"]) == (policy, which, disk)
            }
            at = [counts.index(int(str(count))) + 0.27 * (number - 1) for count in seconds]
            axes.bar(at, list(seconds.values()), width=0.25, label=policy)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set(xlabel="guests", title=f"{which} image, {disk} disk")
    axes_of[0].set(ylabel="last guest's login prompt after, s")
    axes_of[0].legend()


if __name__ == "__main__":
    sys.exit(main())
