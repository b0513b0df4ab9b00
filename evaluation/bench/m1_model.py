# SPDX-License-Identifier: Apache-2.0
"""M1: the difference between the model of the exchange on slow links and the lab.

The exchange's rules are first tried in a model (``tests/chaos/transfer_patterns``): the agent's own
cores on links in virtual time.  Here the model and the lab, with agents, run the patterns of P1,
P2, P3 and P11 with their parameters, and their figures are compared.  M1 is the largest
difference, as a share of the lab's figure.  A model beyond its target must be fixed before it
supports conclusions.

``python -m evaluation.bench.m1_model [P1 ...] [--divisor N] [--slower N] [--turns N]`` runs
some of the patterns, or smaller copies of them, or on slower links, which need less CPU, or takes
the median of several turns in the lab.  Its exit status is 0 if all figures agree, 1 if one could
not be measured, 3 if one differs.
"""

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import figure

from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import p1_sync_same
from evaluation.bench import p2_shifted_same
from evaluation.bench import p3_sync_disjoint
from evaluation.bench import p11_bad_peer
from evaluation.bench import patterns
from tests.chaos import transfer_patterns
from tests.lab import local

SEEDS = (1, 2, 3)
"""Of the model; a figure is their mean."""
EXIT_COULD_NOT_RUN, EXIT_DIFFERS = 1, 3

Figures = dict[str, float]
"""By name; each is a ratio, and none is near zero."""


class Size(NamedTuple):
    """A pattern's size: all reads are divided by one number, links by another."""

    divisor: int = 1
    slower: float = 1.0

    def of(self, full: patterns.Pattern) -> patterns.Pattern:
        """Return the pattern in this size; delays grow with slower links."""
        small = patterns.scaled(full, self.divisor)
        readings = tuple(
            dataclasses.replace(reading, delay_s=reading.delay_s * self.slower)
            for reading in small.readings
        )
        return dataclasses.replace(
            small, link_mbit=small.link_mbit / self.slower, readings=readings
        )


def joined(how: Callable[[list[float]], float], turns: Sequence[Figures]) -> Figures:
    """Join several turns into one.

    >>> joined(max, [{"a": 1.0}, {"a": 2.0}])
    {'a': 2.0}
    """
    return {what: how([turn[what] for turn in turns]) for what in turns[0]}


def difference(pair: dict[str, float]) -> float:
    """Return the model's error, as a share of the lab's figure.

    >>> difference({"lab": 2.0, "model": 1.5})
    -0.25
    """
    return pair["model"] / pair["lab"] - 1


def worst(found: dict[str, dict[str, float]]) -> float:
    """Return the largest difference."""
    return max(abs(difference(pair)) for pair in found.values())


# Patterns


def sync_same(size: Size) -> patterns.Pattern:
    """Return P1."""
    p1 = p1_sync_same
    full = patterns.sync_same(p1.HOSTS, p1.LINK_MBIT, p1.REGION_BYTES, p1.IMAGE_BYTES)
    return size.of(full)


def shifted_same(size: Size) -> patterns.Pattern:
    """Return P2."""
    p2 = p2_shifted_same
    full = patterns.shifted_same(
        p2.HOSTS, p2.LINK_MBIT, p2.REGION_BYTES, p2.IMAGE_BYTES, p2.DELAY_S
    )
    return size.of(full)


def sync_disjoint(size: Size) -> patterns.Pattern:
    """Return P3."""
    p3 = p3_sync_disjoint
    full = patterns.sync_disjoint(p3.HOSTS, p3.LINK_MBIT, p3.REGION_BYTES)
    return size.of(full)


# The lab


def lab_same(size: Size) -> Figures:
    """Run P1."""
    return _same(patterns.with_acstor(sync_same(size)))


def _same(found: patterns.Outcome) -> Figures:
    return {
        "completion": found["completion"],
        "source bytes / unique": found["source_ratio"],
        "slowest / fastest": found["slowest_over_fastest"],
    }


def lab_shifted(size: Size) -> Figures:
    """Run P2."""
    return _shifted(patterns.with_acstor(shifted_same(size)))


def _shifted(found: patterns.Outcome) -> Figures:
    return {
        "source bytes / unique": found["source_ratio"],
        "throughput of all but the first": statistics.mean(found["rate_over_link"]["each"][1:]),
    }


def lab_disjoint(size: Size) -> Figures:
    """Run P3."""
    pattern = sync_disjoint(size)
    return _disjoint(patterns.with_acstor(pattern), patterns.direct(pattern))


def _disjoint(found: patterns.Outcome, direct: patterns.Outcome) -> Figures:
    return {
        "completion / that of direct reads": found["completion"] / direct["completion"],
        "bytes moved / read": 1 + found["unread_share"],
    }


def lab_bad_peer(size: Size) -> Figures:
    """Run P11.

    :raises harness.CannotRun: a guest saw an error
    """
    p11 = p11_bad_peer
    region_bytes, link_mbit = p11.REGION_BYTES // size.divisor, p11.LINK_MBIT / size.slower
    took_s = {}
    with collective.images(local.random_bytes(region_bytes, seed=1)) as images:
        for name, deed in {"well": None, **p11.STATES}.items():
            is_lying = name == "lying"
            seen = p11.watch(images, deed, False, is_lying, region_bytes, link_mbit)
            if seen["fault"]:
                raise harness.CannotRun(f"{name}: {seen['fault']}")
            took_s[name] = max(seen["took_s"])
    limit_s = region_bytes * 8e-6 / link_mbit
    return _bad_peer({name: longest_s / limit_s for name, longest_s in took_s.items()})


