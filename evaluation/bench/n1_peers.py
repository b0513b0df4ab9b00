# SPDX-License-Identifier: Apache-2.0
"""PEERS: a server starts from a remote image: acstor and the alternatives.

The image is a Debian with PostgreSQL, nginx and compilers, as compressed qcow2 on a web server.
The ways (:mod:`peer_ways`), in turns, each on fresh hosts:

* ``raw file``: the disk in this machine's page cache, the floor;
* ``download``: as in Nova, download the file and convert it to raw;
* ``Dragonfly``: the same, but the hosts exchange the file (:mod:`dragonfly`), if it is built;
* ``nbdkit``: ``nbdkit curl`` with its filter ``cache``, read by QEMU;
* ``QEMU``: QEMU reads the URL itself;
* ``acstor``: an agent with its defaults and the image's boot image.

The grid (:mod:`peer_plan`) has links of 100 Mbit/s, 1 Gbit/s and without limit, round trips of 0
to 200 ms to the web server, and one host or eight.  Cells that do not fit into three hours are
reported as not measured; ``--quick`` takes a few cells, and 20 minutes.  ``--resume`` measures what
former runs with the same ``--results`` lack.

One host boots a guest: login prompt; PostgreSQL accepts connections and nginx answers; a program
is compiled, linked and run; in one cell the same once more ten minutes later (not with ``--quick``)
without the guest's page cache.  Eight hosts replay a boot's reads (:mod:`peer_replay`).

PEERS is the largest ratio of acstor's time to that of another way but ``raw file``, over all cells
of one host: login, service, program.  PEERSb is the largest ratio to nbdkit or QEMU, which read
the source directly, at any point: login, service, end of the program, and the slowest of eight
hosts.  Ratios are medians over turns.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.boot import boot_builder
from acstor_glance.prepare import prehash
from evaluation.bench import harness
from evaluation.bench import p12b_first_boot
from evaluation.bench import peer_boots
from evaluation.bench import peer_journal
from evaluation.bench import peer_plan
from evaluation.bench import peer_replay
from evaluation.bench import peer_report
from evaluation.bench import peer_ways
from tests.lab import guest_files
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "5"))
IS_QUICK = bool(os.environ.get("ACSTOR_BENCH_QUICK"))
LIMIT_S = float(
    os.environ.get("ACSTOR_BENCH_LIMIT_S", peer_plan.QUICK_S if IS_QUICK else peer_plan.WHOLE_S)
)
IS_RESUMED = bool(os.environ.get("ACSTOR_BENCH_RESUME"))
RESULTS = pathlib.Path(os.environ.get("ACSTOR_BENCH_RESULTS", harness.ROOT / "results"))
PROGRAMS = ("nbdkit", "qemu-nbd", "qemu-img", "curl")
PACKAGES = (
    *("postgresql", "nginx-light", "curl", "git", "build-essential"),
    *("golang-go", "default-jdk-headless", "python3-scipy"),
)

FILES = {
    "usr/local/sbin/lab-service": f"""\
#!/bin/sh
until pg_isready -q && curl -sf -o /dev/null http://127.0.0.1/; do sleep 0.2; done
echo "{peer_boots.SERVICE}" > /dev/kmsg
""",
    "etc/systemd/system/lab-service.service": """\
