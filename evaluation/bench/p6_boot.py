# SPDX-License-Identifier: Apache-2.0
"""P6: a guest's boot with a loaded boot image, its reads, the image's size.

The builder makes the boot image from the lab's guest image.

P6 boots the same guest, with the same options of QEMU, in turns from an agent with the boot image
in memory and all other chunks in its cache, and from a raw file in the page cache.  The page cache
has nothing of the agent's file at the start, so each first read of the guest goes through the
agent.

P6a replays the boot trace, chunk by chunk and without think time, through an agent, through bare
pyfuse3 with one file, and through an agent without a boot image whose source is behind a shaped
link.  A replay takes some tens of milliseconds, less than a busy machine's pauses, so a turn has
many replays.

Ways take turns in changing order; the first turn of each is not counted.  A figure is the median of
the ratios of neighbouring turns.  The ratio of the fastest turns, the least disturbed ones, is in
the results as well.
"""

import contextlib
import mmap
import os
import pathlib
import statistics
import time
from collections.abc import Sequence

from matplotlib import figure

from acstor_common import errors
from acstor_common.model import geometry
from evaluation.bench import boots
from evaluation.bench import harness
from evaluation.bench import p5_hits
from tests.lab import agents
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import runs
from tests.lab import tuned

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "5"))
REPLAY_TURNS = 9
REPLAYS_OF_A_TURN = 10
LINK_MBIT = 100.0
KEPT_S = 3600.0
"""The boot image stays in memory so long without a boot."""


@harness.measures("P6", "P6a", "P6b")
def run(say: harness.Say) -> harness.Result:
    """Build the boot image, replay its trace, boot guests."""
    with runs.Run() as lab_run:
        made = boots.prepare(lab_run.folder, say)
        share = 100 * made.head.size_bytes / made.image.stat().st_size
        say(f"boot image: {made.head.size_bytes} bytes, {share:.2f} % of the image")
        replayed = replay_all(made, lab_run.folder, say)
        booted = boot_by_turns(made, lab_run.folder, say)
    ready_s = statistics.median(replayed["acstor"])
    over_bare, over_bare_fastest = ratios(replayed["acstor"], replayed["bare"])
    over_raw, over_raw_fastest = ratios(booted["acstor"], booted["raw file"])
    say(f"replay over bare pyfuse3: median {over_bare:.2f}, fastest {over_bare_fastest:.2f}")
    say(f"login over raw file: median {over_raw:.3f}, fastest {over_raw_fastest:.3f}")
    values: dict[str, harness.Value] = {
        "P6": over_raw,
        "P6a": (over_bare, replayed["HTTP on demand"][0] / ready_s),
        "P6b": share,
    }
    details = {
        "boot image": {
            "chunks": made.head.header.chunk_count,
            "raw_bytes": made.head.raw_bytes,
            "stored_bytes": made.head.size_bytes,
            "build": made.summary,
        },
        "replay_s": replayed,
        "boot_s": booted,
        "fastest": {"P6": over_raw_fastest, "P6a": over_bare_fastest},
    }
    return harness.Result(values, details, lambda picture: draw(picture, replayed, booted))


def ratios(ours_s: Sequence[float], theirs_s: Sequence[float]) -> tuple[float, float]:
    """Return the median of the turns' ratios, and the ratio of the fastest turns.

    >>> ratios([2.2, 9.0, 2.4], [2.0, 3.0, 2.0])
    (1.2, 1.1)
    """
    pairs = [ours / theirs for ours, theirs in zip(ours_s, theirs_s, strict=True)]
    return statistics.median(pairs), min(ours_s) / min(theirs_s)


# Replay


