# SPDX-License-Identifier: Apache-2.0
"""A guest's QEMU that is the attacker's ends its own checkpoints at most; libvirt is real."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("libvirt")

from acstor_checkpoint import daemon
from acstor_checkpoint import domains
from acstor_checkpoint import states
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids
from acstor_common import supervised
from tests.lab import checkpoints
from tests.lab import domain as domain_lab
from tests.lab import runs
from tests.lab.openstack import machine

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
BASE = bytes(2 * MIB)
DISK_BYTES = 16 * MIB


@pytest.fixture(scope="module")
def host() -> Iterator[machine.Machine]:
    with domain_lab.libvirt_host() as running:
        yield running


@pytest.fixture
def guests(host: machine.Machine, tmp_path: pathlib.Path) -> Iterator[list[domain_lab.Domain]]:
    """Yield two guests that run: of the attacker, and of the victim."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("attacker", "victim"):
            (tmp_path / name).mkdir()
            guest = domain_lab.Domain(host, tmp_path / name, BASE, DISK_BYTES)
            made.append(stack.enter_context(contextlib.closing(guest)))
            guest.domain.create()
            guest.write(0, 4 * CHUNK, 7)
        yield made


@pytest.fixture
def owner(guests: list[domain_lab.Domain], tmp_path: pathlib.Path) -> Iterator[checkpoints.Host]:
    with checkpoints.Lab(tmp_path / "lab", guests[0].host, guests[1].mirrors, 2) as lab:
        for guest in guests:
            lab.know(guest, CHUNK)
        mirrors = [str(guest.mirrors) for guest in guests]
        yield checkpoints.Host(lab.options, mirrors)


@contextlib.contextmanager
def working(taker: daemon.Daemon) -> Iterator[None]:
    """Run the workers of a daemon in the block, as the product does."""
    ended = threading.Event()
    threads = [supervised.start("checkpoints", taker.run, ended) for _ in range(daemon.WORKERS)]
    try:
        yield
    finally:
        ended.set()
        taker.stop()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()


def taken(owner: checkpoints.Host, guest: domain_lab.Domain) -> bool:
    return any(one.instance_id == guest.instance for one in owner.registered())


@pytest.mark.expect_log("stays: .*[Ii]s a directory")
def test_folder_in_the_place_of_a_scratch_file_ends_no_checkpoint(
    owner: checkpoints.Host, guests: list[domain_lab.Domain]
) -> None:
    """QEMU can write to the folder of scratch files; a former daemon was to remove one there."""
    attacker, victim = guests
    state = states.new(ids.ImageId(attacker.image), CHUNK)
    state.begun = ["acstor-0123456789ab"]
    owner.states.save(attacker.instance, state)
    for path in domains._files(owner.sockets, owner.sockets, state.begun[0]):
        path.mkdir()
    with working(owner.daemon()):
        runs.wait_for(lambda: taken(owner, victim), 60.0, "the victim's checkpoint", str)
        runs.wait_for(lambda: taken(owner, attacker), 60.0, "the attacker's checkpoint", str)


def test_socket_that_another_guest_puts_in_the_place_is_refused(
    owner: checkpoints.Host, guests: list[domain_lab.Domain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All QEMUs are one user; where nothing else confines them, one can replace another's."""
    attacker, victim = guests
    moment = domains.Domain.moment

    @contextlib.contextmanager
    def replaced(
        domain: domains.Domain, bitmap: str, since: str, folder: pathlib.Path
    ) -> Iterator[domains.Moment]:
        with moment(domain, bitmap, since, folder) as shown:
            os.rename(theirs.export.path, shown.export.path)
            yield shown

    servers = {server.instance: server for server in owner.domains.present()}
    of_attacker = owner.domains.domain(servers[attacker.instance])
    with of_attacker.moment("acstor-0123456789ab", "", owner.sockets) as theirs:
        monkeypatch.setattr(domains.Domain, "moment", replaced)
        with pytest.raises(errors.Unusable, match=f"process {attacker.pid()} listens there"):
            owner.taker.take(servers[victim.instance])
    monkeypatch.undo()
    assert owner.registered() == []
    owner.taker.take(servers[victim.instance])
    assert taken(owner, victim)
