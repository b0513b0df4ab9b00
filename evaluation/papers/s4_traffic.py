# SPDX-License-Identifier: Apache-2.0
"""S4, 2.2 and 5.6: the unevenness of traffic, and boots' effect (figures 1, 10)."""

import functools
import random
import statistics
from collections.abc import Sequence

from matplotlib import figure

from acstor_simulator import paper_figures
from acstor_simulator import simulation
from acstor_simulator.model import background_traffic
from acstor_simulator.model import topology
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s4_simulated as simulated

COLLABORATIVE, ACSTOR = simulated.COLLABORATIVE, simulated.ACSTOR
BEFORE = slice(0, int(simulation.QUIET_S / simulation.COLLECTION_S))
BOOTING = slice(BEFORE.stop, BEFORE.stop + 4)
"""The collections of the first 20 s of boots: all guests still boot then."""

REDUCED = 1 - experiment.SAME
""""Significantly reduced" in the paper, without a number: the least difference."""

# Figure 1(a)


def _pairs(say: harness.Say) -> experiment.Outcome:
    """Return the traffic of each pair of hosts, in MB/s."""
    scenario = simulation.Scenario(cv=1.2)
    shape, rng = scenario.shape, random.Random(scenario.seed)
    loads = background_traffic.draw_loads(
        shape.host_count, scenario.mean, scenario.cv, 2 * shape.host_rate, rng
    )
    matrix = [[0.0] * shape.host_count for _ in range(shape.host_count)]
    tree = topology.Tree(shape)
    for flow in background_traffic.flows(tree, loads, scenario.partners, scenario.reach, rng):
        matrix[flow.sender][flow.receiver] += flow.rate / paper_figures.MB
    return {"mb_s": [[round(rate, 2) for rate in row] for row in matrix]}


def _pair_cases(scale: experiment.Scale) -> list[experiment.Case]:
    return [experiment.Case("CV 1.2", _pairs, 0.1, is_timed=False)]


def _pair_rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    if "CV 1.2" not in outcomes:
        return []
    matrix = outcomes["CV 1.2"]["mb_s"]
    rates = sorted((rate for row in matrix for rate in row), reverse=True)
    pairs = len(matrix) * (len(matrix) - 1)
    busiest = sum(rates[: pairs // 20]) / sum(rates)
    return [
        experiment.Row(
            "Figure 1(a)",
            "share of all traffic of the busiest twentieth of the pairs of hosts",
            "no number",
            busiest,
        )
    ]


def _draw_pairs(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    picture.set_size_inches(5, 4)
    panel = picture.subplots()
    shown = panel.imshow(outcomes["CV 1.2"]["mb_s"], cmap="Greys")
    panel.set(xlabel="to host", ylabel="from host")
    picture.colorbar(shown, label="MB/s")


PAIRS = experiment.Experiment(
    key="S4-figure-1a",
    title="Figure 1(a): traffic between pairs of hosts",
    paper_has=(
        "The traffic between virtual machines of a data centre as grey levels, of Meng et al. "
        "2010: few pairs have most of it."
    ),
    here=(
        "No such trace is public. This is the traffic generated for all runs on this page: loads "
        "of 32 hosts from a gamma distribution, adjusted to the mean and the CV (70 MB/s, 1.2), "
        "and eight partners each, chosen in proportion to their loads."
    ),
    cases=_pair_cases,
    rows=_pair_rows,
    draw=_draw_pairs,
)

# Figures 1(b) and 10


def _cases(scale: experiment.Scale) -> list[experiment.Case]:
    if scale is experiment.Scale.WHOLE:
        return simulated.of_figure("10", lambda one: True)
    return simulated.of_figure("10", lambda one: one.panel == "CV 1.2")


def _cv(outcomes: experiment.Outcomes, cv: float, policy: str, when: slice) -> float | None:
    name = f"CV {cv}, 0, {policy}"
    return statistics.fmean(outcomes[name]["cvs"][when]) if name in outcomes else None


@simulated.complete
def _rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    return [*_rows_of_10(outcomes), *_rows_of_1(outcomes), *_rows_of_swing(outcomes)]


def _rows_of_10(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    rows = []
    for cv in paper_figures.CVS:
        ours, theirs = (_cv(outcomes, cv, policy, BOOTING) for policy in (ACSTOR, COLLABORATIVE))
        rows.append(
            experiment.Row.cost(
                "Figure 10",
                f"CV of all traffic in the first 20 s of booting, CV {cv} before",
                "significantly reduced",
                ours,
                "",
                theirs,
                COLLABORATIVE,
                goal=REDUCED,
                because="no host is overloaded, so no v-node moves",
                is_headline=cv == max(paper_figures.CVS),
            )
        )
    return rows


def _rows_of_1(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    rows = []
    for cv in paper_figures.CVS:
        booting, before = (_cv(outcomes, cv, COLLABORATIVE, when) for when in (BOOTING, BEFORE))
        rows.append(
            experiment.Row.over(
                "Figure 1(b)",
                f"CV with {COLLABORATIVE} while guests boot over that before, CV {cv}",
                "much higher" if cv < max(paper_figures.CVS) else "may not be affected a lot (5.6)",
                booting,
                "",
                before,
                "before",
            )
        )
    return rows


def _swing(cvs: Sequence[float]) -> float:
    return max(cvs[BOOTING]) - min(cvs[BOOTING])


def _rows_of_swing(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    swings = {
        policy: [
            _swing(outcomes[name]["cvs"])
            for cv in paper_figures.CVS
            if (name := f"CV {cv}, 0, {policy}") in outcomes
        ]
        for policy in (ACSTOR, COLLABORATIVE)
    }
    ours, theirs = (max(swings[policy], default=None) for policy in (ACSTOR, COLLABORATIVE))
    return [
        experiment.Row.cost(
            "Figure 10",
            "largest range of the CV within these 20 s",
            "more with ACStor",
            ours,
            "",
            theirs,
            COLLABORATIVE,
        )
    ]


CVS = experiment.Experiment(
    key="S4-figures-1b-10",
    title="Figures 1(b) and 10: CV of all traffic while guests boot",
    paper_has=(
        "The CV over the hosts of all traffic, chunks included, while 160 guests boot; extra "
        "traffic of CV 0.4, 0.8 and 1.2. Guests begin 30 s after monitoring does."
    ),
    here=(
        "The same in the simulator at 70 MB/s, in collections of 5 s; guests begin 15 s after "
        "monitoring does, when the first ring that follows the traffic is in use. Homes are "
        "spread evenly over the hosts, so chunks make all traffic more even than before, also "
        "with homes that do not move; in the paper it becomes less even at CV 0.4 and 0.8."
    ),
    cases=_cases,
    rows=_rows,
    draw=functools.partial(simulated.draw, "10"),
)

EXPERIMENTS = PAIRS, CVS
