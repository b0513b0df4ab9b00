# SPDX-License-Identifier: Apache-2.0
import random

import pytest

from acstor_simulator.model import boot_traces
from acstor_simulator.model import workloads

IMAGE = boot_traces.make_traced_image(0, 256, 0.0, seed=1)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_guest_reads_whole_files_of_its_image(name: str) -> None:
    shape = workloads.WORKLOADS[name]
    task = workloads.task(name, IMAGE, 128, random.Random(1))
    numbers = [read.chunk.offset // boot_traces.CHUNK_BYTES for read in task.reads]
    assert len(numbers) == 128
    files = [numbers[at : at + shape.file_chunks] for at in range(0, 128, shape.file_chunks)]
    assert all(file == list(range(file[0], file[0] + shape.file_chunks)) for file in files)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_local_bytes_take_the_time_of_the_disk(name: str) -> None:
    shape = workloads.WORKLOADS[name]
    task = workloads.task(name, IMAGE, 128, random.Random(1))
    read_bytes = task.used_bytes / (1 + shape.local)
    assert read_bytes == pytest.approx(128 * shape.used * boot_traces.CHUNK_BYTES)
    local_s = read_bytes * shape.local / workloads.DISK_BYTES_S
    assert sum(read.think_s for read in task.reads) >= 0.99 * local_s


def test_web_server_reads_at_a_steady_rate_and_a_proxy_does_not() -> None:
    def pauses_s(name: str) -> list[float]:
        reads = workloads.task(name, IMAGE, 256, random.Random(1)).reads
        return [read.think_s for read in reads][:: workloads.WORKLOADS[name].file_chunks]

    assert len({round(pause_s, 9) for pause_s in pauses_s("web server")}) == 1
    proxy = sorted(pauses_s("web proxy"))
    assert proxy[len(proxy) // 2] < 0.01 < proxy[-1]


def test_boot_workload_uses_the_reads_of_the_image() -> None:
    task = workloads.task(workloads.BOOT, IMAGE, 7, random.Random(1))
    assert task.reads is IMAGE.reads
    assert task.used_bytes == 256 * boot_traces.CHUNK_BYTES
