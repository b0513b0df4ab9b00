# SPDX-License-Identifier: Apache-2.0
"""S4, 5.5: the I/O rates of booted guests beside traffic (figure 9)."""

import functools

from acstor_simulator.model import workloads
from evaluation.papers import experiment
from evaluation.papers import s4_simulated as simulated

COLLABORATIVE, ACSTOR = simulated.COLLABORATIVE, simulated.ACSTOR
EVEN, HEAVY = 0, 5
"""Places on the axis: 40 MB/s at CV 0.4, and 70 MB/s at CV 1.2."""
SERVER, PROXY, VIDEO = workloads.WORKLOADS


def _cases(scale: experiment.Scale) -> list[experiment.Case]:
    if scale is experiment.Scale.WHOLE:
        return simulated.of_figure("9", lambda one: True)
    return simulated.of_figure("9", lambda one: one.x in (EVEN, HEAVY) and one.policy != "local")


def _mb_s(outcomes: experiment.Outcomes, workload: str, x: int, policy: str) -> float | None:
    return simulated.value(outcomes, f"{workload}, {x}, {policy}", "mb_s")


def _gain(outcomes: experiment.Outcomes, workload: str, x: int = HEAVY) -> float | None:
    ours, theirs = (_mb_s(outcomes, workload, x, policy) for policy in (ACSTOR, COLLABORATIVE))
    return experiment.divided(ours, theirs)


@simulated.complete
def _rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    rows = [_gain_row(outcomes, workload) for workload in (SERVER, PROXY)]
    gains = [_gain(outcomes, workload) for workload in (SERVER, PROXY)]
    rows.append(
        experiment.Row(
            "Figure 9(b)",
            "acstor's gain with the web server / with the proxy, 70 MB/s, CV 1.2",
            "more than 1",
            gains[0],
            "times",
            gains[1],
            "proxy",
            experiment.divided(*gains),
            1.0,
        )
    )
    rows += [_video_row(outcomes, policy) for policy in (ACSTOR, COLLABORATIVE)]
    rows += [_storage_row(outcomes, workload) for workload in workloads.WORKLOADS]
    return rows


def _gain_row(outcomes: experiment.Outcomes, workload: str) -> experiment.Row:
    ours, theirs = (_mb_s(outcomes, workload, HEAVY, policy) for policy in (ACSTOR, COLLABORATIVE))
    return experiment.Row.over(
        "Figure 9(a)" if workload == SERVER else "Figure 9(b)",
        f"{workload}: throughput of all guests, 70 MB/s, CV 1.2",
        "clearly more (drawn)",
        ours,
        "MB/s",
        theirs,
        COLLABORATIVE,
        goal=1.0,
    )


def _video_row(outcomes: experiment.Outcomes, policy: str) -> experiment.Row:
    heavy, even = (_mb_s(outcomes, VIDEO, x, policy) for x in (HEAVY, EVEN))
    return experiment.Row.over(
        "Figure 9(c)",
        f"video server, {policy}: 70 MB/s and CV 1.2 against 40 MB/s and CV 0.4",
        "almost no effect",
        heavy,
        "MB/s",
        even,
        "even traffic",
        goal=1.0,
        because="a quarter of its bytes are first reads of the image here, and a guest that waits "
        "for them writes nothing meanwhile; the paper does not state how many of its reads "
        "leave the host",
    )


def _storage_row(outcomes: experiment.Outcomes, workload: str) -> experiment.Row:
    ours, none = (_mb_s(outcomes, workload, HEAVY, policy) for policy in (ACSTOR, "none"))
    return experiment.Row.over(
        "Figure 9",
        f"{workload}: acstor against no cache, 70 MB/s, CV 1.2",
        "2 to 8 times (abstract, of all approaches)",
        ours,
        "MB/s",
        none,
        "no cache",
        goal=2.0,
    )


THROUGHPUT = experiment.Experiment(
    key="S4-figure-9",
    title="Figure 9: web server, web proxy and video server under traffic",
    paper_has=(
        "The throughput of all guests with Filebench's web server, web proxy and video server, at "
        "40, 70 and 100 MB/s and CVs of 0.4, 0.8 and 1.2; drawn, without numbers. The paper "
        "states that the first reads much at a steady rate, that the second has small reads at an "
        "unsteady rate, and that the third writes much."
    ),
    here=(
        "Similar reads in the simulator, 480 chunks a guest of a data set of 960 in its image "
        "(``acstor_simulator/model/workloads.py``): files of 512 KiB at a steady rate and a log; "
        "reads of 16 KiB in bursts; files of 4 MiB, as much written as read and half of the reads "
        "of written data. I/O within the host has 50 MB/s for each guest. A fetched chunk stays "
        "on the host here, where the paper fetches it again each time."
    ),
    cases=_cases,
    rows=_rows,
    draw=functools.partial(simulated.draw, "9", key="mb_s"),
)

EXPERIMENTS = (THROUGHPUT,)