[Unit]
Description=Say when the services answer
[Service]
ExecStart=/usr/local/sbin/lab-service
""",
}
LINKS = {
    "etc/systemd/system/multi-user.target.wants/lab-service.service": (
        "/etc/systemd/system/lab-service.service"
    )
}


def recipe(of_lab: guest_image.Recipe) -> guest_image.Recipe:
    """Return the recipe of an image with services and compilers."""
    return dataclasses.replace(
        of_lab,
        packages=(*of_lab.packages, *PACKAGES),
        size_bytes=peer_ways.DISK_BYTES,
        files={**guest_files.FILES, **FILES},
        links={**guest_files.LINKS, **LINKS},
    )


def prepare(folder: pathlib.Path, say: harness.Say) -> peer_ways.Prepared:
    """Make the image, its chunk map and its boot image."""
    made = guest_image.ensure(say, recipe)
    images = local.ImageFolder(folder / "images")
    image_id = ids.parse_image_id("3f6f3a52-6d0c-4c6a-9d3e-0a55e8b4e1c7")
    stored = images.folder / f"{image_id}.qcow2"
    shutil.copyfile(made.compressed, stored)
    prehash.prehash(
        stored, images.map_path(image_id), image_id, disk_format=layout.DiskFormat.QCOW2
    )
    map_of = chunk_map.ChunkMap.parse(images.map_path(image_id).read_bytes(), "the map")
    summary = boot_builder.build(stored, map_of, images.boot_image_path(image_id))
    say(f"boot image: {summary}")
    p12b_first_boot.check_built(dataclasses.asdict(summary))
    return peer_ways.Prepared(images.folder, image_id, made.raw)


class Session:
    """One run: it works through the plan and keeps the guests that are to run on."""

    def __init__(
        self, made: peer_ways.Prepared, journal: peer_journal.Journal, say: harness.Say
    ) -> None:
        self._made, self._journal, self._say = made, journal, say
        self._kept: list[tuple[peer_plan.Job, peer_boots.Booted]] = []
        self.done: set[peer_plan.Job] = set()
        self.found = peer_report.Found()

    @functools.cached_property
    def _reads(self) -> list[peer_replay.Read]:
        return peer_replay.recorded(self._made, self._journal.reads_path)

    def resume(self, limit: peer_plan.TimeLimit) -> None:
        """Take over what former runs measured, and how long it took."""
        for job, measured, commit in self._journal.load():
            self.done.add(job)
            self.found.add(job, measured)
            self.found.commits.add(commit)
            limit.note(job, measured.done_s)
            self._say(f"from a former run, of commit {commit[:8]}: {job}")

    def work(self, limit: peer_plan.TimeLimit) -> None:
        """Do all jobs that have time."""
        planned = peer_plan.plan(TURNS, is_quick=IS_QUICK)
        jobs = [job for job in planned if job not in self.done]
        with contextlib.ExitStack() as stack:
            for job in jobs:
                if job.kind is not peer_plan.Kind.KEEP and self._kept:
                    self._wait_later()
                    stack.close()
                if limit.has_time(job):
                    began_s = time.monotonic()
                    with self._noting_failure(job):
                        self._say(f"{job}: {self._measure(job, stack)}")
                    limit.note(job, time.monotonic() - began_s)
            self._wait_later()

    @contextlib.contextmanager
    def _noting_failure(self, job: peer_plan.Job) -> Iterator[None]:
        try:
            yield
        except (errors.AcstorError, harness.CannotRun) as failure:
            self.found.failed.append(f"{job}: {str(failure).splitlines()[0]}")
            self._say(f"{job}: {failure}")

    def _measure(self, job: peer_plan.Job, stack: contextlib.ExitStack) -> object:
        words = (self._made, job.cell, job.way)
        if job.kind is peer_plan.Kind.REPLAY:
            return self._keep_result(job, peer_replay.measure(*words, self._reads))
        booted = peer_boots.Booted(*words)
        with contextlib.ExitStack() as own:
            own.enter_context(booted)
            if job.kind is not peer_plan.Kind.KEEP:
                return self._keep_result(job, booted.boot)
            booted.boot.cpu_s = None
            self._kept.append((job, booted))
            stack.push(own.pop_all())
        return booted.boot

    def _keep_result(
        self, job: peer_plan.Job, measured: peer_journal.Measured
    ) -> peer_journal.Measured:
        self.found.add(job, measured)
        self.found.commits.add(self._journal.commit)
        self._journal.add(job, measured)
        return measured

    def _wait_later(self) -> None:
        """Run the program again in each kept guest when its time has come."""
        waiting, self._kept = self._kept, []
        while waiting:
            for _, booted in waiting:
                booted.note_cached()
            job, booted = waiting[0]
            if booted.is_due(peer_plan.LATER_S):
                waiting.pop(0)
                with self._noting_failure(job):
                    booted.run_again()
                    self._say(f"later: {self._keep_result(job, booted.boot)}")
            else:
                time.sleep(1.0)


@harness.measures("PEERS", "PEERSb")
def run(say: harness.Say) -> harness.Result:
    """Measure the cells that have time, and print their tables."""
    limit = peer_plan.TimeLimit(LIMIT_S)
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise harness.CannotRun(f"{program} is not installed")
    with runs.Run() as lab_run:
        made = prepare(lab_run.folder, say)
        stored_bytes = (made.folder / made.file_name).stat().st_size
        say(f"the image: {stored_bytes / 1e6:.0f} MB compressed")
        session = Session(made, open_journal(), say)
        session.resume(limit)
        session.work(limit)
    found = session.found
    tell(found, say)
    ratios = peer_report.direct_ratios(found)
    return harness.Result(
        {
            "PEERS": peer_report.over_peers(found),
            "PEERSb": max((one.ratio for one in ratios), default=float("nan")),
        },
        {"stored_bytes": stored_bytes, **found.as_details()},
        lambda picture: peer_report.draw(picture, found),
    )


def open_journal() -> peer_journal.Journal:
    """Return the journal of finished jobs, an empty one unless this run is resumed."""
    name = "PEERS-quick.jsonl" if IS_QUICK else "PEERS.jsonl"
    journal = peer_journal.Journal(RESULTS / name, harness.machine()["commit"])
    if not IS_RESUMED:
        journal.clear()
    return journal


def tell(found: peer_report.Found, say: harness.Say) -> None:
    """Print the tables, what was not measured, and the goal."""
    say("One host; p50 / p90 / p99 of several runs:")
    say(peer_report.boot_table(found.boots))
    if not IS_QUICK:
        say(peer_report.later_table(found.boots))
    say("Eight hosts replay the reads of a guest; p50 / p90 / p99 of hosts and runs:")
    say(peer_report.replay_table(found.replays))
    for line in peer_report.not_measured(found):
        say(line)
    for line in peer_report.goal_lines(peer_report.direct_ratios(found)):
        say(line)
