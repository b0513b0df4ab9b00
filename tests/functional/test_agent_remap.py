# SPDX-License-Identifier: Apache-2.0
"""New ring tables during reads: no read fails, and the source is read about once."""

import contextlib
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(12 * MIB, seed=9)
NAMES = ("h1", "h2", "h3", "h4")
PODS = {"h1": "site/pod1", "h2": "site/pod1", "h3": "site/pod2", "h4": "site/pod2"}
ONCE = {"variants": hosts.BY_HOMES, "constants": {tuned.PEER_SILENCE_S: 5}}
"""A peer timeout on a slow machine may cause a second read of the source."""
QUIET = {**ONCE, "variants": f"{hosts.BY_HOMES},no-advertisements"}
FEW_COPIES = {tuned.COPIES_LIMIT: 1}


def located(cloud: hosts.Cloud, epoch: int, **fields: Any) -> dict[str, Any]:
    """Return the cloud's ring table with its hosts in two pods."""
    table = hosts.ring_table(cloud.ports, epoch)
    for host in table["hosts"]:
        host["location"] = PODS[host["host"]]
    return {**table, **fields}


def write(cloud: hosts.Cloud, table: dict[str, Any]) -> None:
    new = cloud.ring_file.with_suffix(".new")
    new.write_text(json.dumps(table))
    new.replace(cloud.ring_file)


def adopt(cloud: hosts.Cloud, table: dict[str, Any]) -> None:
    """Set the ring table on all hosts and wait until all apply it."""
    write(cloud, table)
    epochs = [table["epoch"]] * len(cloud.agents)
    hosts.wait_until(
        lambda: [status["ring"]["epoch"] for status in cloud.statuses().values()] == epochs,
        "the new table everywhere",
        30,
    )


def count(cloud: hosts.Cloud, name: str) -> int:
    return sum(status["exchange"][name] for status in cloud.statuses().values())


class Reader(threading.Thread):
    """Reads an image in small steps; ``is_right`` tells whether all bytes were right."""

    def __init__(self, path: pathlib.Path, pause_s: float = 0.0) -> None:
        super().__init__()
        self.path, self.pause_s = path, pause_s
        self.done_bytes = 0
        self.is_right: bool | None = None

    def run(self) -> None:
        is_right = True
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(128 * 1024):
                is_right = is_right and data == DATA[self.done_bytes :][: len(data)]
                self.done_bytes += len(data)
                time.sleep(self.pause_s)
        self.is_right = is_right and self.done_bytes == len(DATA)


@contextlib.contextmanager
def reading(cloud: hosts.Cloud, image_id: ids.ImageId, *names: str) -> Iterator[list[Reader]]:
    """Have hosts read an image while the block runs, and check the bytes."""
    readers = [Reader(cloud[name].image_path(image_id), 0.03) for name in names]
    for reader in readers:
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.join(60)
    assert [reader.is_right for reader in readers] == [True] * len(readers)


