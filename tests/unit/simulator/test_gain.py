# SPDX-License-Identifier: Apache-2.0
"""Estimate of a cloud's gain: parameters in; a table, JSON and a page out."""

import html.parser
import json
import pathlib

import pytest

from acstor_simulator import simulation
from acstor_simulator.cmd import simulate
from acstor_simulator.gain import gain_estimate
from acstor_simulator.gain import html_report
from acstor_simulator.gain import model_validation

GAIN = ["gain", "--hosts", "8", "--racks", "2", "--image-gb", "0.1", "--at-once", "4"]
SMALL = gain_estimate.CloudParameters(hosts=8, image_gb=0.1, store_gbit=1.0, boots_a_day=200)


@pytest.fixture(scope="module")
def reported() -> dict[str, html_report.StrategyResult]:
    results = {
        policy: gain_estimate.simulate(SMALL, policy) for policy in gain_estimate.POLICY_TITLES
    }
    return {
        policy: html_report.StrategyResult(gain_estimate.estimate_gain(SMALL, found), found)
        for policy, found in results.items()
    }


class Links(html.parser.HTMLParser):
    """Collects the tags of a page, and the resources that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loaded.append(value or "")


def test_nova_copies_the_image_to_each_host_before_it_boots(
    reported: dict[str, html_report.StrategyResult],
) -> None:
    nova = reported["nova"].estimate
    assert nova.storage_gb == pytest.approx(8 * 0.1, rel=0.01)
    least_s = 8 * 0.1 * 8 / gain_estimate.PAYLOAD - simulation.GUESTS_START_WITHIN_S
    assert nova.first_s[-1] >= least_s, "all of them over 1 Gbit/s"
    assert nova.login_s[0] == pytest.approx(nova.first_s[0] + SMALL.boot_s, rel=0.01)


def test_acstor_reads_the_store_about_once_and_no_guest_waits_for_a_copy(
    reported: dict[str, html_report.StrategyResult],
) -> None:
    acstor, alone, nova = (reported[policy].estimate for policy in ("today", "alone", "nova"))
    assert 0.1 <= acstor.storage_gb < 1.3 * 0.1 + 8 * SMALL.sizes.map_bytes / gain_estimate.GB
    assert acstor.storage_gb < alone.storage_gb / 4
    assert acstor.first_s[-1] < 1 < nova.first_s[0]
    assert acstor.day_storage_gb < nova.day_storage_gb / 2
    assert acstor.whole_s is not None and acstor.whole_s > 60, "a minute after the boot"


def test_each_host_has_the_complete_image_at_the_end(
    reported: dict[str, html_report.StrategyResult],
) -> None:
    results = {policy: one.result for policy, one in reported.items()}
    assert [len(results[policy].whole_s) for policy in gain_estimate.POLICY_TITLES] == [0, 8, 8]
    assert all(result.used == (1, 2, 8) for result in results.values())
    assert all(result.unbooted == 0 for result in results.values())


def test_no_link_exceeds_its_rate_in_its_busiest_second(
    reported: dict[str, html_report.StrategyResult],
) -> None:
    for one in reported.values():
        assert one.result.storage_peak <= SMALL.shape.storage_rate * 1.000001
        assert one.result.uplink_peak <= SMALL.shape.edge_rate * 0.7 * 1.000001
        assert sum(one.result.storage_rates) <= one.result.storage_bytes * 1.000001


def test_simultaneous_servers_are_spread_over_all_racks() -> None:
    few = gain_estimate.CloudParameters(hosts=40, racks=4, at_once=4, image_gb=0.1)
    assert gain_estimate.simulate(few, "nova").used == (1, 4, 4)


def test_server_that_does_not_boot_in_time_is_reported() -> None:
    ended = gain_estimate.simulate(SMALL, "nova", longest_s=5.0)
    found = gain_estimate.estimate_gain(SMALL, ended)
    assert (found.unbooted, found.login_s[0], found.whole_s) == (8, float("inf"), None)
    assert "not in 12 h" in str(html_report.result_rows([html_report.StrategyResult(found, ended)]))


def test_page_has_numbers_pictures_and_limits_without_external_resources(
    reported: dict[str, html_report.StrategyResult],
) -> None:
    text = html_report.make_page(SMALL, list(reported.values()))
    seen = Links()
    seen.feed(text)
    assert {"table", "svg", "ul"} <= seen.tags
    assert not seen.loaded and "script" not in seen.tags
    for line in (*html_report.ASSUMPTIONS, *html_report.LIMITS, html_report.cache_size_text(SMALL)):
        assert html_report.html.escape(line) in text
    for name, cells in (
        *html_report.result_rows(list(reported.values())),
        *html_report.validation_rows(),
    ):
        assert all(html_report.html.escape(cell) in text for cell in (name, *cells))


def test_terminal_shows_a_table_and_files_have_page_and_picture(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "gain.html", tmp_path / "gain.png"
    assert simulate.main([*GAIN, "--output", str(files[0]), "--picture", str(files[1])]) == 0
    out, err = capsys.readouterr()
    assert (
        all(policy in out for policy in gain_estimate.POLICY_TITLES.values())
        and "cache_limit_bytes" in out
    )
    assert not err, "a bar is for terminals"
    assert files[0].read_text().startswith("<!DOCTYPE html>")
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_json_has_the_same_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main([*GAIN, "--at-once", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in found["policies"]] == list(gain_estimate.POLICY_TITLES)
    assert (
        found["cloud"]["at_once"] == 3
        and found["cache_size"]["all_gb"] > found["cache_size"]["day_gb"]
    )


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (["--racks", "9"], "pass --racks 8 at most"),
        (["--data-gb", "0.05"], "pass --data-gb 0.1 or more"),
        (["--boot-mb", "4000"], "pass --boot-mb 321 at most"),
        (["--at-once-images", "21"], "pass --at-once-images 20 at most"),
        (["--hosts", "0"], "not a number from 1 to 4096"),
        (["--link-gbit", "nan"], "not a number from 0.01 to 10000"),
        (["--output", "/nowhere/gain.html"], "name a file in an existing folder"),
    ],
)
def test_error_of_invalid_numbers_names_valid_ones(
    wrong: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        simulate.main([*GAIN, *wrong])
    assert stopped.value.code == 2
    assert remedy in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("figure", model_validation.FIGURES, ids=lambda figure: figure.what)
def test_documented_figures_equal_those_of_the_model(figure: model_validation.Measurement) -> None:
    result: simulation.Result = gain_estimate.simulate(figure.parameters, figure.policy)
    assert figure.of(result) == pytest.approx(figure.modelled, rel=0.005)
    assert abs(figure.relative_error) < 0.2


def test_document_shows_the_present_output_of_the_command() -> None:
    text = (pathlib.Path(__file__).parents[3] / "doc/source/user/does_it_pay.txt").read_text()
    asked = gain_estimate.CloudParameters()
    for line in (*html_report.cloud_text(asked), html_report.cache_size_text(asked)):
        assert line in text
