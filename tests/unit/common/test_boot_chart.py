# SPDX-License-Identifier: Apache-2.0
"""A boot chart attributes each second of a boot to exactly one part."""

import msgspec
import pytest

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
MIB = 1 << 20
BEGAN_AT_S = 1_800_000_000.0
BOOT = boot_timeline.Timeline(
    image_id=IMAGE,
    instance_id=SERVER,
    began_at_s=BEGAN_AT_S,
    boot_image="ready",
    spans=(
        boot_timeline.Span("attach", 0.0, 1.0),
        boot_timeline.Span("chunk map", 0.0, 0.75),
        boot_timeline.Span("attach", 3.0, 3.5),
        boot_timeline.Span("boot image head", 1.0, 1.25),
        boot_timeline.Span("boot image", 1.25, 6.0, {"source": 20 * MIB}),
    ),
    opened_s=4.0,
    last_s=20.0,
    is_over=True,
    reads=300,
    waited_s={"boot": 0.5, "frame": 2.0, "source": 1.5},
    bytes={"zero": 5 * MIB, "boot": 60 * MIB, "frame": 30 * MIB, "source": 10 * MIB},
    slice_s=4.0,
    slices=(
        boot_timeline.Slice(200, 4.0, {"frame": 30 * MIB}),
        boot_timeline.Slice(),
        boot_timeline.Slice(50, 0.0, {"boot": 60 * MIB}),
        boot_timeline.Slice(50, 2.0, {"source": 10 * MIB}),
    ),
    longest=(boot_timeline.LongRead(17.0, 1.25, 65536, 4096, {"source": 4096}, "refu\x1bsed"),),
)
NOVA = [
    boot_chart.Event("create requested", BEGAN_AT_S - 6, BEGAN_AT_S - 4),
    boot_chart.Event("build_and_run_instance", BEGAN_AT_S - 4, BEGAN_AT_S + 5),
]


@pytest.mark.parametrize("events", [[], NOVA])
def test_shares_add_up_to_the_whole_boot_time(events):
    shares = boot_chart.shares(BOOT, events)
    assert sum(share.took_s for share in shares) == pytest.approx(BOOT.last_s + 6 * bool(events))
    by_name = dict(shares)
    assert by_name["agent: until the image was ready for Nova"] == 1.5
    assert by_name["Nova and QEMU: until the guest opened its disk"] == 2.5
    assert by_name["guest waits: boot image, on its way"] == 2.0
    assert by_name["guest: by itself"] == 12.0


def lane(picture, label):
    [line] = [line for line in picture.splitlines() if line.startswith(label)]
    return line[boot_chart.LABEL + 1 :]


def test_chart_lanes_show_events_in_time():
    picture = boot_chart.draw(BOOT)
    each_s = BOOT.last_s / boot_chart.WIDTH
    bar = lane(picture, "guest: disk is open")
    assert bar.index("=") == int(BOOT.opened_s / each_s) and len(bar) == boot_chart.WIDTH
    waits = lane(picture, "guest: waits")
    assert waits.count("#") == pytest.approx(4 / each_s, abs=2), "a slice of nothing but waits"
    letters = lane(picture, "guest: bytes are from")
    assert letters.strip()[0] == "f" and letters.strip()[-1] == "s" and "b" in letters
    assert "From the boot image: 90.0 % of what is not zeros." in picture
    assert "65536" in picture and "source (refu?sed)" in picture


def test_nova_events_come_first_and_shift_the_chart():
    picture = boot_chart.draw(BOOT, NOVA)
    assert lane(picture, "Nova: create requested").startswith("=")
    shift = lane(picture, "guest: disk is open").index("=") / boot_chart.WIDTH
    assert shift == pytest.approx(10 / 26, abs=0.03)
    assert "Nova: until it asked the agent" in picture and "26.00" in picture


def test_boot_without_reads_is_drawn():
    bare = boot_timeline.Timeline(image_id=IMAGE, began_at_s=0.0, opened_s=0.0, slice_s=0.25)
    picture = boot_chart.draw(bare)
    assert "a guest outside Nova (in progress)" in picture
    assert boot_timeline.boot_image_share({"zero": 9}) is None


def test_boot_at_the_last_representable_time_is_drawn():
    last = {**msgspec.to_builtins(BOOT), "began_at_s": 253_402_300_799.0}
    picture = boot_chart.draw(msgspec.convert(last, boot_timeline.Timeline))
    assert "from 9999-12-31 23:59:59 UTC" in picture


def test_timeline_of_a_newer_agent_is_drawn():
    newer = msgspec.structs.replace(
        BOOT, waited_s={"a new way": 4.0}, bytes={"a new way": MIB}, boot_image="resting"
    )
    raw = msgspec.json.encode({**msgspec.to_builtins(newer), "more": 1})
    picture = boot_chart.draw(msgspec.json.decode(raw, type=boot_timeline.Timeline))
    assert "a new way" in picture and "resting" in picture


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_id": "../../etc/passwd"},
        {"instance_id": "x"},
        {"began_at_s": -1.0},
        {"began_at_s": 253_402_300_800.0},  # the year 10000
        {"slice_s": 0.0},
        {"bytes": {"source": -1}},
        {"bytes": {"SOURCE\x1b[2J": 1}},
        {"bytes": {"a" * (number + 1): 1 for number in range(17)}},
        {"boot_image": "\x1b"},
        {"slices": [{}] * 65},
        {"longest": [{"at_s": 0, "took_s": 0, "offset": 0, "length": 1}] * 17},
        {"spans": [{"what": "a\nb", "from_s": 0, "to_s": 1}]},
        {"waited_s": {"source": float("inf")}},
    ],
)
def test_invalid_timeline_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(BOOT), **wrong}, boot_timeline.Timeline)