def wait_half_way(readers: list[Reader]) -> None:
    hosts.wait_until(
        lambda: all(reader.done_bytes > len(DATA) // 3 for reader in readers), "a third read", 30
    )


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def test_new_weights_during_reads_cause_no_second_read_of_the_source(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES, **ONCE) as cloud:
        with reading(cloud, image_id, "h2", "h3") as readers:
            wait_half_way(readers)
            table = hosts.ring_table(cloud.ports, 2)
            table["hosts"][0]["vnodes"] = 900
            write(cloud, table)
        with reading(cloud, image_id, *NAMES):
            pass
        # One home reads, under either table.
        assert count(cloud, "source_bytes") == len(DATA)


def test_cached_image_is_not_read_from_the_source_again_after_a_remap(tmp_path, images, image_id):
    """Neither the image itself nor another one with the same chunks at other offsets."""
    swapped = images.add(DATA[4 * MIB :] + DATA[: 4 * MIB])
    with hosts.cloud(tmp_path, images, NAMES, **QUIET) as cloud:
        with reading(cloud, image_id, "h2"):
            pass
        assert count(cloud, "source_bytes") == len(DATA)
        table = hosts.ring_table(cloud.ports, 2)
        table["hosts"][0]["vnodes"] = 900
        adopt(cloud, table)
        got = cloud["h4"].image_path(swapped).read_bytes()
        assert got == DATA[4 * MIB :] + DATA[: 4 * MIB]
        assert count(cloud, "source_bytes") == len(DATA)
        assert count(cloud, "relayed_bytes") > MIB


def test_host_that_left_the_ring_still_serves_its_chunks(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES, **ONCE) as cloud:
        with reading(cloud, image_id, "h1", "h2") as readers:
            wait_half_way(readers)
            rest = {name: port for name, port in cloud.ports.items() if name != "h4"}
            write(cloud, hosts.ring_table(rest, 2))
        assert count(cloud, "source_bytes") <= 1.02 * len(DATA)
        with reading(cloud, image_id, "h3"):
            pass
        assert count(cloud, "source_bytes") <= 1.02 * len(DATA)
        assert all(s["exchange"]["in_backoff"] == {} for s in cloud.statuses().values())


def test_removal_of_a_dead_host_from_the_ring_fails_no_read(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES, constants={tuned.PEER_SILENCE_S: 1}) as cloud:
        with reading(cloud, image_id, "h1", "h2") as readers:
            wait_half_way(readers)
            hosts.kill_agent(cloud["h4"])
            rest = {name: port for name, port in cloud.ports.items() if name != "h4"}
            write(cloud, hosts.ring_table(rest, 2))
        del cloud.agents["h4"]
        assert all(
            status["images"].get(image_id, {"failed_reads": 0})["failed_reads"] == 0
            for status in cloud.statuses().values()
        )


@pytest.mark.parametrize(("outer", "copies"), [(None, 2), (2, 1)])
def test_each_pod_reads_the_source_once_or_fetches_from_the_other_pod(
    tmp_path, images, image_id, outer, copies
):
    with hosts.cloud(tmp_path, images, NAMES, **ONCE) as cloud:
        adopt(cloud, located(cloud, 2, threshold=1, outer_threshold=outer))
        with reading(cloud, image_id, *NAMES):
            pass
        assert count(cloud, "source_bytes") == copies * len(DATA)
        assert count(cloud, "relayed_bytes") == (2 - copies) * len(DATA)


def test_division_into_pods_during_reads_causes_no_second_source_read(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES, **ONCE) as cloud:
        with reading(cloud, image_id, *NAMES) as readers:
            wait_half_way(readers)
            write(cloud, located(cloud, 2, threshold=1, outer_threshold=2))
            time.sleep(0.5)
            write(cloud, located(cloud, 3))
        assert count(cloud, "source_bytes") <= 1.02 * len(DATA)


def test_older_and_invalid_tables_are_refused_during_reads(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES[:2], **ONCE) as cloud:
        adopt(cloud, hosts.ring_table(cloud.ports, 7))
        with reading(cloud, image_id, "h1", "h2"):
            for epoch in (3, 6, 7, 1, 5):
                write(cloud, {**hosts.ring_table({"h9": 9}, epoch)})
                time.sleep(0.2)
            cloud.ring_file.write_text('{"version": 1, "epoch": 8, "threshold": 0, "hosts": []}')
            time.sleep(1.5)
        assert [s["ring"]["epoch"] for s in cloud.statuses().values()] == [7, 7]
        assert count(cloud, "source_bytes") == len(DATA)
        assert "not accepted" in cloud["h1"].log()


def test_full_caches_withdraw_their_advertisements(tmp_path, images, image_id):
    small = {"cache_limit_bytes": 4 * MIB}
    with hosts.cloud(tmp_path, images, NAMES[:2], **small, **ONCE) as cloud:
        with reading(cloud, image_id, "h1", "h2"):
            pass
        hosts.wait_until(
            lambda: count(cloud, "withdrawn_advertisements") > 0, "news of what is gone", 30
        )
        with reading(cloud, image_id, "h1", "h2"):
            pass
        assert count(cloud, "false_advertisements") < 0.1 * count(cloud, "advertised_chunks")


def test_home_counts_holders_that_had_the_chunk_before(tmp_path, images, image_id):
    options = {"variants": "no-advertisements,no-referrals", "constants": FEW_COPIES, "life_s": 60}
    with hosts.cloud(tmp_path, images, NAMES, **options) as cloud:
        with reading(cloud, image_id, *NAMES):
            pass
        beyond = (len(NAMES) - 2) * len(DATA) // CHUNK  # all but the home and one holder
        hosts.wait_until(
            lambda: count(cloud, "demoted_chunks") > 0.8 * beyond, "chunks that may go", 30
        )
        assert count(cloud, "demoted_chunks") <= count(cloud, "demotion_requests_sent")


def test_home_demotes_chunks_of_holders_beyond_the_limit(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, NAMES, constants=FEW_COPIES, life_s=60) as cloud:
        with reading(cloud, image_id, *NAMES):
            pass
        hosts.wait_until(lambda: count(cloud, "demoted_chunks") > 0, "chunks that may go", 30)
        assert count(cloud, "demoted_chunks") <= count(cloud, "demotion_requests_sent")
        with reading(cloud, image_id, *NAMES):  # no chunk was dropped: the caches have free space
            pass
        assert count(cloud, "source_bytes") < 1.5 * len(DATA)
