# SPDX-License-Identifier: Apache-2.0
"""S2: Boot images (YOLO)."""

import functools

from evaluation.papers import experiment
from evaluation.papers import s2_busy
from evaluation.papers import s2_catalogue
from evaluation.papers import s2_exchange
from evaluation.papers import s2_many
from evaluation.papers import s2_overhead
from evaluation.papers import s2_volumes

_MACHINE = (
    "Hosts with a disk of 10,000 rpm (150 MB/s), an SSD (346 MB/s), or CEPH on four nodes with "
    "disks behind 10 Gbit/s; KVM, Debian 7."
)
_DEVICES = (
    "Guests are replayed: each repeats the requests of a recorded guest (Debian 12), reads of the "
    "image through the page cache and writes of its own qcow2 file, each after the answer to the "
    "previous one and its think time, which is shortened to a total of 3 s, the time in which the "
    "paper's guest boots from an SSD. Images and guests' files are on a file system in user space "
    "whose devices delay each request as a model says: the HDD of "
    ":doc:`/contributor/disk_scheduling` (7,200 rpm, 125 MB/s, an elevator), an SSD (346 MB/s, "
    "0.1 ms), and four such HDDs with objects of 4 MiB behind 10 Gbit/s and 0.5 ms. Page cache "
    "and read-ahead above it are the kernel's, and the agent is the product's. Its own cache is "
    "on the machine's disk; it serves some chunks that boot images lack. All processes share two "
    "cores, where the paper gives a core to each guest."
)
_FIGURE_9 = experiment.Experiment(
    key="S2-figure-9",
    title="Figure 9: boot images in memory and on a fast disk",
    paper_has=f"1 to 16 guests, boot images in memory or on an SSD of their own. {_MACHINE}",
    here="As figure 11, on the HDD. A boot image that is not in memory is loaded when its guest "
    "begins, from an SSD of its own or from the disk with the images.",
    cases=s2_many.memory_cases,
    rows=s2_many.memory_rows,
    draw=s2_many.draw_memory,
)
_FIGURES_10_11 = tuple(
    experiment.Experiment(
        key=f"S2-figure-{number}",
        title=f"Figure {number}: many guests boot, {which}",
        paper_has=f"Time to boot 1 to 16 guests {how}, by policy. {_MACHINE}",
        here=f"{_DEVICES} {more}",
        cases=functools.partial(s2_many.cases, is_same),
        rows=functools.partial(s2_many.rows, f"Figure {number}", claims),
        draw=s2_many.draw,
        pairs=s2_many.pairs,
    )
    for number, which, how, is_same, claims, more in (
        (10, "one image", "of one image", True, s2_many.SAME, ""),
        (
            11,
            "different images",
            "of different images",
            False,
            s2_many.DIFFERENT,
            "Different images are separate files at separate places with the same content. acstor "
            "keeps equal chunks once, in boot images, too.",
        ),
    )
)
_REAL = experiment.Experiment(
    key="S2-figure-11-qemu",
    title="Figure 11(a): guests of QEMU beside replayed guests",
    paper_has="As figure 11; its guests run on KVM.",
    here="QEMU emulates the processor, so that a guest boots in 15 to 35 s without any I/O wait, "
    "and guests share two cores: this hides the waits for the disk. Beside them are replayed "
    "guests with the recorded think times (the error of the replay, where there are enough "
    "cores for the guests), and ones without think time: the boot's I/O alone.",
    cases=s2_many.real_cases,
    rows=s2_many.real_rows,
    draw=s2_many.draw_real,
)

