# SPDX-License-Identifier: Apache-2.0
"""S3: Exchange by content (collab-dedup)."""

from evaluation.papers import experiment
from evaluation.papers import s3_beyond as beyond
from evaluation.papers import s3_cost as cost
from evaluation.papers import s3_figure_2 as figure_2
from evaluation.papers import s3_rows as rows
from evaluation.papers import s3_scenes as scenes
from evaluation.papers import s3_table_1 as table_1
from evaluation.papers import s3_unpack as unpack

PAPER = experiment.Paper(
    key="S3",
    name="Exchange by content (collab-dedup)",
    cite=(
        "B. Nicolae, A. Karve, A. Kochut: *Discovering and Leveraging Content Similarity to "
        "Optimize Collective On-Demand Data Access to IaaS Cloud Storage*, CCGrid 2015."
    ),
    about="""
Hosts that read one image at once exchange its chunks; the paper extends this to hosts whose images
differ but have common parts. Each image's chunks are hashed when it is uploaded. Hosts advertise
hashes instead of offsets, so they find equal bytes on each other at any offset. ``collab-simple``
is the exchange by offsets, in a group for each image; ``collab-dedup`` is the one by hashes, in
one group for all. acstor's whole exchange works by content: a chunk's home on the ring, its name
in advertisements and its place in the cache follow from its content. ``by-place``
(``[acstor_agent] variants``) disables this, and is ``simple`` here; ``content`` is acstor with its
defaults, and ``direct`` each host alone.
""",
    experiments=(
        table_1.EXPERIMENT,
        experiment.Experiment(
            key="S3-figure-2",
            title="Figures 2 and 3 and table II: one package, two repositories",
            paper_has=(
                "Up to 32 VMs, each on a node of its own (Gigabit Ethernet), mount one of two "
                "repositories over NFS and all at once unzip the package of 767 MB that both "
                "contain. Completion (figure 2, table II) and the mean VM's traffic (figure 3)."
            ),
            here=(
                "Up to 16 hosts (4 in a quick run) are network namespaces with links of "
                f"{scenes.LINK_MBIT} Mbit/s; so is the image server, over HTTP. The package is "
                "1/64 of the paper's, the links 1/40. The time of ``direct`` grows with the "
                "hosts, so with half as many hosts there is half as much to gain over it. The "
                "readers read the package by its extents in the file system, 1 MiB at a time, "
                "compare each byte, and do not unpack (the experiment *mount, read, unpack* "
                "does): 16 of them would share two processors, where each VM of the paper had "
                "two. So only links are measured. The paper's 767 MB in 16 s are 48 MB/s, less "
                "than half of its link: it had another bound, probably unpacking, which hides the "
                "cost of an exchange. Chunks have 64 KiB (the paper: 32). ``direct`` is run once "
                "for each number of hosts, and of 8 again at the end: hosts that share nothing do "
                "not depend on the reads of others. *On demand* contains the readers' own "
                "read-ahead: acstor requests a chunk from its home at once, so little is left for "
                "advertisements."
            ),
            cases=figure_2.cases,
            rows=rows.rows,
            draw=figure_2.draw,
            pairs=figure_2.pairs,
        ),
        cost.EXPERIMENT,
        unpack.EXPERIMENT,
        *beyond.EXPERIMENTS,
    ),
    absent=(
        experiment.Absent(
            "Figure 1", "architecture", "a drawing", "shows no measurement to compare"
        ),
    ),
)
