# SPDX-License-Identifier: Apache-2.0
"""S0: Adaptive collaborative exchange (ac-store)."""

from tests.papers import experiment
from tests.papers import s0_beyond
from tests.papers import s0_compute
from tests.papers import s0_distributed
from tests.papers import s0_figures
from tests.papers import s0_jitter
from tests.papers import s0_news

PAPER = experiment.Paper(
    key="S0",
    name="Adaptive collaborative exchange (ac-store)",
    cite=(
        "B. Nicolae, A. Kochut, A. Karve: *Towards scalable on-demand collective data access "
        "in IaaS clouds: An adaptive collaborative content exchange proposal*, Journal of "
        "Parallel and Distributed Computing, 2016."
    ),
    about="",
    experiments=(
        s0_jitter.EXPERIMENT,
        *s0_figures.EXPERIMENTS,
        s0_distributed.EXPERIMENT,
        s0_compute.EXPERIMENT,
        s0_news.EXPERIMENT,
        s0_beyond.EXPERIMENT,
    ),
)
