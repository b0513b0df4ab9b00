# SPDX-License-Identifier: Apache-2.0
"""Reports a gain estimate: rows of numbers, figures, a self-contained HTML page."""

import html
import io
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import figure

from acstor_simulator import simulation
from acstor_simulator.gain import gain_estimate
from acstor_simulator.gain import model_validation
from acstor_simulator.model import boot_traces

Row = tuple[str, list[str]]
ASSUMPTIONS = (
    "All caches are empty before the rush, and at the beginning of the day. Data that is cached "
    "from the day before lowers all columns.",
    "A day's servers are spread evenly over hosts; the second most popular image has half of the "
    "servers of the first, the third a third. Images share no data.",
    "Each host's [acstor_agent] location names its rack, and the decision service runs. All other "
    "options have their defaults.",
    "Each image has a boot image, whose size is "
    f"{boot_traces.PACKED:.0%} of the data that a server reads while it boots.",
    "Other traffic takes a constant share of each link.",
)
LIMITS = (
    "Disks and processors of hosts take no time, except for what Nova does with a file after its "
    "download (5 s per GB, measured). Where they are slow, all columns are slower.",
    "Nova's own work for a server takes the same time in each column, and is left out. So are "
    "reads beyond the boot image (0.5 MB of 58 MB when it was measured).",
    "No host fails, no data is lost, and no cache is too small.",
    "Data that is fetched after a boot moves in larger pieces than in the product.",
    "A day is calculated from the rush, with average numbers; it has no busy hours.",
)


class StrategyResult(NamedTuple):
    """Estimate and simulation result of one policy."""

    estimate: gain_estimate.GainEstimate
    result: simulation.Result


def result_rows(results: Sequence[StrategyResult]) -> list[Row]:
    """Return the rows of numbers, with a column for each policy."""
    answers = [result.estimate for result in results]
    found: list[Row] = []
    for name, field in (("First byte of its disk", "first_s"), ("Login prompt", "login_s")):
        for at, share in enumerate(("half of the servers", "95 %", "all")):
            found.append((f"{name}, {share}", [_s(getattr(a, field)[at]) for a in answers]))
    found += [
        ("Out of the image store", [_gb(a.storage_gb) for a in answers]),
        ("  in its busiest second", [_gbit(a.storage_peak_gbit) for a in answers]),
        ("Over links of racks, up and down", [_gb(a.uplink_gb) for a in answers]),
        ("  on the busiest, its busiest second", [_gbit(a.uplink_peak_gbit) for a in answers]),
        ("Last host has all of its image after", [_whole(a) for a in answers]),
        ("A day: out of the image store", [_gb(a.day_storage_gb) for a in answers]),
        ("A day: over links of racks", [_gb(a.day_uplink_gb) for a in answers]),
        ("A day: servers first on their host", [f"{a.day_waits:.0f}" for a in answers]),
    ]
    return found


def _s(seconds: float) -> str:
    return "not in 12 h" if seconds == float("inf") else f"{seconds:.3g} s"


def _gb(amount: float) -> str:
    return f"{amount:.3g} GB" if amount < 999.5 else f"{amount:.0f} GB"


def _gbit(rate: float) -> str:
    return f"{rate:.3g} Gbit/s"


def _whole(answer: gain_estimate.GainEstimate) -> str:
    if answer.whole_s is not None:
        return _s(answer.whole_s)
    return _s(answer.first_s[-1]) if answer.policy == "nova" else "not in 12 h"


def cloud_text(parameters: gain_estimate.CloudParameters) -> list[str]:
    """Describe the cloud."""
    shape, sizes = parameters.shape, parameters.sizes
    return [
        f"{shape.host_count} hosts in {shape.racks} racks: {parameters.link_gbit:g} Gbit/s a host, "
        f"{parameters.uplink_gbit:g} Gbit/s a rack, {parameters.store_gbit:g} Gbit/s out of "
        f"the image store; {parameters.busy_percent:g} % of the links of hosts and racks in use by "
        "other traffic",
        f"{parameters.images} images of {sizes.stored / 1e9:.3g} GB, {sizes.data / 1e9:.3g} GB "
        "unpacked",
        f"rush: {parameters.rush_servers} servers at once, of {parameters.at_once_images} image"
        f"{'s' * (parameters.at_once_images > 1)}; each server boots in "
        f"{parameters.boot_s:g} s and reads {parameters.boot_mb:.3g} MB of it",
        f"day: {parameters.boots_a_day} servers of all images",
    ]


