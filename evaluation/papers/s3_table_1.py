# SPDX-License-Identifier: Apache-2.0
"""Table I: the repositories' packages, and the common chunks."""

from collections.abc import Iterator
from collections.abc import Sequence

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s3_repositories as repositories

MOUNTED, PACKED = "through a mount", "by ``mkfs.ext4 -d``"
MORE_BYTES = 5000
MORE = f"{PACKED}, {MORE_BYTES} bytes more in one of them"


def compose(say: harness.Say) -> experiment.Outcome:
    """Make both repositories; measure the common package's equal chunks."""
    made = repositories.made()
    sizes = repositories.CHUNK_SIZES
    found = {
        "packages": repositories.about(),
        "offsets": [spans[0][0] for spans in made.spans],
        "shares": {
            MOUNTED: {str(size): made.share(0, 1, size) for size in sizes},
            PACKED: _packed(0),
            MORE: _packed(MORE_BYTES),
        },
    }
    say(f"common chunks: {found['shares']}")
    return found


def _packed(more_bytes: int) -> dict[str, float]:
    shares = repositories.packed_share(repositories.CHUNK_SIZES, more_bytes)
    return {str(size): share for size, share in shares.items()}


def cases(_: experiment.Scale) -> list[experiment.Case]:
    """Return the one case."""
    return [experiment.Case("composition", compose, 10, is_timed=False)]


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return a row for each package, and the shares of common chunks."""
    return [row for found in outcomes.values() for row in _rows(found)]


def _rows(found: experiment.Outcome) -> Iterator[experiment.Row]:
    for name, size_mb in repositories.PAPER_MB.items():
        of = [f"Repo-{n + 1}" for n, has in enumerate(repositories.CONTENTS) if name in has]
        package = found["packages"][name]
        yield experiment.Row(
            "Table I",
            f"{name} ({' and '.join(of)}): here the package {package['package']}",
            f"{size_mb} MB",
            round(package["bytes"] / 1e6, 2),
            "MB",
            round(size_mb / repositories.DIVISOR, 2),
            f"1/{repositories.DIVISOR} of the paper's",
        )
    yield from _share_rows(found["shares"])


def _share_rows(shares: dict[str, dict[str, float]]) -> Iterator[experiment.Row]:
    for way in (MOUNTED, PACKED, MORE):
        for size in map(str, repositories.CHUNK_SIZES):
            yield experiment.Row(
                "4.B",
                f"chunks of {int(size) >> 10} KiB of the common package that are equal in both "
                f"images, written {way}",
                "not stated" if int(size) != 32768 else "not stated (32 KiB were used)",
                round(shares[way][size], 4),
            )


EXPERIMENT = experiment.Experiment(
    key="S3-table-1",
    title="Table I: two repositories",
    paper_has=(
        "Two raw disks of 2 GB with ext4 and installers, most of them gzip archives; one of 767 "
        "MB is on both. Chunks of 32 KiB."
    ),
    here=(
        "Two ext4 images of 512 MiB (sparse) with packages of the distribution, of the paper's "
        f"sizes divided by {repositories.DIVISOR}, downloaded by apt; one package is in both, at "
        "another place. They are written through a mount, and each is synced to the disk before "
        "it is closed, as happens to most of a long file: then the kernel's allocator aligns it "
        "to a large power of two, so that all its chunks are equal in both. If a file is closed "
        "first, its end may begin at any block: for this package some 30 % of the chunks of 64 "
        "KiB then differed. Files packed by ``mkfs.ext4 -d`` may begin at any block of 4 KiB, so "
        "their share is all or almost nothing, by chance."
    ),
    cases=cases,
    rows=rows,
)
