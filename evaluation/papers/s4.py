# SPDX-License-Identifier: Apache-2.0
"""S4: Traffic-adaptive addressing (ACStor)."""

from evaluation.papers import experiment
from evaluation.papers import s4_boots
from evaluation.papers import s4_cache
from evaluation.papers import s4_lambda
from evaluation.papers import s4_overhead
from evaluation.papers import s4_real
from evaluation.papers import s4_throughput
from evaluation.papers import s4_traffic
from evaluation.papers import s4_tree

PAPER = experiment.Paper(
    key="S4",
    name="Traffic-adaptive addressing (ACStor)",
    cite=(
        "S. Wu, Y. Wang, W. Luo, S. Di, H. Chen, X. Xu, R. Zheng, H. Jin: *ACStor: Optimizing "
        "Access Performance of Virtual Disk Images in Clouds*, IEEE Transactions on Parallel "
        "and Distributed Systems, 2017."
    ),
    about=(
        "Hosts keep chunks of images in a public cache, each chunk at the host that consistent "
        "hashing selects. ACStor gives busy hosts fewer points on the hash ring (Equation 1) when "
        "a host was overloaded in two consecutive collections, transfers points to the host that "
        "has most data in common, and keeps requests local where switches are busy.\n\nIn acstor "
        "this is the decision service (``acstor_decision``) and the ring "
        "(``acstor_common.ring.hash_ring``). Results in virtual time are from the simulator "
        "(``acstor_simulator``), which runs the rules of the agents and of the service: *none* "
        "reads the storage each time, *local* caches what it has read, *collaborative* asks homes "
        "that do not move with traffic, *acstor* is the product."
    ),
    experiments=(
        *s4_traffic.EXPERIMENTS,
        *s4_lambda.EXPERIMENTS,
        *s4_boots.EXPERIMENTS,
        *s4_throughput.EXPERIMENTS,
        *s4_overhead.EXPERIMENTS,
        *s4_cache.EXPERIMENTS,
        *s4_tree.EXPERIMENTS,
        *s4_real.EXPERIMENTS,
    ),
    absent=(
        experiment.Absent(
            "5.4.2",
            "guests that do not boot, of 160",
            "1 to 5",
            "Nothing fails in the simulator: a guest on a host with 5 % of its link left boots "
            "late.",
        ),
        experiment.Absent(
            "Figure 9",
            "Filebench itself, in 160 guests",
            "drawn",
            "Two processors support four guests; Filebench's reads are modelled in the simulator.",
        ),
    ),
)