def cache_size_text(parameters: gain_estimate.CloudParameters) -> str:
    """Describe the cache size that a host needs."""
    room = gain_estimate.cache_size(parameters)
    return (
        f"Cache size of a host: {_gb(room.day_gb)} for the images of such a day on average, "
        f"{_gb(room.all_gb)} for all {parameters.images}. Set cache_limit_bytes of acstor-agent to "
        "what a host's servers use at a time; Nova's cache of images takes as much."
    )


def draw(results: Sequence[StrategyResult]) -> figure.Figure:
    """Return the figures: logins over time, traffic of the store, and a day."""
    picture = figure.Figure(figsize=(14, 4.2), layout="constrained")
    logins, store, day = picture.subplots(1, 3)
    for result in results:
        name = gain_estimate.POLICY_TITLES[result.estimate.policy]
        seconds = sorted(result.result.boot_s)
        shares = [100 * (at + 1) / len(seconds) for at in range(len(seconds))]
        logins.step([0, *seconds], [0, *shares], where="post", label=name)
        rates = [rate * 8 / gain_estimate.GB for rate in result.result.storage_rates]
        store.plot(range(len(rates)), rates, label=name)
    logins.set(title="Rush: servers at their login, %", xlabel="s", xlim=(0, None))
    store.set(title="Rush: out of the image store, Gbit/s", xlabel="s", ylim=(0, None))
    _draw_day(day, results)
    logins.legend()
    return picture


def _draw_day(panel: mpl_axes.Axes, results: Sequence[StrategyResult]) -> None:
    for at, result in enumerate(results):
        gb = [result.estimate.day_storage_gb, result.estimate.day_uplink_gb]
        panel.bar([at * 0.25, 1 + at * 0.25], gb, 0.25)
    panel.set(title="A day: GB", xticks=[0.25, 1.25])
    panel.set_xticklabels(["out of the image store", "over links of racks"])


def _svg(picture: figure.Figure) -> str:
    text = io.StringIO()
    picture.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _table(head: Sequence[str], lines: Sequence[Row]) -> str:
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    rest = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in lines
    )
    return f"<table><tr>{first}</tr>{rest}</table>"


def validation_rows() -> list[Row]:
    """Return the rows of the validation: measured, modelled, relative error."""
    return [
        (
            f"{gain_estimate.POLICY_TITLES[row.policy]}. {row.what}",
            [
                f"{row.measured:g} {row.unit}",
                f"{row.modelled:g} {row.unit}",
                f"{row.relative_error:+.0%}",
            ],
        )
        for row in model_validation.FIGURES
    ]


def make_page(parameters: gain_estimate.CloudParameters, results: Sequence[StrategyResult]) -> str:
    """Return the HTML page."""
    titles = [gain_estimate.POLICY_TITLES[result.estimate.policy] for result in results]
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>What a cloud gains with acstor</title>
<style>body {{ font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }} th, td {{ padding: .3em .8em; border-bottom: 1px solid #ccc }}
th {{ text-align: left; font-weight: normal }} td {{ text-align: right }}
svg {{ width: 100%; height: auto }}</style></head><body>
<h1>What a cloud gains with acstor</h1>
<p>Simulated, not measured.</p>
<h2>The cloud</h2>{_list(cloud_text(parameters))}
<h2>Results</h2>{_table(["", *titles], result_rows(results))}
<p>{html.escape(cache_size_text(parameters))}</p>
{_svg(draw(results))}
<h2>Assumptions</h2>{_list(ASSUMPTIONS)}
<h2>Limits of the model</h2>{_list(LIMITS)}
<h2>Accuracy of the model</h2>
<p>Links of 100 Mbit/s, guests emulated. The model's constants come from the first and the third
line, the ratio of a boot image to its boot, and the guest's own time on four hosts.</p>
{_table(["", "measured", "model", "off by"], validation_rows())}
</body></html>
"""
