# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of vaults and of checkpoint captures."""

import pathlib
import urllib.request

import pytest
from prometheus_client import parser

from acstor_checkpoint import metrics
from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import scrubber
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.service import metrics_endpoint
from tests.lab import local

DISK = object_names.VaultDisk(
    ids.HostId("h1"), ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
)
OTHER = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e22")
NAME = bytes(range(32))


def put(vault: vault_store.VaultStore, name: bytes) -> None:
    with vault.open_batch(DISK) as batch:
        batch.add(object_names.ObjectKind.CHUNK, name, 4, [b"abcd"])


def shown(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    vaults = (sample for sample in samples if sample.name.startswith("acstor_vault_"))
    return {
        " ".join([sample.name.removeprefix("acstor_vault_"), *sample.labels.values()]): sample.value
        for sample in vaults
    }


@pytest.mark.expect_log("h1 has used up its quota of this vault")
@pytest.mark.expect_log("corrupt; removed")
def test_vault_metrics_follow_usage_refusals_and_corruption(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "KEPT_S", 0.0)
    vault = vault_store.VaultStore(
        tmp_path, quota.VaultLimits(7 * 4096, 6 * 4096, 9), ids.HostId("h2")
    )
    address = f"127.0.0.1:{local.unused_port()}"
    stop = metrics.serve(address, metrics.VaultCollector(vault))
    wanted = {
        "full_hosts": 0,
        "used_bytes": 0,
        "inodes": 0,
        "hosts": 0,
        "limit_bytes": 7 * 4096,
        "limit_inodes": 9,
        "sync_ok": 1,
        "last_scrub_timestamp_seconds": 0,
        **{f"refused_files_total {bound}": 0 for bound in quota.Bound},
        "corrupt_files_total": 0,
        "sync_seconds_count": 1,
        "throttled_seconds_total": 0,
    }
    now = shown(address)
    assert now.pop("sync_seconds_sum") >= 0 and now == wanted
    for first in (1, 2):
        put(vault, bytes([first]) + NAME[1:])
    with pytest.raises(errors.VaultFull):
        put(vault, NAME)
    now = shown(address)
    assert now.pop("sync_seconds_sum") >= 0
    assert now == wanted | {
        "used_bytes": 6 * 4096,
        "inodes": 6,
        "hosts": 1,
        "refused_files_total host_bytes": 1,
        "full_hosts": 1,
        "sync_seconds_count": 5,
    }
    [spoilt] = (tmp_path / DISK.owner / DISK.disk / "01").iterdir()
    spoilt.write_bytes(b"something else")
    with (
        pytest.raises(errors.ChunkInvalid),
        vault.open_object(DISK, object_names.ObjectKind.CHUNK, bytes.fromhex(spoilt.name)),
    ):
        pass
    monkeypatch.setattr(scrubber, "ended_s", lambda _folder: 5.0)
    monkeypatch.setattr(vault.group_sync, "_failed", OSError())
    now = shown(address)
    assert (now["corrupt_files_total"], now["inodes"]) == (1, 5)
    assert (now["last_scrub_timestamp_seconds"], now["sync_ok"]) == (5, 0)
    stop()
    vault.close()


def test_unusable_listen_address_is_named(tmp_path: pathlib.Path) -> None:
    vault = vault_store.VaultStore(tmp_path, quota.VaultLimits(0, 0, 0), ids.HostId("h2"))
    with pytest.raises(errors.Unusable, match="metrics_listen"):
        metrics.serve("nowhere", metrics.VaultCollector(vault))
    vault.close()


class Taking:
    """A capture service with two servers, one of them overdue, and failures of every kind."""

    def __init__(self) -> None:
        self.failures = failures.Failures()
        for e in (
            holder_group.HolderSlow(ids.HostId("h2"), is_stalled=True),
            holder_group.HolderLost(ids.HostId("h2"), "it lacks 200 chunks"),
            holder_group.HolderFailed(ids.HostId("h2"), "it is full"),
            disk_capture.DiskTooLarge(1 << 16),
            scratch_files.ScratchFull("file", "it is full"),
            snapshot_window.Overwritten(1, 1),
            vault_client.HostFault("no route"),
            errors.CheckpointRefused("checkpoint", "no"),
            errors.DecisionUnreachable("the bus", "no answer"),
            errors.Unusable("libvirt", "it is away"),
            KeyError(1),
        ):
            self.failures.count_failure(OTHER, e)
        self.failures.note_wait(OTHER, "h3")

    def overdue_s(self) -> dict[ids.ImageId, float]:
        return {DISK.disk: 70.0, OTHER: 3.0}

    def running_captures_s(self) -> dict[ids.ImageId, float]:
        return {DISK.disk: 5.0}


def test_longest_times_are_exported_without_server_names() -> None:
    collected = metrics.CheckpointCollector(Taking()).collect()
    gauges = {f.name: f.samples for f in collected if f.type == "gauge"}
    assert {name: [(s.labels, s.value) for s in found] for name, found in gauges.items()} == {
        "acstor_checkpoint_overdue_seconds": [({}, 70.0)],
        "acstor_checkpoint_capture_seconds": [({}, 5.0)],
    }


def test_failures_are_counted_by_reason_and_holder() -> None:
    found = {
        tuple(sample.labels.values()): sample.value
        for family in metrics.CheckpointCollector(Taking()).collect()
        for sample in family.samples
        if "failures" in sample.name or "waits" in sample.name
    }
    assert found == {
        ("holder",): 1,
        ("holder_slow",): 1,
        ("holder_lost",): 1,
        ("too_large",): 1,
        ("scratch_full",): 1,
        ("overwritten",): 1,
        ("host",): 1,
        ("refused",): 1,
        ("decision",): 1,
        ("other",): 2,
        ("h3",): 1,
        ("h2", "holder"): 1,
        ("h2", "holder_slow"): 1,
        ("h2", "holder_lost"): 1,
    }
