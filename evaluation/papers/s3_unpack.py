# SPDX-License-Identifier: Apache-2.0
"""The paper's own workload: mount the repository, read the package, unpack it.

The unpacked files are compared with those of the package itself.
"""

import functools
import pathlib
import statistics
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s3_repositories as repositories
from evaluation.papers import s3_scenes as scenes
from tests.lab import runs

COUNTS = (2, 2)
LOCAL = "local"
_UNPACK = 'dpkg-deb --fsys-tarfile "$1" | sha256sum | cut -d " " -f 1'
_MOUNT_AND_UNPACK = f"""
set -eu
mkdir -p "$2"
mount -o loop,ro,noload "$1" "$2"
trap 'umount "$2"' EXIT
set -- "$2/{repositories.COMMON}"
{_UNPACK}
"""
_MOUNT_AND_UNPACK = _MOUNT_AND_UNPACK.replace("""trap 'umount "$2"'""", """trap "umount '$2'" """)
Job = Callable[[], str]


def play(way: str, counts: Sequence[int], say: harness.Say) -> experiment.Outcome:
    """Let each host mount its repository and unpack the package, concurrently."""
    made = repositories.made()
    readers = [number for number, count in enumerate(counts) for _ in range(count)]
    groups = scenes.groups_of(way, readers)
    cloud = collective.Cloud(len(readers), scenes.LINK_MBIT, made.images, groups)
    with cloud.running(**scenes.OPTIONS[way]):
        cloud.attach({host: collective.Reading((), n) for host, n in enumerate(readers)})
        cloud.mark()
        jobs = {host: _job(cloud, host, n) for host, n in enumerate(readers)}
        reported = _told(at_once(jobs), len(readers))
        reported["source_ratio"] = round(cloud.source_bytes() / made.common_bytes, 4)
    say(f"{way}: {reported['mean_s']:.2f} s, {reported['source_ratio']:.2f} from the source")
    return reported


def _job(cloud: collective.Cloud, host: int, image_no: int) -> Job:
    image = cloud.agents[host].image_path(cloud.images.ids[image_no])
    at = cloud.network.hosts[host]
    argv = ["sh", "-c", _MOUNT_AND_UNPACK, "unpack", image, at.folder / "repository"]
    return functools.partial(at.run, argv)


def local(hosts: int, say: harness.Say) -> experiment.Outcome:
    """Let as many processes unpack the package concurrently from a file in memory."""
    file = repositories.packages()[repositories.COMMON]
    jobs = {host: functools.partial(_unpacked, file) for host in range(hosts)}
    reported = _told(at_once(jobs), hosts)
    say(f"{LOCAL}: mean {reported['mean_s']:.2f} s")
    return reported


def _unpacked(file: pathlib.Path) -> str:
    return runs.tool(["sh", "-c", _UNPACK, "unpack", file])


def at_once(jobs: Mapping[int, Job]) -> list[float]:
    """Run jobs in threads from a common start; return their durations.

    :raises harness.CannotRun: one failed, or its output differs from the package
    """
    right = _unpacked(repositories.packages()[repositories.COMMON]).strip()

    def unpack(job: Job) -> list[str]:
        said = job().strip()
        return [] if said == right else [f"unpacked {said!r}"]

    took_s = collective.run_together(
        {number: functools.partial(unpack, job) for number, job in jobs.items()}
    )
    return list(took_s.values())


def _told(took_s: Sequence[float], hosts: int) -> experiment.Outcome:
    return {
        "hosts": hosts,
        "mean_s": round(statistics.mean(took_s), 3),
        "min_s": round(min(took_s), 3),
        "max_s": round(max(took_s), 3),
    }


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a case for each way; a quick run has none."""
    if scale is experiment.Scale.QUICK:
        return []
    hosts = sum(COUNTS)
    return [
        experiment.Case(LOCAL, functools.partial(local, hosts), 5),
        *(
            experiment.Case(way, functools.partial(play, way, COUNTS), 12 + 3 * hosts)
            for way in (scenes.DIRECT, scenes.SIMPLE, scenes.CONTENT)
        ),
    ]


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return a row for each way, over the direct one, and over the local one."""
    content = outcomes.get(scenes.CONTENT)
    if content is None:
        return []
    return [
        experiment.Row(
            "4.B",
            f"{content['hosts']} hosts, half at each repository, mount and unpack: mean completion "
            f"of content; the ratio is that of {way} over it",
            "no number for so few hosts",
            content["mean_s"],
            "s",
            found["mean_s"],
            way if way != LOCAL else "the same number, from a file in memory",
            round(found["mean_s"] / content["mean_s"], 3),
        )
        for way in (scenes.DIRECT, scenes.SIMPLE, LOCAL)
        if (found := outcomes.get(way)) is not None
    ]


EXPERIMENT = experiment.Experiment(
    key="S3-unpack",
    title="The complete workload: mount, read, unpack",
    paper_has="Each VM mounts its repository (ext4) and unzips the package.",
    here=(
        "4 hosts, half at each repository. Each mounts its mirror's file by a loop device and "
        "unpacks the package with ``dpkg-deb --fsys-tarfile`` (xz); the output is compared by its "
        "SHA-256. All share two processors, so only a few hosts are possible."
    ),
    cases=cases,
    rows=rows,
)
