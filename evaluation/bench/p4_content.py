# SPDX-License-Identifier: Apache-2.0
"""P4: exchange by content across images, as in Nicolae, Karve, Kochut 2015 (IV).

Hosts of two groups each read one package, the same in two different ext4 images, at different
offsets.  The images are written through a mounted file system (:mod:`tests.lab.common_images`); the
share of equal chunks among the read ones is measured and stored with the result, since it limits
any exchange.

The paper's three ways: hosts without a ring (nfs-direct, run once: it does not depend on the
split), a ring per group (collab-simple), one ring for all (collab-dedup); with its three splits.
The first figure is the time of separate groups over their time together, half and half.  The second
is the overhead of content lookups for one group without any gain: the time with exchange by content
over that with the variant ``by-place``, the means of alternate turns.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from acstor_policies import variants
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.bench import pictures
from tests.lab import common_images

HOSTS = 8
LINK_MBIT = 50
COMMON_BYTES = 24 * geometry.MIB + 12_345
SPLITS = {"all": 0, "25 %": HOSTS // 4, "50 %": HOSTS // 2}
"""Number of hosts that read the second image."""
APART: dict[str, object] = {"variants": variants.Variant.BY_PLACE}
SHARE_NEEDED = 0.95
"""Below this common share, the groups' times do not measure exchange by content."""
COST_TURNS = 3


@harness.measures("P4")
def run(say: harness.Say) -> harness.Result:
    """Let two groups read one package from two images."""
    with collective.images() as images:
        say("making two ext4 images through a mount")
        made = common_images.make_two(images.files, COMMON_BYTES)
        images.ids.extend(image.image_id for image in made)
        first, second = ((images.data(n), image.spans) for n, image in enumerate(made))
        share = common_images.common_share(first, second)
        say(f"{share:.4f} of the chunks that are read are in both images")
        if share < SHARE_NEEDED:
            raise harness.CannotRun(
                f"only {share:.2f} of the package's chunks are in both images, so there is nothing "
                f"to exchange: the file system placed it at other offsets within chunks"
            )
        scene = Scene(images, [image.spans for image in made], say)
        direct = scene.play("direct", SPLITS["50 %"], [])
        found = {
            split: {**scene.compare(split, others), "direct": direct}
            for split, others in SPLITS.items()
        }
        cost = scene.cost_percent()
    half = found["50 %"]
    gain = half["groups apart"]["completion"] / half["together"]["completion"]
    details = {
        "splits": found,
        "common_share": share,
        "gain_bound": 2 / (2 - share),
        "gains": {
            split: ways["groups apart"]["completion"] / ways["together"]["completion"]
            for split, ways in found.items()
        },
        "cost": cost,
    }
    return harness.Result(
        {"P4": (gain, cost["percent"])}, details, lambda picture: draw(picture, found)
    )


class Scene:
    """The two images, and hosts that read the common package of one of them."""

    def __init__(
        self,
        images: collective.Images,
        spans: Sequence[tuple[tuple[int, int], ...]],
        say: harness.Say,
    ) -> None:
        self._images = images
        self._spans = spans
        self._say = say

    def compare(self, split: str, others: int) -> dict[str, patterns.Outcome]:
        """Run the ways with ``others`` hosts at the second image."""
        apart = [range(HOSTS - others), range(HOSTS - others, HOSTS)]
        ways: dict[str, tuple[list[range], dict[str, object]]] = {
            "together": ([range(HOSTS)], {}),
            "groups apart": ([group for group in apart if group], APART),
        }
        return {
            name: self.play(f"{split}, {name}", others, groups, **options)
            for name, (groups, options) in ways.items()
        }

    def play(
        self, name: str, others: int, groups: Sequence[Sequence[int]], **options: object
    ) -> patterns.Outcome:
        """Let all hosts read, in a new lab."""
        readings = tuple(
            collective.Reading(self._spans[image_no], image_no)
            for image_no in [0] * (HOSTS - others) + [1] * others
        )
        pattern = patterns.Pattern(
            "two groups", HOSTS, LINK_MBIT, common_images.IMAGE_BYTES, readings, COMMON_BYTES
        )
        found = patterns.on_demand(pattern, self._images, groups, options)
        self._say(f"{name}: {patterns.words(found)}")
        return found

    def cost_percent(self) -> dict[str, Any]:
        """Return the overhead of content lookups for one group."""
        took: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(COST_TURNS):
            for is_on in (True, False) if turn % 2 else (False, True):
                name = f"single group, by {'content' if is_on else 'place'}"
                found = self.play(name, 0, [range(HOSTS)], **({} if is_on else APART))
                took[is_on].append(found["completion"])
        ratio = statistics.mean(took[True]) / statistics.mean(took[False])
        return {"percent": 100 * (ratio - 1), "with": took[True], "without": took[False]}


def draw(picture: figure.Figure, found: dict[str, dict[str, patterns.Outcome]]) -> None:
    """Draw completion and origins by split and way, as the paper's figures 2 and 3."""
    picture.set_size_inches(14, 4.8)
    picture.suptitle(
        f"One package in two images: {HOSTS} hosts, links {LINK_MBIT} Mbit/s, "
        f"{COMMON_BYTES >> 20} MiB, by share of hosts at the second image"
    )
    left, right = picture.subplots(1, 2, width_ratios=[2, 3])
    ways = list(next(iter(found.values())))
    width = 0.8 / len(ways)
    for at, way in enumerate(ways):
        places = [split_no + (at - 1) * width for split_no in range(len(found))]
        heights = [outcomes[way]["completion"] for outcomes in found.values()]
        left.bar_label(left.bar(places, heights, width, label=way), fmt="%.2f")
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set(title="Completion / limit", xticks=range(len(found)), xticklabels=list(found))
    left.legend()
    shown = {f"{split}\n{way}": found[split][way] for split in found for way in ways}
    pictures.transfers(right, list(shown), list(shown.values()))
    right.tick_params(axis="x", labelsize=7)
