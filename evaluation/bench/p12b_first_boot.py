# SPDX-License-Identifier: Apache-2.0
"""P12b: a guest's first boot on a cold host in a cold cloud, with a boot image.

The agent has just started: the host has nothing of the image, no other host has chunks, and the
only link to the image server has 100 Mbit/s.  The agent gets the request that Nova sends, and the
guest starts at once, so the boot image has no head start; the time counts from that request.  In
turns the same guest boots, with the same options of QEMU, from a raw file in the page cache.  P12b
is the median of the ratios of neighbouring turns.

P12c is the share of the first boots' reads of the mirror, without zeros, that the boot image
served: from memory, or with a part of it in flight.  The agent's own timeline of each boot has it,
and the distribution of the remaining time; the last one is drawn.  A run is refused if its
timelines lack reads that the agent has counted for the image, since a share of a part has no
meaning.
"""

import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from matplotlib import figure

from acstor_common import errors
from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart
from evaluation.bench import boots
from evaluation.bench import harness
from evaluation.bench import p6_boot
from tests.lab import agents
from tests.lab import image_server
from tests.lab import network
from tests.lab import runs

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "5"))
LINK_MBIT = 100.0


@harness.measures("P12b", "P12c")
def run(say: harness.Say) -> harness.Result:
    """Boot from a cold host and from a raw file in changing order."""
    found: dict[str, list[float]] = {"raw file": [], "cold host": []}
    reported: list[boot_timeline.Timeline] = []
    with runs.Run() as lab_run:
        made = boots.prepare(lab_run.folder, say)
        check_built(made.summary)
        for turn in range(TURNS):
            for way in sorted(found, reverse=bool(turn % 2)):
                if way == "raw file":
                    seconds = boot_raw(made)
                else:
                    seconds, timeline = boot_cold(made)
                    reported.append(timeline)
                say(f"boot {turn + 1} of {TURNS}, {way}: login after {seconds:.2f} s")
                found[way].append(seconds)
    say(boot_chart.draw(reported[-1]))
    median, fastest = p6_boot.ratios(found["cold host"], found["raw file"])
    say(f"login over raw file: median {median:.3f}, fastest {fastest:.3f}")
    values: dict[str, harness.Value] = {
        "P12b": median,
        "P12c": statistics.median(100 * share_of(timeline) for timeline in reported),
    }
    details = {
        "login_s": found,
        "fastest": fastest,
        "boot_image_bytes": {"raw": made.head.raw_bytes, "stored": made.head.size_bytes},
        "shares_s": [[share._asdict() for share in boot_chart.shares(one)] for one in reported],
        "timelines": [msgspec.to_builtins(one) for one in reported],
    }
    return harness.Result(values, details, lambda picture: draw(picture, found, reported))


def boot_raw(made: boots.Prepared) -> float:
    """Boot from the raw file in the page cache; return the seconds to the login."""
    with network.Network(hosts=1) as net:
        boots.read_whole(made.image)
        return boots.login_s(net.hosts[0], made.image)


def boot_cold(made: boots.Prepared) -> tuple[float, boot_timeline.Timeline]:
    """Boot on a cold host; return the seconds from the image's request on."""
    with (
        network.Network(hosts=1, link_mbit=LINK_MBIT, source_mbit=LINK_MBIT) as net,
        image_server.ImageServer(net.source, made.images.folder) as server,
        agents.Agent(net.hosts[0], server.url) as agent,
    ):
        agent.wait_ready()
        began_s = time.monotonic()
        agents.request(agent.control_socket, "attach-image", image_id=made.image_id)
        ensured_s = time.monotonic() - began_s
        seconds = boots.login_s(net.hosts[0], agent.image_path(made.image_id))
        timeline = timeline_of(agent, made.image_id)
        check_complete(timeline, agent.status()["images"][made.image_id]["read"], seconds)
        return ensured_s + seconds, timeline


def timeline_of(agent: agents.Agent, image_id: str) -> boot_timeline.Timeline:
    """Return the agent's timeline of the boot.

    :raises errors.Unusable: there is none
    """
    reported = agent.timelines(image_id)
    if not reported:
        raise errors.Unusable("P12b", "the agent has noted no boot")
    return reported[-1]


def check_built(summary: Mapping[str, Any]) -> None:
    """Check that the builder's boot reached the login: else its boot image is partial.

    :raises errors.Unusable: it did not, as on a busy machine
    """
    if summary["end"] != "marker":
        why = f"ended by {summary['end']} after {summary['seconds_s']:.0f} s, not at the login"
        raise errors.Unusable("P12b: the builder's boot", why)


def check_complete(
    timeline: boot_timeline.Timeline, read: dict[str, dict[str, int]], login_s: float
) -> None:
    """Check that a timeline has all reads that the agent counted.

    :param read: the agent's counters of the image, which has no other reader
    :raises errors.Unusable: reads are missing, so no share has a meaning
    """
    noted, counted = sum(timeline.bytes.values()), sum(one["bytes"] for one in read.values())
    if noted != counted:
        why = f"has {noted} of {counted} bytes read until the login after {login_s:.1f} s"
        raise errors.Unusable("P12c: the timeline", why)


def share_of(timeline: boot_timeline.Timeline) -> float:
    """Return the share of a boot's reads that the boot image had."""
    return boot_timeline.boot_image_share(timeline.bytes) or 0.0


def draw(
    picture: figure.Figure, found: dict[str, list[float]], reported: list[boot_timeline.Timeline]
) -> None:
    """Draw the seconds to the login, and their distribution in the first boots."""
    left, right = picture.subplots(1, 2)
    for number, (way, seconds) in enumerate(found.items()):
        left.plot([number] * len(seconds), seconds, "o", label=way)
    left.set(ylabel="login, s", xticks=range(len(found)), xticklabels=list(found), ylim=(0, None))
    shares = [dict(boot_chart.shares(one)) for one in reported]
    names = list(dict.fromkeys(name for one in shares for name in one))
    means = [statistics.mean(one.get(name, 0.0) for one in shares) for name in names]
    right.barh(names, means)
    right.set(xlabel="first boots, mean s")
