# SPDX-License-Identifier: Apache-2.0
"""Table I of S2: the boot images of a catalogue of images.

Images are made from Debian packages, once, and stored in the lab's cache with their recordings;
only their lengths are measured.
"""

import dataclasses
import functools
from collections.abc import Sequence

from matplotlib import figure

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s2_boot
from tests.lab import guest_image

MB = 1e6
MINIMAL, DATABASE = "Debian 12", "Debian 12, database"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A catalogue image's differences from the lab's guest image."""

    suite: str = ""
    packages: tuple[str, ...] = ()
    size_mib: int = 0

    def __call__(self, recipe: guest_image.Recipe) -> guest_image.Recipe:
        """Return the recipe changed."""
        return dataclasses.replace(
            recipe,
            suite=self.suite or recipe.suite,
            packages=(*recipe.packages, *self.packages),
            size_bytes=self.size_mib * geometry.MIB or recipe.size_bytes,
        )


_SERVER = ("openssh-server", "python3", "curl", "vim", "git", "rsyslog", "cron")
_BUILD = ("build-essential", "python3-dev", "locales", "man-db")
CATALOGUE = {
    MINIMAL: Kind(),
    DATABASE: Kind(packages=("postgresql",), size_mib=2048),
    "Debian 13": Kind("trixie"),
    "Debian 12, development": Kind(packages=(*_SERVER, *_BUILD), size_mib=3072),
    "Debian 13, web": Kind("trixie", ("nginx", "openssh-server", "php-fpm"), 2048),
}


def ensure(name: str, say: harness.Say) -> s2_boot.Boot:
    """Return a catalogue image with its boot image; make both if they are missing."""
    changed = None if name == MINIMAL else CATALOGUE[name]
    return s2_boot.built(guest_image.ensure(say, changed).raw, say)


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return a case for each image."""
    names = list(CATALOGUE) if scale is experiment.Scale.WHOLE else [MINIMAL]
    return [
        experiment.Case(name, functools.partial(measure, name), 5, is_timed=False) for name in names
    ]


def measure(name: str, say: harness.Say) -> experiment.Outcome:
    """Return an image's length and its boot image's."""
    boot = ensure(name, say)
    image_map = chunk_map.ChunkMap.parse(boot.map_file(0).read_bytes(), name)
    chunk_bytes = image_map.geometry.chunk_bytes
    filled = sum(not image_map.is_zero(number) for number in range(len(image_map)))
    return {
        "image_mb": round(boot.image.stat().st_size / MB, 1),
        "filled_mb": round(filled * chunk_bytes / MB, 1),
        "boot_image_mb": round(boot.boot_image_bytes / MB, 2),
        "boot_mb": round(boot.facts["build_raw_bytes"] / MB, 2),
        "end": boot.facts["build_end"],
    }


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return a row for each image, and for all."""
    found = [_row(name, outcome) for name, outcome in outcomes.items()]
    if outcomes:
        found += _totals(outcomes)
    return found


def _row(name: str, outcome: experiment.Outcome) -> experiment.Row:
    ours, whole, filled = (outcome[key] for key in ("boot_image_mb", "image_mb", "filled_mb"))
    return experiment.Row.cost(
        part="Table I",
        what=f"{name}: boot image; full image, {filled:,.0f} MB of it not zeros",
        paper="Debian 26 MB of 1,200 MB" if name.startswith("Debian") else "no number",
        ours=ours,
        unit="MB",
        baseline=whole,
        baseline_name="the image",
    )


PAPER_MEAN_MB = 40.4e3 / 983
"""Of the paper's boot images."""


def _totals(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    def total(key: str) -> float:
        return sum(float(outcome[key]) for outcome in outcomes.values())

    count = f"{len(outcomes)} images" if len(outcomes) > 1 else "1 image"
    boot_mb = total("boot_image_mb")
    return [
        experiment.Row(
            part="Table I",
            what=f"{count}: reduction rate, of {what}",
            paper="97.4 %, of 983 images",
            ours=100 * (1 - boot_mb / total(key)),
            unit="%",
            goal=97.4,
            is_headline=True,
            because="the boot images are no larger than the paper's, but the images have fewer "
            "programs than the paper's, and still boot a current kernel",
        )
        for key, what in (
            ("image_mb", "the full images"),
            ("filled_mb", "their data without zeros"),
        )
    ] + [
        experiment.Row(
            part="Table I",
            what=f"{count}: mean length of a boot image",
            paper="40.4 GB for 983",
            ours=boot_mb / len(outcomes),
            unit="MB",
            goal=PAPER_MEAN_MB,
            better=experiment.Better.LESS,
        )
    ]


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw lengths of images and of boot images."""
    axes = picture.subplots()
    for at, (key, label) in enumerate(
        (("image_mb", "image"), ("filled_mb", "not zeros"), ("boot_image_mb", "boot image"))
    ):
        places = [number + 0.27 * (at - 1) for number in range(len(outcomes))]
        sizes = [outcome[key] for outcome in outcomes.values()]
        axes.bar(places, sizes, width=0.25, label=label)
    axes.set_xticks(range(len(outcomes)), list(outcomes))
    axes.set(ylabel="MB", yscale="log")
    axes.legend()


# Common content of boot images


def common_cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the case that looks for common chunks of boot images, in a whole run."""
    names = tuple(CATALOGUE) if scale is experiment.Scale.WHOLE else ()
    run = functools.partial(_common, names)
    return [experiment.Case("all", run, 10, is_timed=False)] if names else []


def _common(names: Sequence[str], say: harness.Say) -> experiment.Outcome:
    cids = [_boot_cids(ensure(name, say), name) for name in names]
    return {"images": len(names), **common(cids)}


def _boot_cids(boot: s2_boot.Boot, name: str) -> set[bytes]:
    """Return the CIDs of an image's boot image."""
    image_map = chunk_map.ChunkMap.parse(boot.map_file(0).read_bytes(), name)
    return {bytes(image_map.cid_of(number)) for number in boot.trace}


def common(of_images: Sequence[set[bytes]]) -> dict[str, float]:
    """Return the MB of all boot chunks, and of those that differ.

    >>> common([{b"1", b"2"}, {b"2"}])
    {'all_mb': 0.2, 'unique_mb': 0.1}
    """
    chunk_mb = geometry.DEFAULT_CHUNK_BYTES / MB
    unique: set[bytes] = set().union(*of_images)
    return {
        "all_mb": round(chunk_mb * sum(map(len, of_images)), 1),
        "unique_mb": round(chunk_mb * len(unique), 1),
    }


def common_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the row of boot images' common content."""
    return [
        experiment.Row.cost(
            part="Section VII",
            what=f"{outcome['images']} images: boot chunks that a host keeps, each once, against "
            "those of all boot images",
            paper="future work",
            ours=outcome["unique_mb"],
            unit="MB",
            baseline=outcome["all_mb"],
            baseline_name="all",
        )
        for outcome in outcomes.values()
    ]
