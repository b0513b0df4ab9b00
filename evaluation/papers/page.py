# SPDX-License-Identifier: Apache-2.0
"""Writes a paper's page from the results: key figures, then each experiment.

A page depends only on the experiments and the stored results, so it can be written again, and a
test compares every published page with the results beside it.
"""

import math
import pathlib
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import runner
from evaluation.papers import store

WORDS = {
    experiment.Verdict.BEATEN: "Beaten.",
    experiment.Verdict.REACHED: "Reached.",
    experiment.Verdict.MISSED: "**Missed**",
    experiment.Verdict.SHOWN: "",
}


def text(paper: experiment.Paper, kept: Mapping[str, store.StoredResults], pictures: str) -> str:
    """Return a paper's page as reStructuredText.

    :param kept: results, by the keys of experiments
    :param pictures: the folder of the pictures, relative to the page
    """
    rows = {one.key: _rows(one, kept[one.key]) for one in paper.experiments if one.key in kept}
    headlines = [row for found in rows.values() for row in found if _is_headline(row)]
    parts = [_title(paper), paper.about.strip(), _run(paper, kept.values())]
    if headlines:
        parts += [_heading("Summary", "="), _table(headlines)]
    for is_beyond, title in ((False, "Table by table"), (True, "Beyond the paper")):
        chosen = [one for one in paper.experiments if one.is_beyond == is_beyond]
        if chosen or (paper.absent and not is_beyond):
            parts.append(_heading(title, "="))
        for one in chosen:
            parts += _section(one, kept.get(one.key), rows.get(one.key, []), pictures)
        if paper.absent and not is_beyond:
            parts += [_heading("Not reproducible here", "-"), _table(paper.absent)]
    return "\n\n".join(parts) + "\n"


def draw(one: experiment.Experiment, kept: store.StoredResults, file: pathlib.Path) -> None:
    """Draw an experiment's picture, if it has one and all of its cases could run."""
    if one.draw is None or kept.refusals or not kept.records:
        return
    picture = figure.Figure(figsize=(11, 4.5), layout="constrained")
    one.draw(picture, kept.outcomes)
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(file, dpi=90, metadata={"Software": None})


def _rows(
    one: experiment.Experiment, kept: store.StoredResults
) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rows, or one for each case that could not run."""
    refused = [
        experiment.Absent(name, "could not run", "", why) for name, why in kept.refusals.items()
    ]
    return refused or (one.rows(kept.outcomes) if kept.records else [])


def _is_headline(row: experiment.Row | experiment.Absent) -> bool:
    return isinstance(row, experiment.Row) and row.is_headline


def _title(paper: experiment.Paper) -> str:
    title = f"{paper.key}: {paper.name}"
    return f"{_heading(title, '=', above=True)}\n\n{paper.cite}"


def _heading(title: str, mark: str, above: bool = False) -> str:
    line = mark * len(title)
    return f"{line}\n{title}\n{line}" if above else f"{title}\n{line}"


def _run(paper: experiment.Paper, all_kept: Iterable[store.StoredResults]) -> str:
    """Return the text on date, machine and load of the page's figures."""
    kept = [one for one in all_kept if one.records]
    if not kept:
        return "No experiment has been run yet."
    records = [record for one in kept for record in one.records.values()]
    machines = [record["machine"] for record in records]
    dates = sorted(machine["date"][:10] for machine in machines)
    commits = sorted({machine["commit"][:10] for machine in machines})
    timed = [record for record in records if record["is_timed"]] or records
    others = [record["others_share"] for record in timed]
    scale = f"A {kept[0].scale} run"
    if len(kept) < len(paper.experiments):
        scale += f", in which {len(kept)} of {len(paper.experiments)} experiments were run"
    return (
        f"{scale}, {dates[0]}{f' to {dates[-1]}' if dates[-1] != dates[0] else ''}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}; "
        f"{machines[0]['cores']} cores of {_plain(machines[0]['cpu'])}, Linux "
        f"{machines[0]['kernel']}, Python {machines[0]['python']}. During timed cases, other "
        f"programs (and the kernel's networking) used {statistics.median(others):.0%} of the "
        f"processors in the median, {max(others):.0%} at most; the steal time was "
        f"{max(record['steal_share'] for record in timed):.0%} at most. All cases together took "
        f"{sum(map(store.machine_s, records)) / 60:.0f} min."
    )


def _section(
    one: experiment.Experiment,
    kept: store.StoredResults | None,
    rows: Sequence[experiment.Row | experiment.Absent],
    pictures: str,
) -> list[str]:
    """Return the parts of an experiment's section."""
    parts = [_heading(one.title, "-")]
    if one.paper_has:
        parts.append(f"**The paper:** {one.paper_has.strip()}")
    parts.append(f"**Here:** {one.here.strip()}")
    if kept is None or not kept.records:
        return [*parts, "Not run yet."]
    if one.draw is not None and not kept.refusals:
        parts.append(f".. image:: {pictures}/{one.key}.png\n   :alt: {one.title}")
    if (share := runner.unsteady(one, kept)) is not None:
        parts.append(
            ".. note::\n\n   The machine was not steady: the same baseline differed by "
            f"{share:.0%} within {'both turns' if kept.turns > 1 else 'the run'}, so small "
            "differences are not significant."
        )
    return (
        [*parts, _table(rows)] if rows else [*parts, "The cases that were run give no figure yet."]
    )


def _table(rows: Sequence[experiment.Row | experiment.Absent]) -> str:
    head = ["Where", "What", "Paper", "Here", "Baseline", "Ratio", "Verdict"]
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 9 26 14 11 14 8 18", ""]
    for cells in (head, *map(_cells, rows)):
        for number, cell in enumerate(cells):
            lines.append(f"   {'*' if number == 0 else ' '} -{' ' if cell else ''}{cell}")
    return "\n".join(lines)


def _cells(row: experiment.Row | experiment.Absent) -> list[str]:
    if isinstance(row, experiment.Absent):
        return [_plain(row.part), _plain(row.what), row.paper, "", "", "", _plain(row.why)]
    ratio = "" if row.ratio is None else number(row.ratio)
    return [
        row.part,
        row.what,
        row.paper,
        "" if row.ours is None else f"{number(row.ours)} {row.unit}".strip(),
        ""
        if row.baseline is None
        else f"{number(row.baseline)} {row.unit} ({row.baseline_name})".replace("  ", " "),
        ratio,
        _judgement(row),
    ]


def _judgement(row: experiment.Row) -> str:
    if row.ours is None:
        return "Not run at this scale."
    word = WORDS[row.verdict]
    if row.verdict is experiment.Verdict.MISSED:
        return f"{word}: {row.because or 'cause unknown.'}"
    return word


def number(value: float) -> str:
    """Return a number with three significant digits.

    >>> [number(value) for value in (0.9876, 12.34, 1234.5, 2.0, 1.0)]
    ['0.988', '12.3', '1,234', '2.00', '1.00']
    """
    if abs(value) < 1:
        return f"{value:.3f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _plain(words: str) -> str:
    """Escape reStructuredText's markup."""
    return "".join(f"\\{letter}" if letter in "*`|_\\" else letter for letter in words).replace(
        "\n", " "
    )
