# SPDX-License-Identifier: Apache-2.0
"""Health issues of a vault, reported for half an hour."""

import errno
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest

from acstor_checkpoint.vault import group_sync
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_health
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import manual_clock

H1, H2 = ids.HostId("h1"), ids.HostId("h2")
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
ISSUE = vault_health.Issue


class Rig:
    """A vault for eight chunks, six per host, and its health with a manual clock."""

    def __init__(self, folder: pathlib.Path, slow_s: float) -> None:
        self.now_s = 1000.0
        limits = quota.VaultLimits(12 * 4096, 9 * 4096, 1000)
        self.vault = vault_store.VaultStore(folder, limits, ids.HostId("h3"))
        self.health = vault_health.VaultHealth(
            self.vault.quota,
            self.vault.group_sync,
            manual_clock.FunctionClock(lambda: self.now_s),
            slow_s,
        )

    def put(self, owner: ids.HostId, *numbers: int) -> None:
        with self.vault.open_batch(object_names.VaultDisk(owner, DISK)) as batch:
            for number in numbers:
                batch.add(object_names.ObjectKind.CHUNK, bytes([7, number]) * 16, 4, [b"abcd"])

    def issues(self, after_s: float = 600.0) -> list[vault_health.Issue]:
        self.now_s += after_s
        return list(self.health.list_issues())


@pytest.fixture
def slow_s() -> float:
    return vault_health.SLOW_S


@pytest.fixture
def rig(tmp_path: pathlib.Path, slow_s: float) -> Iterator[Rig]:
    made = Rig(tmp_path, slow_s)
    yield made
    made.vault.close()


@pytest.mark.expect_log("h1 has used up its quota of this vault")
def test_vault_is_full_for_half_an_hour_and_not_at_a_hosts_quota(
    rig: Rig,
) -> None:
    rig.put(H1, *range(5))
    with pytest.raises(errors.VaultFull, match="of one host"):
        rig.put(H1, *range(5, 9))
    assert rig.issues() == []
    with pytest.raises(errors.VaultFull, match="bytes is reached"):
        rig.put(H2, *range(5))
    assert [rig.issues() for _ in range(3)] == [[ISSUE.FULL]] * 3
    assert rig.issues() == []


def test_full_file_system_is_a_full_vault(rig: Rig) -> None:
    rig.vault.quota.refused[quota.Bound.DISK] += 1
    assert rig.issues() == [ISSUE.FULL]


@pytest.mark.expect_log("may be lost")
def test_unsafe_vault_stays_unsafe(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int) -> int:
        group_sync.ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(group_sync._libc, "syncfs", fails)
    with pytest.raises(OSError, match="Input"):
        rig.put(H1, 1)
    assert [rig.issues() for _ in range(5)] == [[ISSUE.NOT_SAFE]] * 5


@pytest.mark.parametrize(("slow_s", "issues"), [(0.05, [ISSUE.SLOW]), (5.0, [])])
def test_vault_with_a_slow_sync_is_slow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, issues: list[vault_health.Issue]
) -> None:
    monkeypatch.setattr(group_sync, "_fault", lambda _descriptor: time.sleep(0.1))
    rig.put(H1, 1)
    assert [rig.issues() for _ in range(3)] == [issues] * 3
    assert rig.issues() == []


@pytest.mark.parametrize("slow_s", [0.5])
def test_hanging_sync_is_slow_before_it_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hang(_descriptor: int) -> None:
        begun.set()
        may_end.wait(10)

    monkeypatch.setattr(group_sync, "_fault", hang)
    waiting = threading.Thread(target=rig.vault.group_sync.wait_synced)
    waiting.start()
    assert begun.wait(5) and rig.issues() == []
    time.sleep(0.6)
    assert rig.issues() == [ISSUE.SLOW]
    may_end.set()
    waiting.join(5)
    took_s = rig.vault.group_sync.took_s
    time.sleep(0.01)
    assert rig.vault.group_sync.took_s == took_s > 0.5
