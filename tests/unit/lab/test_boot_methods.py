# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import pathlib
import types
from collections.abc import Iterator

import pytest

from acstor_common import errors
from tests.lab import boot_methods
from tests.lab import demo
from tests.lab import demo_images
from tests.lab import demo_remap
from tests.lab import demo_report
from tests.lab import watch


def host(name: str, login_s: float, **origins: int) -> boot_methods.HostResult:
    return boot_methods.HostResult(name, login_s, 3.0, None, 10_000_000, 5_000_000, origins)


RESULTS = [
    boot_methods.BootResult(
        "demand", "on demand", [host("h1", 20.0), host("h2", 21.5)], 300, 100, 310, 800
    ),
    boot_methods.BootResult(
        "acstor",
        "acstor",
        [host("h1", 15.0, boot=7_000_000, source=9), host("h2", 16.0, boot=8_500_000, source=1)],
        101,
        100,
        120,
        202,
        demo_images.BootImage(14.7, 933, 61_000_000, 30_000_000, "marker"),
    ),
]
SETTING = demo_report.Setting(2, 100.0, "tcg", 2, {"suite": "bookworm"}, 1000)


def journey(steps: int) -> Iterator[str]:
    for step in range(steps):
        yield f"step {step}"


def test_boots_proceed_concurrently_until_the_last_one_is_done() -> None:
    said: list[str] = []
    journeys = {"h1": journey(1), "h2": journey(3)}
    boot_methods.travel(journeys, "test", said.append, say_every_s=0.0)  # type: ignore[arg-type]
    assert [words.split(" | ")[2] for words in said] == [
        "h1: step 0  h2: step 0",
        "h1: booted  h2: step 1",
        "h1: booted  h2: step 2",
        "h1: booted  h2: booted",
    ]


def test_boot_that_never_completes_is_named() -> None:
    journeys = {"h1": journey(1000), "h2": journey(1)}
    with pytest.raises(errors.Unusable, match=r"h1: step [0-9]+ *h2: booted"):
        boot_methods.travel(journeys, "test", print, deadline_s=0.2)  # type: ignore[arg-type]


def test_report_names_emulation_and_every_figure() -> None:
    text = demo_report.text(SETTING, RESULTS)
    for words in ("software emulation", "21.5", "3.00", "1.01", "0.50", "source", "boot", "8.5"):
        assert words in text


def test_report_files_hold_figures_and_picture(tmp_path: pathlib.Path) -> None:
    figures, picture = demo_report.save(SETTING, RESULTS, tmp_path / "results")
    ways_told = json.loads(figures.read_text())["ways"]
    assert [way["sent_per_unique_byte"] for way in ways_told] == [3.0, 1.01]
    assert [way["sent_per_raw_byte"] for way in ways_told] == [0.375, 0.5]
    assert ways_told[1]["boot_image"]["seconds"] == 14.7
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_report_shows_the_exchange_and_the_remap(tmp_path: pathlib.Path) -> None:
    phases = [
        demo_remap.Phase("before the traffic", 10.0, 0.34, 11.0, 480),
        demo_remap.Phase("traffic, after the remap", 12.0, 0.03, 12.0, 400),
    ]
    loads = [watch.Load(host, at_s, 5e6, 1e6) for at_s in (0.5, 1.5) for host in ("h1", "h2")]
    result = dataclasses.replace(
        RESULTS[1],
        exchange={"h1": {"image server": 9_000_000, "h2": 1_500_000}, "h2": {"h1": 7_250_000}},
        remap=demo_remap.RemapResult(
            "h1", 95.0, 0.5, 3.5, 85, {"h1": 100, "h2": 100}, {"h1": 15, "h2": 185}, phases, loads
        ),
    )
    text = demo_report.text(SETTING, [result])
    for words in ("from h2", "7.2", "85 of 200 v-nodes move", "it keeps 15 of 100", "34%", "3%"):
        assert words in text
    figures, *pictures = demo_report.save(SETTING, [result], tmp_path)
    [reported] = json.loads(figures.read_text())["ways"]
    assert [picture.name for picture in pictures] == ["demo.png", "remap.png"]
    assert reported["exchange"]["h2"] == {"h1": 7_250_000}
    assert reported["remap"]["vnodes_after"] == {"h1": 15, "h2": 185}
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_failed_baseline_is_reported_beside_the_other_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(way: str, *_: object) -> boot_methods.BootResult:
        if way in failing:
            raise errors.Unusable("guest on h1", "no login prompt after 240 s\nQEMU: \nits console")
        return dataclasses.replace(RESULTS[1], way=way, label=boot_methods.WAYS[way][0])

    image = types.SimpleNamespace(info={}, compressed=tmp_path / "image")
    image.compressed.write_bytes(b"qcow2")
    monkeypatch.setattr(boot_methods, "play", play)
    monkeypatch.setattr(demo.guest_image, "ensure", lambda _: image)
    monkeypatch.setattr(demo.guest, "accelerator", lambda: "tcg")
    failing = {"demand"}
    argv = ["--compare", "--results", str(tmp_path / "results")]
    assert demo.main(argv) == 0
    shown = capsys.readouterr()
    assert "on demand: failed: guest on h1: no login prompt after 240 s\n" in shown.out
    assert "full copy, then boot" in shown.out and "its console" in shown.err
    figures = json.loads((tmp_path / "results/demo.json").read_text())
    assert [way["way"] for way in figures["ways"]] == ["copy", "raw", "acstor"]
    assert list(figures["failed"]) == ["qcow2 over HTTP on demand"]
    failing = {"acstor"}
    assert demo.main(argv) == demo.EXIT_FAILED


def test_unknown_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.make_parser().parse_args(["--only", "torrent"])
    assert "torrent" in capsys.readouterr().err
