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
        "Hosts keep chunks of images in a public cache, each chunk at the host that a consistent "
        "hash names. ACStor gives busy hosts fewer points on that hash circle (Equation 1) "
        "whenever some host was overloaded in two collections in a row, hands points over to the "
        "host that has most in common, and keeps requests near where switches are busy.\n\n"
        "In acstor this is the decision service (``acstor_decision``) and the ring "
        "(``acstor_common.ring.hash_ring``). What is in virtual time here is run by the simulator "
        "(``acstor_simulator``), where the agents' and the service's own rules decide: *none* "
        "reads the storage each time, *local* keeps what came, *collaborative* asks homes whom no "
        "traffic moves, *acstor* is the product."
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
            "Nothing fails in the simulator: a guest whose host has 5 % of its link boots late.",
        ),
        experiment.Absent(
            "Figure 9",
            "Filebench itself, in 160 guests",
            "drawn",
            "Two processors carry four guests; what Filebench reads is made up in the simulator.",
        ),
    ),
)
