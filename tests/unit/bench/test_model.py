# SPDX-License-Identifier: Apache-2.0
"""M1 detects a wrong model of the exchange, and uses the patterns of the benchmarks."""

import sys
from collections.abc import Callable

import pytest
from matplotlib import figure
from matplotlib import patches

from evaluation.bench import harness
from evaluation.bench import m1_model
from evaluation.bench import p1_sync_same
from evaluation.bench import p2_shifted_same
from evaluation.bench import p3_sync_disjoint

SMALL = m1_model.Size(divisor=16)


def silent(line: str) -> None:
    pass


def model_of(lab: float, *model: float) -> m1_model.Patterns:
    """Return one pattern with one figure, measured differently by each seed of the model."""
    by_seed = dict(zip(m1_model.SEEDS, model, strict=True))
    in_lab: Callable[[m1_model.Size], m1_model.Figures] = lambda size: {"figure": lab}  # noqa: E731
    return {"P1": (in_lab, lambda size, seed: {"figure": by_seed[seed]})}


@pytest.mark.parametrize(
    ("lab", "model", "status"),
    [
        (1.0, (1.1, 1.2, 1.1), 0),
        (1.0, (1.1, 1.2, 1.2), m1_model.EXIT_DIFFERS),
        (1.0, (0.9, 0.8, 0.8), m1_model.EXIT_DIFFERS),
        (1.5, (1.3, 1.3, 1.3), 0),
    ],
)
def test_exit_status_shows_whether_model_and_lab_agree(
    lab: float,
    model: tuple[float, ...],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["m1_model", "P1"])
    assert m1_model.main(model_of(lab, *model)) == status
    printed = capsys.readouterr().out
    assert f"P1, figure: lab {lab:.3f}, model {sum(model) / 3:.3f}" in printed


def test_median_of_the_lab_runs_is_used() -> None:
    turns = iter((1.0, 9.0, 1.2))
    pair = lambda size: {"figure": next(turns)}, lambda size, seed: {"figure": 1.0}
    found = m1_model.compare({"P1": pair}, SMALL, silent, turns=3)
    assert found == {"P1, figure": {"lab": 1.2, "model": 1.0}}


def test_lab_that_cannot_run_has_another_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: m1_model.Size) -> m1_model.Figures:
        raise harness.CannotRun("as it should")

    (_, in_model) = model_of(1.0, 1.0, 1.0, 1.0)["P1"]
    monkeypatch.setattr(sys, "argv", ["m1_model"])
    assert m1_model.main({"P1": (fail, in_model)}) == m1_model.EXIT_COULD_NOT_RUN


@pytest.mark.parametrize(
    "arguments", [["P9"], ["--divisor", "0"], ["--slower", "0"], ["--turns", "0"]]
)
def test_unknown_pattern_or_divisor_is_a_usage_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["m1_model", *arguments])
    with pytest.raises(SystemExit, match="2"):
        m1_model.main()


def test_benchmark_reports_the_largest_difference_and_draws_all() -> None:
    found = m1_model.run(silent, model_of(2.0, 1.5, 1.5, 1.5))
    assert found.values == {"M1": 0.25}
    picture = figure.Figure()
    assert found.draw is not None
    found.draw(picture)
    bars = [bar for bar in picture.axes[0].patches if isinstance(bar, patches.Rectangle)]
    assert [bar.get_width() for bar in bars] == pytest.approx([2.0, 1.5])


def test_patterns_are_scaled_copies_of_the_benchmarks() -> None:
    assert m1_model.sync_same(m1_model.Size()).limit_s == pytest.approx(
        p1_sync_same.REGION_BYTES * 8e-6 / p1_sync_same.LINK_MBIT
    )
    small = m1_model.shifted_same(SMALL)
    assert small.hosts == p2_shifted_same.HOSTS
    assert small.readings[-1].delay_s == pytest.approx(
        (p2_shifted_same.HOSTS - 1) * p2_shifted_same.DELAY_S / SMALL.divisor
    )
    assert m1_model.sync_disjoint(SMALL).link_mbit == p3_sync_disjoint.LINK_MBIT
    slower = m1_model.Size(slower=4).of(small)
    assert slower.limit_s == pytest.approx(4 * small.limit_s)


@pytest.mark.parametrize("name", m1_model.PATTERNS)
def test_model_has_each_figure_of_a_pattern(name: str) -> None:
    _, in_model = m1_model.PATTERNS[name]
    first, again = (in_model(SMALL, 1) for _ in range(2))
    assert first == again  # a seed is one run
    assert min(first.values()) > 0.5


def test_costs_of_collective_reads_in_the_model() -> None:
    """As measured in the lab, within 15 %: M1 compares them there; this is a half or a quarter."""
    half, quarter = m1_model.Size(2), m1_model.Size(4)
    same = m1_model.model_same(half, 1)
    assert 1.3 < same["completion"] < 1.7
    assert same["source bytes / unique"] < 1.05
    assert same["slowest / fastest"] < 1.2
    shifted = m1_model.model_shifted(quarter, 1)
    assert shifted["throughput of all but the first"] > 0.8
    disjoint = m1_model.model_disjoint(quarter, 1)
    assert disjoint["completion / that of direct reads"] < 1.02
    assert disjoint["bytes moved / read"] < 1.08
