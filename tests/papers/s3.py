# SPDX-License-Identifier: Apache-2.0
"""S3: Exchange by content (collab-dedup)."""

from tests.papers import experiment

PAPER = experiment.Paper(
    key="S3",
    name="Exchange by content (collab-dedup)",
    cite=(
        "B. Nicolae, A. Karve, A. Kochut: *Discovering and Leveraging Content Similarity to "
        "Optimize Collective On-Demand Data Access to IaaS Cloud Storage*, CCGrid 2015."
    ),
    about="",
    experiments=(),
)
