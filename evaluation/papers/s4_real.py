# SPDX-License-Identifier: Apache-2.0
"""S4 on real agents: 5.4.2 and 5.6 beside traffic, 5.7 with warm caches, and more."""

import functools
from collections.abc import Callable
from collections.abc import Sequence

from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import s4_real_cache as cache
from evaluation.papers import s4_real_remap as remap
from evaluation.papers import s4_real_rows as rows
from evaluation.papers import s4_real_traffic as traffic

TRAFFIC_S, QUICK_TRAFFIC_S, REMAP_S, POLICY_S = 85, 60, 70, 6
QUICK = experiment.Scale.QUICK
BEYOND = "acstor"
"""The way of 5.7 that the paper lacks."""


def _traffic_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    if scale is QUICK:
        less = {"hosts": traffic.QUICK_HOSTS, "region_bytes": traffic.QUICK_REGION_BYTES}
        ways, more, about_s = (traffic.COLLABORATIVE, traffic.ACSTOR), less, QUICK_TRAFFIC_S
    else:
        ways, more, about_s = tuple(traffic.WAYS), {}, TRAFFIC_S
    return [
        experiment.Case(way, functools.partial(traffic.outcome, way=way, **more), about_s)
        for way in ways
    ]


def _remap_cases(*chosen: str) -> Sequence[experiment.Case]:
    return [
        experiment.Case(way, functools.partial(remap.outcome, way=way), REMAP_S) for way in chosen
    ]


def _paper_remaps(scale: experiment.Scale) -> Sequence[experiment.Case]:
    return _remap_cases(*(way for way in remap.WAYS if way != BEYOND and scale is not QUICK))


def _beyond_remaps(scale: experiment.Scale) -> Sequence[experiment.Case]:
    return [] if scale is QUICK else _remap_cases(BEYOND)


def _policy_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    return [
        experiment.Case(policy, functools.partial(cache.outcome, policy=policy), POLICY_S)
        for policy in ([] if scale is QUICK else cache.POLICIES)
    ]


def _bars(
    *panels: tuple[str, Callable[[experiment.Outcome], float]],
) -> Callable[[figure.Figure, experiment.Outcomes], None]:
    """Return a function that draws a panel of bars per figure, a bar per case."""

    def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
        picture.set_size_inches(5 * len(panels), 4.2)
        for at, (title, of) in enumerate(panels, 1):
            panel = picture.add_subplot(1, len(panels), at)
            bars = panel.bar(list(outcomes), [of(one) for one in outcomes.values()])
            panel.bar_label(bars, fmt="%.3g")
            panel.set(title=title)
            panel.margins(y=0.15)
            panel.tick_params(axis="x", labelrotation=25)

    return draw