PAPER = experiment.Paper(
    key="S2",
    name="Boot images (YOLO)",
    cite=(
        "T. L. Nguyen, R. Nou, A. Lebre: *YOLO: Speeding up VM Boot Time by reducing I/O "
        "operations*, 2019."
    ),
    about=(
        "A guest reads a small part of its image while it boots, in small pieces from all over "
        "it. The paper keeps that part as a *boot image* on each host, in the order of the reads, "
        "and a file system in user space answers the guests' reads from memory. In acstor the "
        "boot-image builder beside Glance makes boot images, hosts get them from the source or "
        "from each other and verify them, and their agents keep them in memory while guests boot "
        "(:doc:`/format/boot_image`). Each consists of compressed chunks of its image; chunks "
        "that several have in common are in memory once."
    ),
    experiments=(
        experiment.Experiment(
            key="S2-table-1",
            title="Table I: boot images of a catalogue",
            paper_has="983 images of Google Cloud: 1.34 TB, their boot images 40.4 GB.",
            here="Images of Debian's packages, of several suites and sets of packages; each is "
            "booted once by the product's builder. The lab's images have free space for "
            "instances' own data; so the rows also give the data that is not zeros, less than "
            "the 1.2 GB of Google's Debian. Boot images are compressed. Ubuntu, CentOS, RHEL, "
            "CoreOS and Windows cannot be built from these packages.",
            cases=s2_catalogue.cases,
            rows=s2_catalogue.rows,
            draw=s2_catalogue.draw,
        ),
        experiment.Experiment(
            key="S2-figure-3",
            title="Figures 3 to 5: reads and writes of boots",
            paper_has="Bytes and requests of 1 to 16 guests that share an image (with qcow2 "
            "overlays) or have copies of it; the reads of one over time. Debian 7, an image "
            "of 1.2 GB.",
            here="One guest of Debian 12 by QEMU's trace events, in requests for files. Several "
            "are replayed; figures are the requests to their device, below the page cache and "
            "its read-ahead.",
            cases=s2_volumes.volume_cases,
            rows=s2_volumes.volume_rows,
            draw=s2_volumes.draw_volumes,
        ),
        experiment.Experiment(
            key="S2-figure-6",
            title="Figure 6: three ways to load the data of boots into memory",
            paper_has=f"The load time for 1 to 16 images. {_MACHINE}",
            here="Devices as in figure 10. The script repeats the recorded guest's reads, in the "
            "order of time, or merged in the order of offsets, through the page cache; the "
            "agent loads boot images, and verifies and decompresses them. 1 and 4 images.",
            cases=s2_volumes.prefetch_cases,
            rows=s2_volumes.prefetch_rows,
            draw=s2_volumes.draw_prefetch,
        ),
        _FIGURE_9,
        *_FIGURES_10_11,
        _REAL,
        experiment.Experiment(
            key="S2-figure-12",
            title="Figure 12: one guest boots beside programs that write",
            paper_has="0 to 15 other guests run stress on the disk; time to boot one guest. "
            + _MACHINE,
            here="Devices and guest as in figure 10. Each program writes pieces of 256 KiB, the "
            "maximum of a disk's driver, to a file of its own as fast as the device accepts "
            "them.",
            cases=s2_busy.disk_cases,
            rows=s2_busy.disk_rows,
            draw=s2_busy.draw_disk,
        ),
        experiment.Experiment(
            key="S2-figure-13",
            title="Figure 13: one guest boots with little memory",
            paper_has="0 to 15 other guests run stress on the memory; time to boot one guest. "
            + _MACHINE,
            here="Devices and guest as in figure 10. A control group limits the memory of the "
            "guest's process and its page cache, with all data that the script prefetches "
            "into it. The agent, a separate process, has its boot image in its own memory.",
            cases=s2_busy.memory_cases,
            rows=s2_busy.memory_rows,
            draw=s2_busy.draw_memory,
        ),
        experiment.Experiment(
            key="S2-table-2",
            title="Table II: reading a backing file through the mirror",
            paper_has="A guest reads 2.5 GB sequentially, and 868 MB of it at random places, with "
            f"and without the file system in user space. {_MACHINE}",
            here="Devices as in figure 10. A tenth of the file, and the same share of it at "
            "random; a process of the host reads, through the page cache as QEMU would. All "
            "data is read for the first time, so the mirror fetches it and stores it, in a "
            "cache on the machine's disk: medians of turns. Baselines are a file without an "
            "emulated device, and pyfuse3 alone, which serves the file and does nothing else.",
            cases=s2_overhead.read_cases,
            rows=s2_overhead.read_rows,
            draw=s2_overhead.draw_reads,
        ),
        experiment.Experiment(
            key="S2-table-3",
            title="Table III: a database in a guest",
            paper_has="pgbench (TPC-B) with 1.34 GB of rows in the guest's own file, on each "
            "storage.",
            here="PostgreSQL 15 in an emulated guest of QEMU; its database of 30 MB is in the "
            "guest's own file on the SSD of figure 10. Three guests of each kind in turns, "
            "three runs of 10 s in each guest; means of the guests' medians.",
            cases=s2_overhead.database_cases,
            rows=s2_overhead.database_rows,
            pairs=s2_overhead.database_pairs,
        ),
        experiment.Experiment(
            key="S2-beyond-exchange",
            title="Boot images from other hosts",
            paper_has="",
            here="Three hosts behind 1 Gbit/s, an image server behind 100 Mbit/s. They load the "
            "same boot image one after the other; all chunks are verified.",
            cases=s2_exchange.cases,
            rows=s2_exchange.rows,
            is_beyond=True,
        ),
        experiment.Experiment(
            key="S2-beyond-common",
            title="Common data of boot images",
            paper_has="Future work: one boot image for images that differ in applications alone.",
            here="The images of table I. A host keeps equal chunks once.",
            cases=s2_catalogue.common_cases,
            rows=s2_catalogue.common_rows,
            is_beyond=True,
        ),
    ),
)
