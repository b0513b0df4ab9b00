# SPDX-License-Identifier: Apache-2.0
"""fio's verify jobs on disks, while workers and supervisors are killed and hosts lose power.

The jobs are fio's own examples, and two of this module: ``MIXED`` verifies while it writes;
``FLUSHED`` and ``DURABLE`` are written before a power failure and verified after it, up to the
state that fio saved: every write that was answered and synced.
"""

import json
import pathlib
import re
import struct
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from tests.outside import apt
from tests.outside import crash_host
from tests.outside import crash_passes

EXAMPLES = pathlib.Path("/usr/share/doc/fio/examples")
PAGE = 4096
_SIZE = crash_host.DISK_BYTES
_HEADER = struct.Struct("<HHIQQ")  # magic, kind, length, seed, offset of the block
_MAGIC = 0xACCA
_PATTERN_BYTES = 12  # 8 of the block's offset, 4 of the pass's number
_SAID_LINES = 8
_STATES = "*-verify.state"

Options = Mapping[str, str]

ONES_OF_FIO: Mapping[str, Options] = {
    "basic-verify": {"size": "16m"},
    "surface-scan": {"size": str(_SIZE), "fill_device": ""},
    "cross-stripe-verify": {"offset_increment": "2m", "io_size": "240k", "verify_interval": "4k"},
}
"""Examples, with changed options; "" removes one, as a disk does not grow."""
MIXED = """\
[global]
direct=1
ioengine=libaio
iodepth=8
size=16m
verify_backlog=256
verify_fatal=1
verify_interval=4096
[random-4k]
rw=randwrite
bs=4k
verify=crc32c
[sequential-16k]
offset=16m
rw=write
bs=16k
verify=sha256
direct=0
ioengine=psync
fsync=16
[random-64k]
offset=32m
rw=randwrite
bs=64k
verify=sha512
loops=2
[sequential-128k]
offset=48m
rw=write
bs=128k
verify=crc32c
loops=4
"""
FLUSHED = """\
[global]
size=8m
do_verify=0
verify=pattern
verify_fatal=1
[flushed-random-12k]
size=8172k
rw=randwrite
bs=12k
end_fsync=1
[flushed-direct-64k]
offset=8m
rw=randwrite
bs=64k
direct=1
end_fsync=1
"""
DURABLE = """\
[global]
size=12m
direct=1
sync=1
do_verify=0
verify=pattern
verify_fatal=1
[random-4k]
offset=16m
rw=randwrite
bs=4k
ioengine=libaio
[sequential-16k]
offset=28m
rw=write
bs=16k
direct=0
[random-64k]
offset=40m
rw=randwrite
bs=64k
[random-128k]
offset=52m
rw=randwrite
bs=128k
"""


class Report(NamedTuple):
    """What fio did."""

    operations: int
    read_bytes: int
    error: str
    was_hit: bool = False


def with_options(text: str, options: Options) -> str:
    """Return a job file with other options, in all of its jobs."""
    lines = [line for line in text.splitlines() if re.split(r"[=;\s]", line)[0] not in options]
    given = [f"{name}={value}" for name, value in options.items() if value]
    return "\n".join(["[global]", *given, *lines, ""])


def reading(text: str) -> str:
    """Return the job file that verifies what ``text`` wrote."""
    read = re.sub(r"(?m)^rw=(rand)?write$", r"rw=\1read", text)
    return re.sub(r"(?m)^(end_fsync|sync|do_verify)=.*\n", "", read)


