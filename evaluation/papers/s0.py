# SPDX-License-Identifier: Apache-2.0
"""S0: Adaptive collaborative exchange (ac-store)."""

from evaluation.papers import experiment
from evaluation.papers import s0_beyond
from evaluation.papers import s0_compute
from evaluation.papers import s0_distributed
from evaluation.papers import s0_figures
from evaluation.papers import s0_jitter
from evaluation.papers import s0_news
from evaluation.papers import s0_virtual

ABOUT = """\
The paper lets instances that read the same image at about the same time help each other: each
host mirrors on demand what its instance reads, tells its two neighbours on a ring of it,
fetches from them what it misses, and prefetches what they advertise as long as fewer than 512
chunks that it has prefetched are unread. In acstor this is how agents exchange chunks. What is
added: each chunk has a *home*, a host that reads it from the source once for all; a busy host
names others; who prefetches begins with two chunks and earns the paper's limit by predictions
that proved right; what comes is checked against its hash. The paper's own rule alone is the
variant ``prefetch-by-limit``, shown as *acstor-512*; *acstor-0* and *acstor-inf* are its
extremes (``no-prefetch``, ``unbounded-prefetch``). The order in which a host sends is the
paper's: answers and requests for what a guest waits for, then advertisements, then prefetches.
"""

PAPER = experiment.Paper(
    key="S0",
    name="Adaptive collaborative exchange (ac-store)",
    cite=(
        "B. Nicolae, A. Kochut, A. Karve: *Towards scalable on-demand collective data access "
        "in IaaS clouds: An adaptive collaborative content exchange proposal*, Journal of "
        "Parallel and Distributed Computing, 2016."
    ),
    about=ABOUT,
    experiments=(
        s0_jitter.EXPERIMENT,
        s0_figures.EXPERIMENTS[0],
        s0_virtual.EXPERIMENT,
        *s0_figures.EXPERIMENTS[1:],
        s0_distributed.EXPERIMENT,
        s0_compute.EXPERIMENT,
        s0_news.EXPERIMENT,
        s0_beyond.EXPERIMENT,
    ),
)
