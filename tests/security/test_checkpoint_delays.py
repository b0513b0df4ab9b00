# SPDX-License-Identifier: Apache-2.0
"""A hostile vault does not delay a server's next checkpoint; libvirt, guests and TLS are real."""

import contextlib
import pathlib
import ssl
from collections.abc import Iterator

import pytest

pytest.importorskip("libvirt")

from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.schedule import worker_pool
from acstor_common.model import checkpoint_intervals
from acstor_common.model import geometry
from acstor_common.util import supervision
from tests.fakes import hostile_holder
from tests.lab import checkpoints
from tests.lab import domain as domain_lab
from tests.lab import runs

CHUNK = geometry.DEFAULT_CHUNK_BYTES
BASE = bytes(2 * geometry.MIB)


@pytest.fixture
def guest(tmp_path: pathlib.Path) -> Iterator[domain_lab.Domain]:
    with domain_lab.libvirt_host() as host:
        made = domain_lab.Domain(host, tmp_path, BASE, 16 * geometry.MIB)
        with contextlib.closing(made):
            made.domain.create()
            made.write(0, 4 * CHUNK, 7)
            yield made


@pytest.fixture
def lab(guest: domain_lab.Domain, tmp_path: pathlib.Path) -> Iterator[checkpoints.Lab]:
    with checkpoints.Lab(tmp_path / "lab", guest.host, guest.mirrors, 2) as running:
        running.know(guest, CHUNK)
        yield running


@pytest.mark.expect_log("obsolete data is not deleted yet: h0 keeps no checkpoint: it is too slow")
def test_vault_that_trickles_its_response_to_a_deletion_is_avoided(
    lab: checkpoints.Lab,
    guest: domain_lab.Domain,
    tmp_path: pathlib.Path,
) -> None:
    """The checkpoint counts, other vaults do not wait again, and the slow one is named."""
    limits = holder_group.HolderLimits(slack_s=3.0, stalled_s=1.5)

    def answer(line: str, tls: ssl.SSLSocket) -> bytes:
        if "/keep" in line:
            hostile_holder.drip(tls, 0.3, hostile.ended)
        return b""

    with hostile_holder.HostileHolder(tmp_path / "h0", "h0", answer) as hostile:
        lab.options.vaults["h0"] = hostile.port
        owner = checkpoints.Host(lab.options, limits=limits)
        [server] = owner.domains.list_servers().servers
        record = owner.taker.take_checkpoint(server)
        assert [holder.host for holder in record.holders] == ["h0", "h1"]
        assert record.slow_holder == "h0"
        assert owner.places.costly == ["h0"]
        record = owner.taker.take_checkpoint(server)
    assert [holder.host for holder in record.holders] == ["h1", "h2"] and not record.slow_holder
    assert len(owner.registered()) == 2


@pytest.mark.expect_log("no checkpoint: h0 keeps no checkpoint: it is too slow")
@pytest.mark.parametrize("answers", [0, 1])
def test_silent_vault_delays_a_checkpoint_by_at_most_one_interval(
    lab: checkpoints.Lab, guest: domain_lab.Domain, tmp_path: pathlib.Path, answers: int
) -> None:
    """The vault never responds, or only once; the interval is the shortest possible one."""

    def answer(_line: str, _tls: ssl.SSLSocket) -> bytes:
        if len(hostile.asked) > answers:
            hostile.ended.wait(600.0)
        return b""

    shortest = nova_intervals.Intervals(of_servers={guest.instance: checkpoint_intervals.MIN_S})
    with hostile_holder.HostileHolder(tmp_path / "h0", "h0", answer) as hostile:
        lab.options.vaults["h0"] = hostile.port
        owner, late_s = checkpoints.Host(lab.options), list[float]()
        daemon = worker_pool.WorkerPool(
            owner.domains, owner.taker, owner.states, 0, fetch_intervals=lambda _failing: shortest
        )

        def is_taken() -> bool:
            late_s.extend(daemon.overdue_s().values())
            return bool(owner.registered())

        worker = supervision.start_once("a worker", daemon.run)
        try:
            runs.wait_for(is_taken, 120.0, "a checkpoint", str)
        finally:
            daemon.stop()
            worker.join(60.0)
    [record] = owner.registered()
    assert [name for name, _ in record.holders] == ["h1", "h2"]
    assert daemon.failures.by_holder() == {("h0", "holder_slow"): 1}
    assert 0.0 < max(late_s) <= checkpoint_intervals.MIN_S
    print(f"the checkpoint was late by {max(late_s):.1f} s")
