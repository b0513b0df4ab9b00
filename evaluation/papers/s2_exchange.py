# SPDX-License-Identifier: Apache-2.0
"""Beyond S2: a boot image from another host, not loaded in advance."""

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Mapping
from collections.abc import Sequence

from evaluation.bench import boots
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s2_boot
from tests.lab import agents
from tests.lab import image_server
from tests.lab import network

MB = 1e6
LINK_MBIT, SOURCE_MBIT = 1000.0, 100.0
HOSTS = 3
CASE = "three hosts"


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the case; a quick run has none."""
    return [] if scale is experiment.Scale.QUICK else [experiment.Case(CASE, measure, 16)]


def measure(say: harness.Say) -> experiment.Outcome:
    """Let hosts load one boot image in sequence; return seconds and bytes of each."""
    boot = s2_boot.ensure(lambda _: None)
    with network.Network(HOSTS, link_mbit=LINK_MBIT, source_mbit=SOURCE_MBIT) as net:
        folder = _published(boot, net.run.folder / "images")
        ring_file = agents.write_ring(net.hosts, net.run.folder / "ring.json")
        with image_server.ImageServer(net.source, folder) as server:
            found = _load(boot, net, server.url, ring_file)
    say(str(found))
    return found


def _published(boot: s2_boot.Boot, folder: pathlib.Path) -> pathlib.Path:
    """Copy image, chunk map and boot image to the image server's folder."""
    folder.mkdir()
    image_id = boot.image_id(0)
    for path, kind in ((boot.image, "raw"), (boot.map_file(0), "acmap")):
        _give(path, folder / f"{image_id}.{kind}")
    _give(boot.boot_image_file(0), folder / f"{image_id}.acboot")
    return folder


def _give(path: pathlib.Path, name: pathlib.Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # on another file system
        shutil.copy(path, name)


def _load(
    boot: s2_boot.Boot, net: network.Network, url: str, ring_file: pathlib.Path
) -> experiment.Outcome:
    """Load the boot image on each host in turn."""
    each = []
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(agents.Agent(host, url, ring_file)) for host in net.hosts]
        for agent in running:
            agent.wait_ready()
        for agent in running:
            before = net.link_bytes()["source"].sent
            began_s = time.monotonic()
            boots.wait_ready(agent, boot.image_id(0))
            took_s = time.monotonic() - began_s
            sent = net.link_bytes()["source"].sent - before
            each.append({"s": round(took_s, 2), "source_mb": round(sent / MB, 2)})
    return {"boot_image_mb": round(boot.boot_image_bytes / MB, 2), "each": each}


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows."""
    return [] if CASE not in outcomes else _rows(outcomes[CASE])


def _rows(outcome: experiment.Outcome) -> list[experiment.Row | experiment.Absent]:
    first: Mapping[str, float] = outcome["each"][0]
    last: Mapping[str, float] = outcome["each"][-1]

    def row(what: str, key: str, unit: str) -> experiment.Row:
        return experiment.Row.cost(
            part="Beyond",
            what=f"{what}, third host, source behind {SOURCE_MBIT:.0f} Mbit/s",
            paper="none",
            ours=last[key],
            unit=unit,
            baseline=first[key],
            baseline_name="first host",
        )

    return [
        row("Bytes from the image server for a boot image and its chunk map", "source_mb", "MB"),
        row("Time until a boot image is verified and in memory", "s", "s"),
    ]
