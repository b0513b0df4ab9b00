# SPDX-License-Identifier: Apache-2.0
"""S4: Traffic-adaptive addressing (ACStor)."""

from tests.papers import experiment

PAPER = experiment.Paper(
    key="S4",
    name="Traffic-adaptive addressing (ACStor)",
    cite=(
        "S. Wu, Y. Wang, W. Luo, S. Di, H. Chen, X. Xu, R. Zheng, H. Jin: *ACStor: Optimizing "
        "Access Performance of Virtual Disk Images in Clouds*, IEEE Transactions on Parallel "
        "and Distributed Systems, 2017."
    ),
    about="",
    experiments=(),
)