def run_jobs(now: crash_passes.Pass, text: str, fault: crash_host.Fault | None = None) -> Report:
    """Run fio on a job file."""
    folder = now.host.folder
    jobs, report = folder / "jobs.fio", folder / "report.json"
    jobs.write_text(text)
    report.unlink(missing_ok=True)
    words = ["fio", "--output-format=json", f"--output={report}", f"--aux-path={folder}", jobs]
    ended = now.run(words, fault)
    try:
        text = report.read_text()
        found = json.loads(text[text.index("{") :])["jobs"]
    except (OSError, ValueError, KeyError):
        found = []
    operations = sum(job[way]["total_ios"] for job in found for way in ("read", "write"))
    failed = ended.status or not found or any(job["error"] for job in found)
    said = "\n".join(ended.said.splitlines()[:_SAID_LINES])
    error = f"fio ended with {ended.status}: {said}" if failed else ""
    return Report(operations, sum(job["read"]["io_bytes"] for job in found), error, ended.was_hit)


def run_on(disk: pathlib.Path, now: crash_passes.Pass) -> crash_passes.Work:
    """Run one pass on a new disk, whose other pages stay those of the image."""
    if now.fault is None or now.fault in crash_host.SURVIVED:
        texts = [with_options(MIXED, {"filename": str(disk)}), *_examples(disk)]
        done = [run_jobs(now, texts[now.number % len(texts)], now.fault)]
    else:
        done = list(_run_over_failure(disk, now, now.fault))
    error = next((one.error for one in done if one.error), "")
    if not (now.host.overlay and now.fault is crash_host.Fault.POWER):  # QEMU may leave zeros
        error = error or _find_foreign_page(disk, now.host.image)
    if now.host.mirror.read_bytes() != now.host.image.read_bytes():
        error = error or "the mirror differs from the image"
    operations, verified = (sum(one[n] for one in done) for n in (0, 1))
    return crash_passes.Work(operations, verified, error)


def _examples(disk: pathlib.Path) -> list[str]:
    if not EXAMPLES.is_dir():
        apt.install("fio-examples")
    return [
        with_options((EXAMPLES / f"{name}.fio").read_text(), {"filename": str(disk), **options})
        for name, options in ONES_OF_FIO.items()
    ]


def _run_over_failure(
    disk: pathlib.Path, now: crash_passes.Pass, fault: crash_host.Fault
) -> Iterable[Report]:
    """Write, fail, start again, and verify; sometimes a worker is killed before."""
    options = {
        "filename": str(disk),
        "allow_file_create": "0",
        "verify_pattern": f'%o"{now.number:04}"',
        "randseed": str(now.number + 1),
    }
    if now.host.overlay:  # nbdfuse does not sync asynchronous writes
        options["ioengine"] = "psync"
    flushed, durable = (with_options(text, options) for text in (FLUSHED, DURABLE))
    yield run_jobs(now, flushed, now.rng.choice([None, crash_host.Fault.WORKER]))
    for state in now.host.folder.glob(_STATES):
        state.unlink()
    cut = run_jobs(now, durable, fault)
    yield cut._replace(error="") if cut.was_hit else cut
    states = len(list(now.host.folder.glob(_STATES)))
    if not cut.was_hit:
        now.host.cause(fault)
    now.host.recover(fault)
    yield run_jobs(now, reading(flushed))
    if not cut.was_hit:
        yield run_jobs(now, reading(durable))
    elif states == durable.count("rw="):  # otherwise it failed before all jobs had opened the disk
        yield run_jobs(now, with_options(reading(durable), {"verify_state_load": "1"}))


def _find_foreign_page(disk: pathlib.Path, image: pathlib.Path) -> str:
    """Return where a page is neither the image's nor one that fio wrote."""
    with disk.open("rb") as now, image.open("rb") as before:
        for at in range(0, _SIZE, PAGE):
            page = now.read(PAGE)
            if page != before.read(PAGE) and not _is_of_fio(page, at):
                return f"the page at {at} is neither the image's nor fio's"
    return ""


def _is_of_fio(page: bytes, at: int) -> bool:
    """Return whether a page begins with fio's header, or repeats the pattern of a failure."""
    magic, _, _, _, offset = _HEADER.unpack_from(page)
    repeats = any(page) and page[_PATTERN_BYTES:] == page[:-_PATTERN_BYTES]
    return repeats or (magic, offset) == (_MAGIC, at)
