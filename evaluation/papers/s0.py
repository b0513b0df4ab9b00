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
In the paper, hosts whose instances read the same image at about the same time exchange chunks:
each host mirrors on demand the chunks that its instance reads, advertises them to its two
neighbours on a ring, fetches missing chunks from them, and prefetches advertised ones as long as
fewer than 512 prefetched chunks are unread. acstor's agents exchange chunks in the same way, and
add: each chunk has a *home*, a host that reads it from the source once on behalf of all; a busy
host refers to others; prefetching begins with two chunks, and reaches the paper's limit only
while predictions prove right; received chunks are verified by their hash. The paper's own rule
alone is the variant ``prefetch-by-limit``, shown as *acstor-512*; *acstor-0* and *acstor-inf* are
its extremes (``no-prefetch``, ``unbounded-prefetch``). Hosts send in the paper's order: answers
and requests for waiting guests, then advertisements, then prefetches.
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
