# SPDX-License-Identifier: Apache-2.0
"""Time limits of holders: based on minimum rates plus a slack."""

import threading
import time
from collections.abc import Callable
from collections.abc import Iterable

import pytest

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.vault_protocol import object_names
from acstor_common.model import ids

MIB = 1 << 20
DISK = object_names.VaultDisk(
    ids.HostId("h1"), ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
)
NAMES = [ids.Cid(bytes([number]) * 32) for number in range(1, 4)]


class Client:
    """A client of a holder in this process.

    :param wait: lasts as long as a request
    """

    def __init__(self, wait: Callable[[], object], name: str = "h2") -> None:
        self.holder, self._wait, self.request_began_s = ids.HostId(name), wait, time.monotonic()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def missing_chunks(self, _disk: object_names.VaultDisk, asked: Iterable[bytes]) -> set[bytes]:
        self._wait()
        return set(asked)

    def put(self, _disk: object_names.VaultDisk, _chunks: object) -> None:
        self._wait()

    def put_manifest(self, _disk: object_names.VaultDisk, _sealed: bytes) -> bytes:
        self._wait()
        return bytes(32)

    def retain_only(self, _disk: object_names.VaultDisk, _stay: object) -> int:
        for _ in range(100):
            self._wait()
            if self.is_aborted:
                break
        return 0


class Clock:
    """A clock that requests advance."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, took_s: float) -> None:
        self.now_s += took_s


def limited(*clients: Client, **limits: float) -> holder_group.HolderGroup:
    """Return a group of holders with limits other than the default ones."""
    return holder_group.HolderGroup(DISK, clients, limits=holder_group.LIMITS._replace(**limits))


def test_round_trips_of_a_large_disk_do_not_add_up() -> None:
    """10,000 batches of 4 MiB, 30 ms away: 40 GiB at 67 MiB/s."""
    clock = Clock()
    disk = holder_group.HolderGroup(DISK, [Client(lambda: clock.wait(0.03))], clock=clock)
    for _ in range(10_000):
        disk.put(NAMES, bytes, disk_capture.BATCH_BYTES)
    assert clock.now_s == pytest.approx(1000.0 + 10_000 * 0.06)


def test_slack_is_used_by_slow_requests_and_refilled_by_fast_ones() -> None:
    clock, took_s = Clock(), [0.0]
    disk = holder_group.HolderGroup(DISK, [Client(lambda: clock.wait(took_s[0]))], clock=clock)
    took_s[0] = 8.0
    disk.put_manifest(bytes(2 * MIB))
    assert disk.slack_left_s == holder_group.LIMITS.slack_s - 6.0
    took_s[0] = 0.5
    disk.put_manifest(bytes(2 * MIB))
    assert disk.slack_left_s == holder_group.LIMITS.slack_s - 4.5
    for _ in range(10):
        disk.put_manifest(bytes(2 * MIB))
    assert disk.slack_left_s == holder_group.LIMITS.slack_s


def test_holder_may_take_a_long_manifest_at_the_minimum_rate() -> None:
    disk = limited(Client(lambda: time.sleep(2.0)), slack_s=0.5)
    disk.put_manifest(bytes(2 * MIB))
    with pytest.raises(holder_group.HolderFailed, match="too slow"):
        disk.put_manifest(bytes(MIB))


def test_name_lookups_have_their_own_minimum_rate() -> None:
    """Names of 4 GiB of a disk take 2 MiB."""
    limits = {"min_names_per_s": len(NAMES), "slack_s": 0.5}
    asked = limited(Client(lambda: time.sleep(1.2)), **limits)
    assert asked.missing_names(NAMES) == set(NAMES)
    with pytest.raises(holder_group.HolderFailed, match="too slow"):
        limited(Client(lambda: time.sleep(2.5)), **limits).missing_names(NAMES)


LOST_CHUNKS = holder_group.LIMITS.lost_chunks
MANY = [ids.Cid(number.to_bytes(32)) for number in range(1, LOST_CHUNKS + 2)]


@pytest.mark.parametrize("lost", [LOST_CHUNKS, LOST_CHUNKS + 1])
def test_holder_that_lost_many_acknowledged_chunks_fails(lost: int) -> None:
    """It may lack a few that scrubbing removed."""
    disk = holder_group.HolderGroup(DISK, [Client(lambda: None)], [ids.HostId("h2")])
    if lost <= LOST_CHUNKS:
        assert disk.missing_names(MANY[:lost]) == set(MANY[:lost])
    else:
        with pytest.raises(holder_group.HolderLost, match="lacks 129 chunks that it acknowledged"):
            disk.missing_names(MANY)
    assert disk.filled_holders == {"h2"}


def test_lost_chunks_are_counted_over_all_requests() -> None:
    limits = holder_group.HolderLimits(names_per_request=2)
    acknowledged = [ids.HostId("h2")]
    disk = holder_group.HolderGroup(DISK, [Client(lambda: None)], acknowledged, limits=limits)
    with pytest.raises(holder_group.HolderLost):
        disk.missing_names(MANY)


@pytest.mark.parametrize(("fast_s", "slow_s"), [(0.0, 0.3), (0.2, 0.3), (0.0, 0.0)])
def test_slow_holder_is_named_when_the_others_wait(fast_s: float, slow_s: float) -> None:
    """A slow holder takes over twice the fastest one's time and ``slow_s`` more."""
    clients = [Client(lambda: time.sleep(fast_s)), Client(lambda: time.sleep(slow_s), "h3")]
    disk = limited(*clients, slow_s=0.5)
    disk.put_manifest(b"sealed")
    assert disk.slow_holder() == ""
    for _ in range(2):
        disk.put_manifest(b"sealed")
    assert disk.slow_holder() == ("h3" if slow_s > 2 * fast_s else "")


def test_new_holder_lacks_all_chunks_and_is_filled_by_a_put() -> None:
    disk = holder_group.HolderGroup(DISK, [Client(lambda: None)])
    assert disk.missing_names(MANY) == set(MANY) and disk.filled_holders == set()
    disk.put(NAMES, bytes, MIB)
    assert disk.filled_holders == {"h2"}


def test_slow_deletion_fails_the_holder() -> None:
    client = Client(lambda: time.sleep(0.1))
    with pytest.raises(holder_group.HolderFailed, match="too slow"):
        limited(client, slack_s=0.5).retain_only(
            [object_names.RetainedNames(object_names.ALL_FIRST_BYTES, NAMES)]
        )
    assert client.is_aborted


def test_failed_thread_start_aborts_requests_to_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread for the second holder cannot start; the first one's request is aborted."""
    first, begun = Client(lambda: ended.wait(30.0)), list[threading.Thread]()
    second, ended = Client(lambda: None, "h3"), threading.Event()
    monkeypatch.setattr(first, "abort", ended.set)
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with pytest.raises(vault_client.HostFault, match="can't start new thread"):
        holder_group.HolderGroup(DISK, [first, second]).put_manifest(b"sealed")
    begun[0].join(5.0)
    assert ended.is_set() and not begun[0].is_alive()
