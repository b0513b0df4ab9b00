# SPDX-License-Identifier: Apache-2.0
"""S1: Disk scheduling (Pregather)."""

from tests.papers import experiment

PAPER = experiment.Paper(
    key="S1",
    name="Disk scheduling (Pregather)",
    cite=(
        "X. Ling, S. Ibrahim, S. Wu, H. Jin: *Spatial Locality Aware Disk Scheduling in "
        "Virtualized Environment*, IEEE Transactions on Parallel and Distributed Systems, "
        "2015."
    ),
    about="",
    experiments=(),
)