EXPERIMENTS: tuple[experiment.Experiment, ...] = (
    experiment.Experiment(
        key="S4-real-traffic",
        title="Figures 6(b), 7 and 10 at CV 1.2, on real agents: all hosts read under uneven "
        "traffic",
        paper_has=(
            "32 hosts with 5 guests each boot from 5 images of 4 GB, links of 1 Gbit/s, other "
            "traffic with a mean of 70 MB/s (56 % of a link) and a CV of 1.2 over the hosts: the "
            "mean time of a boot, and the CV of all traffic meanwhile."
        ),
        here=(
            f"{traffic.HOSTS} hosts with real agents in network namespaces, on links of "
            f"{remap.p7_remap.LINK_MBIT} Mbit/s, with a real broker and decision service. UDP "
            "flows give the hosts the same mean and CV: two hosts have 91 % of a link in use each "
            "way, as seven of 32 would, the others 10 %. All hosts read one region of "
            f"{traffic.REGION_BYTES >> 20} MiB at once, after the v-nodes have moved: the reads of "
            "a boot, without the guest, so the times contain only the network and the ratios are "
            "larger than those of whole boots. *Collaborative* and *the paper's acstor* are "
            "agents with the paper's rules only: they ask homes, whatever the cost, and no other "
            "hosts (``no-advertisements``, ``no-referrals``, ``no-hedges``, ``no-source-first``); "
            "the paper's acstor finds chunks by OID and CID (``by-oid``), keeps the chunks whose "
            "home it is (``homes-keep``) and remaps. A busy and an idle host also download the "
            "region from the source, under the same traffic, while no other host reads: the mean "
            "over the hosts is the lower bound of any exchange. The quick run has "
            f"{traffic.QUICK_HOSTS} hosts, two of them with 86 % of a link in use each way, and "
            f"{traffic.QUICK_REGION_BYTES >> 20} MiB, so the gain is smaller."
        ),
        cases=_traffic_cases,
        rows=rows.traffic_rows,
        draw=_bars(
            ("Mean time of a host, s", lambda one: one["mean_s"]),
            ("The same / alone from the source", lambda one: one["mean_s"] / one["limit_s"]),
            ("CV of all traffic", lambda one: one["traffic_cv"]),
        ),
        pairs=rows.traffic_pairs,
    ),
    experiment.Experiment(
        key="S4-real-remap",
        title="5.7, 3.4.3 and 3.7.2: a remap with warm caches, on real agents",
        paper_has=(
            "The paper states that remapping causes misses of more than 64 KB each, that the OTC "
            "table avoids more of them the more the images have in common, and that remapping is "
            "still worthwhile. No numbers."
        ),
        here=(
            f"{remap.HOSTS} hosts on links of {remap.LINK_MBIT} Mbit/s; {remap.IMAGES} images of "
            f"{remap.COMMON_CHUNKS + remap.OWN_CHUNKS} chunks (64 KiB) each, {remap.COMMON_CHUNKS} "
            "of which are in all of them, at other offsets. All hosts read all images, so that "
            "the homes have all chunks; then traffic makes two hosts busy (86 % of a link each "
            "way), v-nodes move, and the six idle hosts read all images again, uncached by the "
            "kernel. Hosts follow the paper's rules (only homes are asked, and only homes keep "
            "chunks) with three ways to find a chunk: an OID alone (``by-place``), the paper's "
            "OID and CID (``by-oid``), and acstor's own, where the content determines the homes. "
            "At the end the decision service is killed. The number that the tables *foresee* is "
            "that of chunks which the new homes lack by the tables alone."
        ),
        cases=_paper_remaps,
        rows=rows.remap_rows,
        draw=_bars(
            ("Chunks read again after the remap", lambda one: one["second"]["source_chunks"]),
            ("Busy hosts gave, % of chunks", lambda one: 100 * one["second"]["busy_share"]),
            ("Mean time of the second reading, s", lambda one: one["second"]["mean_s"]),
        ),
    ),
    experiment.Experiment(
        key="S4-real-policies",
        title="3.3.2: three cache policies on a real agent",
        paper_has="The paper names FIFO, LRU and LFU for the public cache, without numbers.",
        here=(
            f"One agent with a cache of {cache.CACHE_BYTES / (1 << 20):g} MiB; the {remap.IMAGES} "
            f"images of 5.7, whose contents are a fifth larger, are read completely {cache.VISITS} "
            "times, by Zipf's law, in reads of a chunk, uncached by the kernel. The core that the "
            "simulations use processes the same sequence of reads; it has no time, while in an "
            "agent a read that waits for the disk counts as two uses, and chunks that are being "
            "read or written cannot be evicted."
        ),
        cases=_policy_cases,
        rows=rows.policy_rows,
        draw=_bars(("Hits, % of reads", lambda one: 100 * one["hits"] / one["reads"])),
    ),
    experiment.Experiment(
        key="S4-real-beyond",
        title="A remap with warm caches where hosts keep and advertise what they read",
        paper_has="",
        here=(
            "The same as for 5.7, with agents in their defaults: a host keeps what it has read, "
            "advertises it to its neighbours, and refers to other hosts when it is busy. Half of "
            "the hosts read at first, and the idle ones of the other half after the remap."
        ),
        cases=_beyond_remaps,
        rows=rows.beyond_rows,
        is_beyond=True,
    ),
)
