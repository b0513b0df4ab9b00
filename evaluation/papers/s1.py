# SPDX-License-Identifier: Apache-2.0
"""S1: Disk scheduling (Pregather)."""

from evaluation.papers import experiment
from evaluation.papers import s1_beyond
from evaluation.papers import s1_guests
from evaluation.papers import s1_mixed
from evaluation.papers import s1_real
from evaluation.papers import s1_sorts
from evaluation.papers import s1_writes

ABSENT = (
    experiment.Absent(
        "Table 1, table 2, figures 3 and 4",
        "the workloads, the variables, the model's units, the architecture",
        "descriptions",
        "Nothing is measured there. The workloads are those of all sections above.",
    ),
    experiment.Absent(
        "Figures 8 and 9",
        "machines PM1 and PM3 of the cluster",
        "three machines",
        "One disk is modelled; the three of the paper differ in the number of guests only. "
        "Hadoop's network traffic between them does not affect the disks.",
    ),
    experiment.Absent(
        "Figures 8 to 11",
        "Hadoop 0.20.2 and TPC-H themselves",
        "300 requests/s and more",
        "Five guests with Hadoop and a database need more memory and processors than available, "
        "and a rotating disk, which is not available. Their requests are modelled.",
    ),
    experiment.Absent(
        "Figure 12(a)",
        "free memory of the host over time",
        "falls by 2,148 KiB more than with cfq",
        "The allocations of the policy's own code are measured instead; the memory of the whole "
        "process would be mostly Python's.",
    ),
)

PAPER = experiment.Paper(
    key="S1",
    name="Disk scheduling (Pregather)",
    cite=(
        "X. Ling, S. Ibrahim, S. Wu, H. Jin: *Spatial Locality Aware Disk Scheduling in "
        "Virtualized Environment*, IEEE Transactions on Parallel and Distributed Systems, "
        "2015."
    ),
    about="""
In the paper, the hypervisor schedules the requests of guests that share a rotating disk. A model
(vNavigator) learns for each guest which zones of its disk are being read or written and when the
next request for each will arrive; the scheduler (Pregather) keeps the disk idle for that request
if the seek to any other one would take longer, and gives guests with such locality longer slices.

In acstor the agent schedules the requests to its own disk in this way (``[acstor_agent]
disk_policy``): those of guests, of peers and its own. :doc:`/contributor/disk_scheduling` describes
the scheduler, the model of the disk, and the differences to the paper.
""",
    experiments=(
        s1_guests.EXPERIMENT,
        s1_mixed.MIXED,
        s1_mixed.ZONES,
        s1_writes.EXPERIMENT,
        s1_sorts.SORT,
        s1_sorts.BESIDE,
        s1_sorts.COST,
        s1_real.EXPERIMENT,
        *s1_beyond.EXPERIMENTS,
    ),
    absent=ABSENT,
)