def replay_all(
    made: boots.Prepared, folder: pathlib.Path, say: harness.Say
) -> dict[str, list[float]]:
    """Return the seconds of each replay, by origin of the bytes."""
    trace = list(made.head.trace)
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(local.agent(folder / "replay", made.images))
        agent.wait_ready()
        boots.wait_ready(agent, made.image_id)
        paths = {
            "acstor": agent.image_path(made.image_id),
            "bare": stack.enter_context(p5_hits.bare(made.image, folder / "bare")),
        }
        found: dict[str, list[float]] = {way: [] for way in paths}
        for path in paths.values():
            replay(path, trace)
        for turn in range(REPLAY_TURNS):
            for way in sorted(paths, reverse=bool(turn % 2)):
                took = [replay(paths[way], trace) for _ in range(REPLAYS_OF_A_TURN)]
                found[way].append(statistics.median(took))
        origins = agent.status()["images"][made.image_id]["read"]
        if origins["boot"]["requests"] < REPLAY_TURNS * REPLAYS_OF_A_TURN * len(trace):
            raise errors.Unusable("P6a", f"the boot image was not used: {origins}")
    found["HTTP on demand"] = [replay_remote(made, trace)]
    for way, seconds in found.items():
        say(f"replay, {way}: {', '.join(f'{s:.3f}' for s in seconds)} s")
    return found


def replay(path: pathlib.Path, trace: Sequence[int]) -> float:
    """Read the chunks of a boot trace with O_DIRECT; return the seconds."""
    chunk_bytes = geometry.DEFAULT_CHUNK_BYTES
    buffer = mmap.mmap(-1, chunk_bytes)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        began = time.perf_counter()
        for chunk_no in trace:
            os.preadv(fd, [buffer], chunk_no * chunk_bytes)
        return time.perf_counter() - began
    finally:
        os.close(fd)


def replay_remote(made: boots.Prepared, trace: Sequence[int]) -> float:
    """Replay on a cold host without boot images; its source is behind a shaped link."""
    with network.Network(hosts=1, link_mbit=LINK_MBIT, source_mbit=LINK_MBIT) as net:
        host = net.hosts[0]
        with image_server.ImageServer(net.source, made.images.folder) as server:
            with agents.Agent(host, server.url, boot_memory_limit_bytes=0) as agent:
                agent.wait_ready()
                return replay(agent.image_path(made.image_id), trace)


# Guests


def boot_by_turns(
    made: boots.Prepared, folder: pathlib.Path, say: harness.Say
) -> dict[str, list[float]]:
    """Boot from both in changing order; return the seconds to the login prompt."""
    found: dict[str, list[float]] = {"raw file": [], "acstor": []}
    kept = {tuned.BOOT_IDLE_S: KEPT_S}
    with local.agent(folder / "boots", made.images, constants=kept) as agent:
        agent.wait_ready()
        path = agent.image_path(made.image_id)
        boots.read_whole(path, is_direct=True)
        for turn in range(-1, TURNS):
            for way in sorted(found, reverse=bool(turn % 2)):
                place = folder / f"{way.replace(' ', '-')}-{turn}"
                place.mkdir()
                host = local.LocalHost(way, "", local.LOOPBACK, place)
                seconds = (
                    boot_raw(made, host) if way == "raw file" else boot_acstor(made, host, agent)
                )
                say(f"boot {turn + 1} of {TURNS}, {way}: login after {seconds:.2f} s")
                if turn >= 0:
                    found[way].append(seconds)
    return found


def boot_raw(made: boots.Prepared, host: network.Host) -> float:
    """Boot from the raw file in the page cache."""
    boots.read_whole(made.image)
    return boots.login_s(host, made.image)


def boot_acstor(made: boots.Prepared, host: network.Host, agent: agents.Agent) -> float:
    """Boot from an agent with the boot image in memory and all else cached."""
    path = agent.image_path(made.image_id)
    boots.forget(path)
    boots.wait_ready(agent, made.image_id)
    before = _from_memory(agent, made)
    seconds = boots.login_s(host, path)
    if _from_memory(agent, made) - before < made.head.raw_bytes // 2:
        raise errors.Unusable("P6", "the guest did not boot from the boot image")
    return seconds


def _from_memory(agent: agents.Agent, made: boots.Prepared) -> int:
    count: int = agent.status()["images"][made.image_id]["read"]["boot"]["bytes"]
    return count


def draw(
    picture: figure.Figure, replayed: dict[str, list[float]], booted: dict[str, list[float]]
) -> None:
    """Draw the seconds of replays and of boots."""
    left, right = picture.subplots(1, 2)
    for axes, found, label in (
        (left, replayed, "replay of the trace, s"),
        (right, booted, "login, s"),
    ):
        axes.bar(list(found), [statistics.median(seconds) for seconds in found.values()])
        axes.set(ylabel=label)
    left.set_yscale("log")
