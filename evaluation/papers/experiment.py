# SPDX-License-Identifier: Apache-2.0
"""The comparison with a paper: experiments, their cases, and rows of figures.

A *paper* has *experiments*, one for each of its tables and figures (or for several from one run).
An experiment is a list of *cases*: each runs separately, and its outcome is stored at once, so a
run can be interrupted and resumed at any time.  *Rows* (the paper's number, ours, the baseline of
the same run) and a picture are made from the outcomes.

A row is computed from outcomes, and a verdict from a row.  A page's only manual content is the
paper's numbers, and reasons for missed figures.
"""

import dataclasses
import enum
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from evaluation.bench import harness

Outcome = dict[str, Any]
"""The result of a case, in JSON types."""
Outcomes = Mapping[str, Outcome]
"""Outcomes by the names of their cases."""

SAME = 0.05
"""A figure within this share of the paper's has reached it; a better one beats it."""
STEADY = 0.15
"""Paired baselines that differ by more, as a share of the lesser, were unsteady."""


class Scale(enum.StrEnum):
    """The amount of each experiment to run."""

    WHOLE = "whole"
    QUICK = "quick"


class Better(enum.Enum):
    """The better direction of a figure."""

    MORE = 1
    LESS = -1


class Verdict(enum.StrEnum):
    """A figure's comparison with the paper's; ``SHOWN``: it has no goal."""

    BEATEN = "beaten"
    REACHED = "reached"
    MISSED = "missed"
    SHOWN = "shown"


@dataclasses.dataclass(frozen=True)
class Case:
    """A unit of a run.

    :param name: unique within its experiment
    :param run: runs it, and returns its outcome
    :param about_s: its approximate duration on the reference machine, for the progress display
    :param is_timed: the outcome has times of the machine itself (no virtual time), so that other
        load matters
    """

    name: str
    run: Callable[[harness.Say], Outcome]
    about_s: float
    is_timed: bool = True


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of the paper, and ours.

    :param part: its place in the paper ("Table 2", "Figure 2(b)", "4.3.1")
    :param what: the measured quantity, in the words of the paper, with its parameters
    :param paper: the paper's number, with its unit; "no number" if it is only drawn
    :param ours: the run's number; None if it was not run at this scale
    :param unit: of ``ours`` and ``baseline``
    :param baseline: the compared number of the same run
    :param baseline_name: its name
    :param ratio: the figure to compare with the paper's; usually the quotient of the two
    :param goal: the paper's number for ``ratio`` (for ``ours``, if there is no ratio); None
        if there is no goal
    :param better: the better direction of both
    :param because: its limit, or the reason of a miss; shown only in that case
    :param is_headline: one of the paper's key figures, at the beginning of the page
    """

    part: str
    what: str
    paper: str
    ours: float | None
    unit: str = ""
    baseline: float | None = None
    baseline_name: str = ""
    ratio: float | None = None
    goal: float | None = None
    better: Better = Better.MORE
    because: str = ""
    is_headline: bool = False

    @classmethod
    def over(
        cls,
        part: str,
        what: str,
        paper: str,
        ours: float | None,
        unit: str,
        baseline: float | None,
        baseline_name: str,
        **verdict: Any,
    ) -> "Row":
        """Return the row with the ratio of ours over the baseline.

        :param verdict: ``goal`` and the following fields
        """
        ratio = divided(ours, baseline)
        return cls(part, what, paper, ours, unit, baseline, baseline_name, ratio, **verdict)

    @classmethod
    def cost(cls, *figures: Any, **named: Any) -> "Row":
        """Return the row of a figure over the baseline; less is better.

        Arguments as of :meth:`over`.
        """
        return cls.over(*figures, better=Better.LESS, **named)

    @classmethod
    def speed_up(
        cls,
        part: str,
        what: str,
        paper: str,
        ours: float | None,
        baseline: float | None,
        baseline_name: str,
        **verdict: Any,
    ) -> "Row":
        """Return the row of two times, in s, with the ratio of the baseline over ours.

        :param verdict: ``goal`` and the following fields
        """
        ratio = divided(baseline, ours)
        return cls(part, what, paper, ours, "s", baseline, baseline_name, ratio, **verdict)

    @property
    def compared(self) -> float | None:
        """The value to compare with the goal."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def verdict(self) -> Verdict:
        """The figure's comparison with the paper's.

        >>> Row("Table 2", "speed-up", "2.8", 3.4, goal=2.8).verdict
        <Verdict.BEATEN: 'beaten'>
        >>> Row("4.3.1", "slowest / fastest", "1.05", 1.2, goal=1.05, better=Better.LESS).verdict
        <Verdict.MISSED: 'missed'>
        """
        if self.goal is None or self.compared is None:
            return Verdict.SHOWN
        gain = self.better.value * (self.compared - self.goal) / abs(self.goal)
        if gain > SAME:
            return Verdict.BEATEN
        return Verdict.REACHED if gain >= -SAME else Verdict.MISSED


@dataclasses.dataclass(frozen=True)
class Absent:
    """A table or figure that cannot be reproduced here, and the reason."""

    part: str
    what: str
    paper: str
    why: str


def divided(one: float | None, other: float | None) -> float | None:
    """Return a quotient; None if an operand is missing, or the divisor is zero."""
    return None if one is None or not other else one / other


def no_pairs(_: Outcomes) -> Mapping[str, Sequence[float]]:
    """Return no pairs: virtual time, or ratios within cases."""
    return {}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, or several from one run.

    :param key: the paper's key, and the place in it: "S0-figure-2"; names files
    :param title: "Figure 2 and table 2: all read the same at once"
    :param paper_has: the paper's measurement and environment
    :param here: the scale here, and its consequences
    :param cases: its cases at a scale
    :param rows: its figures; called with the available outcomes, at any scale
    :param draw: fills the picture
    :param pairs: repeated measurements of a baseline during the run, by its name, which show
        whether the machine was steady
    :param is_beyond: not in the paper: at the end of the page
    """

    key: str
    title: str
    paper_has: str
    here: str
    cases: Callable[[Scale], Sequence[Case]]
    rows: Callable[[Outcomes], Sequence[Row | Absent]]
    draw: Callable[[figure.Figure, Outcomes], None] | None = None
    pairs: Callable[[Outcomes], Mapping[str, Sequence[float]]] = no_pairs
    is_beyond: bool = False

    @property
    def paper(self) -> str:
        """The key of the paper."""
        return self.key.partition("-")[0]


@dataclasses.dataclass(frozen=True)
class Paper:
    """A published system, and its experiments.

    :param key: "S0" to "S4"
    :param name: its subject, for the title of its page
    :param cite: authors, title, where, year
    :param about: the paper's proposal and acstor's part of it, in some sentences (RST)
    :param absent: tables and figures that cannot be run here
    """

    key: str
    name: str
    cite: str
    about: str
    experiments: tuple[Experiment, ...]
    absent: tuple[Absent, ...] = ()


def spread(values: Sequence[float]) -> float:
    """Return the spread of values, as a share of the least.

    >>> round(spread([10.0, 11.5]), 3)
    0.15
    """
    return max(values) / min(values) - 1
