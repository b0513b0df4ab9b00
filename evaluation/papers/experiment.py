# SPDX-License-Identifier: Apache-2.0
"""What it takes to hold acstor against a paper: experiments, their cases, and rows of figures.

A *paper* has *experiments*, one for each of its tables and figures (or for several that come from
one run).  An experiment is a list of *cases*: each is run once, by itself, and its outcome is kept
at once, so that a run can be interrupted at any time and gone on with.  From the outcomes come
*rows* (the paper's number, ours, the baseline of the same run) and a picture.

The one rule: a row is computed from outcomes, and a verdict from a row.  Nothing on a page is typed
in but what the paper says, and why a figure is missed.
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
"""What one case gave; anything that JSON can hold."""
Outcomes = Mapping[str, Outcome]
"""Outcomes by the names of their cases."""

SAME = 0.05
"""A figure this near to the paper's, as a share, has reached it; one that is better beats it."""
STEADY = 0.15
"""If paired baselines differ by more, as a share of the lesser, the machine was not steady."""


class Scale(enum.StrEnum):
    """How much of each experiment is run."""

    WHOLE = "whole"
    QUICK = "quick"


class Better(enum.Enum):
    """Which way a figure gets better."""

    MORE = 1
    LESS = -1


class Verdict(enum.StrEnum):
    """How a figure stands beside the paper's; ``SHOWN`` is one that has no goal."""

    BEATEN = "beaten"
    REACHED = "reached"
    MISSED = "missed"
    SHOWN = "shown"


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that is run by itself.

    :param name: unique within its experiment
    :param run: runs it, and returns its outcome
    :param about_s: about how long it takes on the reference machine, for the progress that is shown
    :param is_timed: times of the machine itself are in the outcome (no virtual time), so that what
        else the machine does matters
    """

    name: str
    run: Callable[[harness.Say], Outcome]
    about_s: float
    is_timed: bool = True


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of the paper, and ours.

    :param part: where the paper has it ("Table 2", "Figure 2(b)", "4.3.1")
    :param what: what is measured, in the words of the paper, with its parameters
    :param paper: what the paper says, with its unit; "no number" where it only draws it
    :param ours: what the run gave; None where it was not run at this scale
    :param unit: of ``ours`` and ``baseline``
    :param baseline: what ``ours`` is held against, of the same run
    :param baseline_name: what that is
    :param ratio: the figure that can be compared with the paper's; the quotient of the two, mostly
    :param goal: the paper's number for ``ratio`` (for ``ours``, where there is no ratio); None
        where there is nothing to reach
    :param better: which way both get better
    :param because: what bounds it, or why it is missed: shown only if it is
    :param is_headline: one of the figures by which the paper is known; the page begins with them
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
        """Return the row whose ratio is ours over the baseline.

        :param verdict: ``goal`` and what follows it
        """
        ratio = divided(ours, baseline)
        return cls(part, what, paper, ours, unit, baseline, baseline_name, ratio, **verdict)

    @classmethod
    def cost(cls, *figures: Any, **named: Any) -> "Row":
        """Return the row of a figure that is better if it is less, over the baseline.

        Takes what :meth:`over` takes.
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
        """Return the row of two times, in s, whose ratio is the baseline over ours.

        :param verdict: ``goal`` and what follows it
        """
        ratio = divided(baseline, ours)
        return cls(part, what, paper, ours, "s", baseline, baseline_name, ratio, **verdict)

    @property
    def compared(self) -> float | None:
        """What is held against the goal."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def verdict(self) -> Verdict:
        """How the figure stands beside the paper's.

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
    """A table or figure that cannot be had here, and why."""

    part: str
    what: str
    paper: str
    why: str


def divided(one: float | None, other: float | None) -> float | None:
    """Return a quotient; None if one of the two is missing, or nothing to divide by."""
    return None if one is None or not other else one / other


def no_pairs(_: Outcomes) -> Mapping[str, Sequence[float]]:
    """Return no pairs: all is in virtual time, or the ratios are taken within cases."""
    return {}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper, or several that come from one run.

    :param key: the paper's key, and where it stands: "S0-figure-2"; names files
    :param title: "Figure 2 and table 2: all read the same at once"
    :param paper_has: what the paper measured, and on what
    :param here: how it is scaled down here, and what that changes
    :param cases: its cases at a scale
    :param rows: its figures; it is called with the outcomes that there are, whatever the scale
    :param draw: fills the picture
    :param pairs: the same baseline, measured at several times of the run, by its name: what tells
        whether the machine was steady
    :param is_beyond: the paper has no such thing: it stands at the end of the page
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
    """A published system, and what is run for it.

    :param key: "S0" to "S4"
    :param name: what it is about, for the title of its page
    :param cite: authors, title, where, year
    :param about: what the paper proposes and what of acstor that is, in some sentences (RST)
    :param absent: tables and figures for which nothing can be run here
    """

    key: str
    name: str
    cite: str
    about: str
    experiments: tuple[Experiment, ...]
    absent: tuple[Absent, ...] = ()


def spread(values: Sequence[float]) -> float:
    """Return how far apart values are, as a share of the least.

    >>> round(spread([10.0, 11.5]), 3)
    0.15
    """
    return max(values) / min(values) - 1
