# SPDX-License-Identifier: Apache-2.0
import msgspec

from acstor_agent.core.boot import boot_phases
from acstor_common.model import boot_timeline
from acstor_common.model import ids

ONE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
TWO = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
Phase = boot_phases.BootPhase


def boot(image_id: ids.ImageId, *spans: boot_timeline.Span) -> boot_timeline.Timeline:
    return boot_timeline.Timeline(
        image_id=image_id,
        began_at_s=0.0,
        spans=spans,
        opened_s=3.0,
        last_s=13.0,
        waited_s={"source": 4.0},
        slice_s=1.0,
    )


def test_spans_of_one_phase_add_up_and_unknown_ones_do_not_count():
    head = boot_timeline.Span("boot image head", 0.0, 0.5)
    frames = boot_timeline.Span("boot image", 1.0, 3.0)
    other = boot_timeline.Span("something else", 0.0, 9.0)
    found = boot_phases.durations(boot(ONE, head, frames, other))
    assert found[Phase.BOOT_IMAGE] == 2.5
    assert found.keys() == {Phase.BOOT_IMAGE, Phase.READS, Phase.WAITING, Phase.TOTAL}


def test_span_or_boot_that_ends_before_it_begins_takes_no_time():
    back = boot_timeline.Span("attach", 2.0, 1.0)
    timeline = msgspec.structs.replace(boot(ONE, back), last_s=1.0)
    found = boot_phases.durations(timeline)
    assert (found[Phase.ATTACH], found[Phase.READS], found[Phase.TOTAL]) == (0.0, 0.0, 1.0)


def test_boots_are_counted_in_all_and_for_each_image():
    histograms = boot_phases.BootHistograms()
    for image_id in (ONE, ONE, TWO):
        histograms.count_boot(boot(image_id, boot_timeline.Span("attach", 0.0, 1.0)))
    assert histograms.totals()[None][Phase.TOTAL].count == 3
    assert histograms.totals()[None][Phase.CHUNK_MAP].count == 0
    found = histograms.of_images([ONE, TWO])
    assert [found[image_id][Phase.ATTACH].count for image_id in (ONE, TWO)] == [2, 1]


def test_image_that_was_not_booted_has_no_histograms():
    histograms = boot_phases.BootHistograms()
    histograms.count_boot(boot(ONE))
    assert histograms.of_images([ONE, TWO]).keys() == {ONE}
