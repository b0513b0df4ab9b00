# SPDX-License-Identifier: Apache-2.0
"""A hostile holder holds up no server's next checkpoint; libvirt, guests and TLS are real."""

import contextlib
import pathlib
import ssl
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("libvirt")

from acstor_checkpoint.holders import holder_group
from acstor_common.model import geometry
from tests.fakes import hostile_holder
from tests.lab import checkpoints
from tests.lab import domain as domain_lab

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
def test_holder_that_drips_its_answer_to_a_deletion_is_left_alone(
    lab: checkpoints.Lab,
    guest: domain_lab.Domain,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint counts, the others do not wait for it twice, and it is named."""
    monkeypatch.setattr(holder_group, "STEP_S", 3.0)
    monkeypatch.setattr(holder_group, "STALLED_S", 1.5)

    def answer(line: str, tls: ssl.SSLSocket) -> bytes:
        if "/keep" in line:
            hostile_holder.drip(tls, 0.3, hostile.ended)
        return b""

    with hostile_holder.HostileHolder(tmp_path / "h0", "h0", answer) as hostile:
        lab.options.vaults["h0"] = hostile.port
        owner = checkpoints.Host(lab.options)
        [server] = owner.domains.present()
        record = owner.taker.take(server)
        assert [holder.host for holder in record.holders] == ["h0", "h1"]
        assert record.slow_holder == "h0"
        assert owner.places.costly == ["h0"]
        record = owner.taker.take(server)
    assert [holder.host for holder in record.holders] == ["h1", "h2"] and not record.slow_holder
    assert len(owner.registered()) == 2