def _bad_peer(completion: Figures) -> Figures:
    well = completion["well"]
    others = {f"{name} / well": completion[name] / well for name in transfer_patterns.BAD}
    return {"completion, well": well, **others}


# The model


def model_same(size: Size, seed: int) -> Figures:
    """Run P1."""
    return _same(transfer_patterns.play(sync_same(size), seed=seed).figures)


def model_shifted(size: Size, seed: int) -> Figures:
    """Run P2."""
    return _shifted(transfer_patterns.play(shifted_same(size), seed=seed).figures)


def model_disjoint(size: Size, seed: int) -> Figures:
    """Run P3."""
    play = functools.partial(transfer_patterns.play, sync_disjoint(size), seed=seed)
    return _disjoint(play().figures, play(is_alone=True).figures)


def model_bad_peer(size: Size, seed: int) -> Figures:
    """Run P11."""
    p11 = p11_bad_peer
    chunks = p11.REGION_BYTES // size.divisor // transfer_patterns.CHUNK
    link_mbit = p11.LINK_MBIT / size.slower
    return _bad_peer(
        {
            kind: transfer_patterns.bad_peer(kind, p11.HOSTS, chunks, link_mbit, seed)
            for kind in ("well", *transfer_patterns.BAD)
        }
    )


Patterns = Mapping[str, tuple[Callable[[Size], Figures], Callable[[Size, int], Figures]]]
"""Functions of each pattern, by name: in the lab and, with a seed, in the model."""
PATTERNS: Patterns = {
    "P1": (lab_same, model_same),
    "P2": (lab_shifted, model_shifted),
    "P3": (lab_disjoint, model_disjoint),
    "P11": (lab_bad_peer, model_bad_peer),
}


@harness.measures("M1")
def run(say: harness.Say, patterns: Patterns = PATTERNS) -> harness.Result:
    """Run all patterns in the model and in the lab."""
    found = compare(patterns, Size(), say)
    return harness.Result({"M1": worst(found)}, found, lambda picture: draw(picture, found))


def compare(
    patterns: Patterns, size: Size, say: harness.Say, turns: int = 1
) -> dict[str, dict[str, float]]:
    """Run patterns in both; return each figure of the lab and of the model.

    :param turns: turns in the lab; the median counts
    :raises harness.CannotRun: the lab cannot
    """
    found = {}
    for name, (in_lab, in_model) in patterns.items():
        say(f"{name}: the model")
        modelled = joined(statistics.mean, [in_model(size, seed) for seed in SEEDS])
        say(f"{name}: the lab")
        measured = joined(statistics.median, [in_lab(size) for _ in range(turns)])
        for what, value in measured.items():
            pair = {"lab": value, "model": modelled[what]}
            found[f"{name}, {what}"] = pair
            both = f"lab {value:.3f}, model {pair['model']:.3f}"
            say(f"{name}, {what}: {both}, {difference(pair):+.1%}")
    return found


def draw(picture: figure.Figure, found: dict[str, dict[str, float]]) -> None:
    """Draw each figure of the lab beside that of the model."""
    picture.set_size_inches(10, 6)
    axes = picture.subplots()
    for number, side in enumerate(("lab", "model")):
        at = [place + 0.4 * number for place in range(len(found))]
        bars = axes.barh(at, [pair[side] for pair in found.values()], 0.4, label=side)
        axes.bar_label(bars, fmt="%.3f")
    axes.set_yticks([place + 0.2 for place in range(len(found))], list(found))
    axes.invert_yaxis()
    axes.set(title="The exchange in the lab and in the model")
    axes.legend()


def main(patterns: Patterns = PATTERNS) -> int:
    """Compare some patterns; return 0, 1 or 3 as above.

    :param patterns: the known ones
    """
    parser = argparse.ArgumentParser(prog="python -m evaluation.bench.m1_model")
    parser.add_argument(
        "names", metavar="PATTERN", nargs="*", help=f"one of {', '.join(patterns)}; default: all"
    )
    parser.add_argument("--divisor", type=int, default=1, help="divisor of the regions' sizes (1)")
    parser.add_argument("--slower", type=float, default=1, help="divisor of the links' rates (1)")
    parser.add_argument("--turns", type=int, default=1, help="runs of each pattern in the lab (1)")
    options = parser.parse_args()
    numbers = options.divisor, options.slower, options.turns
    if not set(options.names) <= set(patterns) or min(numbers) < 1:
        parser.error(f"patterns are {', '.join(patterns)}; no number is below 1")
    size = Size(options.divisor, options.slower)
    say = functools.partial(print, flush=True)
    try:
        wanted = {name: patterns[name] for name in options.names or patterns}
        found = compare(wanted, size, say, options.turns)
    except harness.CannotRun as e:
        print(f"M1 could not run: {e}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    (most,) = harness.bounds("M1")
    print(f"the largest difference: {worst(found):.1%} (at most {most:.0%})")
    return 0 if worst(found) <= most else EXIT_DIFFERS


if __name__ == "__main__":
    sys.exit(main())
