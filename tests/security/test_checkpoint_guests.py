# SPDX-License-Identifier: Apache-2.0
"""A malicious guest's QEMU ends at most its own checkpoints; libvirt is real."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("libvirt")

import libvirt
import libvirt_qemu

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import garbage_collection
from acstor_checkpoint.schedule import worker_pool
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import supervision
from tests.lab import checkpoints
from tests.lab import domain as domain_lab
from tests.lab import runs
from tests.lab.openstack import machine

IMPATIENT = libvirt_link.LibvirtLimits(call_s=2.0)
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
    """Yield two running guests: the attacker's, and the victim's."""
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


def impatient(owner: checkpoints.Host) -> checkpoints.Host:
    """Return the host again, with a short timeout of calls to libvirt."""
    owner.options.libvirt = IMPATIENT
    return owner.started()


@pytest.fixture
def watching(owner: checkpoints.Host) -> Iterator[None]:
    """Monitor scratch files, as the product does."""
    ended = threading.Event()
    thread = supervision.start("scratch files", lambda: owner.scratch.run(ended), ended)
    yield
    ended.set()
    thread.join(30.0)


@contextlib.contextmanager
def working(taker: worker_pool.WorkerPool) -> Iterator[None]:
    """Run the workers of a daemon in the block, as the product does."""
    ended = threading.Event()
    threads = [
        supervision.start("checkpoints", taker.run, ended) for _ in range(worker_pool.WORKERS)
    ]
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


@pytest.mark.expect_log("cannot be removed: .*[Ii]s a directory")
def test_folder_in_place_of_a_scratch_file_ends_no_checkpoint(
    owner: checkpoints.Host, guests: list[domain_lab.Domain]
) -> None:
    """QEMU can create a folder where the daemon expects to remove a scratch file."""
    attacker, victim = guests
    state = disk_states.new_state(ids.ImageId(attacker.image), CHUNK)
    state.obsolete_bitmaps = ["acstor-0123456789ab"]
    owner.states.save(attacker.instance, state)
    for path in libvirt_domain._files(owner.sockets, owner.sockets, state.obsolete_bitmaps[0]):
        path.mkdir()
    with working(owner.daemon()):
        runs.wait_for(lambda: taken(owner, victim), 60.0, "the victim's checkpoint", str)
        runs.wait_for(lambda: taken(owner, attacker), 60.0, "the attacker's checkpoint", str)


def test_socket_replaced_by_another_guest_is_refused(
    owner: checkpoints.Host, guests: list[domain_lab.Domain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All QEMUs run as one user; without other confinement one can replace another's socket."""
    attacker, victim = guests
    moment = libvirt_domain.Domain.export_snapshot

    @contextlib.contextmanager
    def replaced(
        domain: libvirt_domain.Domain, bitmap: str, since: str, folder: pathlib.Path
    ) -> Iterator[libvirt_domain.Snapshot]:
        with moment(domain, bitmap, since, folder) as shown:
            os.rename(theirs.export.path, shown.export.path)
            yield shown

    servers = {server.instance: server for server in owner.domains.list_servers().servers}
    of_attacker = owner.domains.find_domain(servers[attacker.instance])
    with of_attacker.export_snapshot("acstor-0123456789ab", "", owner.sockets) as theirs:
        monkeypatch.setattr(libvirt_domain.Domain, "export_snapshot", replaced)
        with pytest.raises(errors.Unusable, match=f"process {attacker.pid()} listens there"):
            owner.taker.take_checkpoint(servers[victim.instance])
    monkeypatch.undo()
    assert owner.registered() == []
    owner.taker.take_checkpoint(servers[victim.instance])
    assert taken(owner, victim)


def scratch_bytes(owner: checkpoints.Host) -> int:
    return sum(path.stat().st_blocks * 512 for path in owner.sockets.glob("*.scratch"))


def server_of(owner: checkpoints.Host, guest: domain_lab.Domain) -> domain_xml.Server:
    """Return the server of a guest."""
    return next(s for s in owner.domains.list_servers().servers if s.instance == guest.instance)


def put_after(
    monkeypatch: pytest.MonkeyPatch, overwrite: Callable[[], None], pause_s: float = 0.0
) -> None:
    """Run ``overwrite`` for each part, one after the other, before a vault gets it.

    :param pause_s: additional pause of each, concurrent with the others

    """
    put, lock = vault_client.VaultClient.put, threading.Lock()

    def put_later(*words: Any) -> None:
        with lock:
            overwrite()
        time.sleep(pause_s)
        put(*words)

    monkeypatch.setattr(vault_client.VaultClient, "put", put_later)


@pytest.mark.allow_log("the capture is aborted")
@pytest.mark.parametrize("is_stuck", [False, True])
def test_scratch_file_of_an_overwriting_guest_stays_below_its_limit(
    owner: checkpoints.Host,
    guests: list[domain_lab.Domain],
    watching: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_stuck: bool,
) -> None:
    """At half of the limit the read part is kept; at all of it the capture ends at once."""
    guest, most = guests[0], list[int]()
    monkeypatch.setattr(owner.scratch, "_limit_bytes", 16 * MIB)
    guest.write(0, 15 * MIB, 7)

    def overwrite() -> None:
        for at in range(15 if is_stuck else 6) if not most else ():
            guest.write(at * MIB, MIB, 8)
            time.sleep(0.1)
            most.append(scratch_bytes(owner))

    put_after(monkeypatch, overwrite, pause_s=2 * scratch_files.CHECK_INTERVAL_S)
    server = server_of(owner, guest)
    with pytest.raises(snapshot_window.PartialCapture):
        owner.taker.take_checkpoint(server)
    assert 6 * MIB < max(most) < 14 * MIB and scratch_bytes(owner) == 0
    assert (most[-1] == 0) is is_stuck  # the job ended while the vault was slow
    assert not guest.is_busy()
    assert ("the capture is aborted: it has" in caplog.text) is is_stuck
    for _ in range(3):
        with contextlib.suppress(snapshot_window.PartialCapture):
            owner.taker.take_checkpoint(server)
    assert taken(owner, guest)


def test_capture_without_progress_is_reported_as_overwritten(
    owner: checkpoints.Host,
    guests: list[domain_lab.Domain],
    watching: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part is overwritten as fast as it is read; once the guest stops, captures succeed."""
    guest, is_busy = guests[0], list[bool]()
    monkeypatch.setattr(owner.scratch, "_limit_bytes", 16 * MIB)
    guest.write(0, 15 * MIB, 7)

    def overwrite() -> None:
        while is_busy:
            is_busy.pop()
            guest.write(0, 6 * MIB, 8 + owner.states.load(guest.instance).number)
            time.sleep(2 * scratch_files.CHECK_INTERVAL_S)

    put_after(monkeypatch, overwrite)
    server = server_of(owner, guest)
    kinds = []
    for _ in range(3):
        is_busy.append(True)
        with pytest.raises(snapshot_window.PartialCapture) as cut:
            owner.taker.take_checkpoint(server)
        kinds.append(type(cut.value))
    assert kinds == [
        snapshot_window.PartialCapture,
        snapshot_window.Overwritten,
        snapshot_window.Overwritten,
    ]
    assert "scratch_limit_bytes" in str(cut.value)
    owner.taker.take_checkpoint(server)
    assert taken(owner, guest)


@pytest.mark.expect_log("libvirt does not answer within")
def test_qemu_with_a_hung_monitor_delays_no_other_server(
    owner: checkpoints.Host, guests: list[domain_lab.Domain]
) -> None:
    owner = impatient(owner)
    attacker, victim = guests
    owner.domains.list_servers()
    os.kill(attacker.pid(), signal.SIGSTOP)
    try:
        with working(owner.daemon()):
            runs.wait_for(lambda: taken(owner, victim), 20.0, "the victim's checkpoint", str)
            time.sleep(3.0)
            assert not taken(owner, attacker)
            began_s = time.monotonic()
            assert (
                len(owner.domains.list_servers().servers) == 2 and time.monotonic() - began_s < 2.0
            )
            os.kill(attacker.pid(), signal.SIGCONT)
            runs.wait_for(lambda: taken(owner, attacker), 90.0, "the attacker's checkpoint", str)
    finally:
        os.kill(attacker.pid(), signal.SIGCONT)


def is_answered(owner: checkpoints.Host, server: domain_xml.Server) -> bool:
    """Return whether libvirt responds again to calls about a running server."""
    with contextlib.suppress(errors.Unusable):
        return owner.domains.find_domain(server).is_active()
    return False


@pytest.mark.allow_log("libvirt does not describe it now")
def test_qemu_that_blocks_another_client_delays_one_list_of_servers(
    owner: checkpoints.Host, guests: list[domain_lab.Domain]
) -> None:
    """libvirt 11 describes no domain while any client's call waits for its QEMU."""
    owner = impatient(owner)
    attacker = guests[0]
    servers = owner.domains.list_servers().servers
    server = next(s for s in servers if s.instance == attacker.instance)
    other = domain_list.Domains(owner.domains.uri, owner.domains.base_of, limits=IMPATIENT)
    domain = other.find_domain(server)
    os.kill(attacker.pid(), signal.SIGSTOP)
    try:
        with pytest.raises(errors.Unusable), domain.export_snapshot("acstor-1", "", owner.sockets):
            pass
        with contextlib.suppress(errors.Unusable):
            owner.domains.list_servers()
        began_s = time.monotonic()
        assert owner.domains.list_servers().servers == servers and time.monotonic() - began_s < 1.0
    finally:
        os.kill(attacker.pid(), signal.SIGCONT)
    runs.wait_for(lambda: is_answered(owner, server), 20.0, "an answer of the domain", str)


@pytest.mark.expect_log("libvirt does not describe it now")
@pytest.mark.expect_log("libvirt does not answer within")
def test_hung_qemu_at_the_start_of_the_daemon_keeps_its_checkpoint_data(
    owner: checkpoints.Host,
    guests: list[domain_lab.Domain],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in libvirt 11, the domain's XML waits for QEMU; a first checkpoint was incomplete."""
    attacker, victim = guests
    disks, kept = {}, dict[str, set[str]]()
    for guest in guests:
        record = owner.taker.take_checkpoint(server_of(owner, guest))
        state = owner.states.load(guest.instance)
        assert state is not None
        state.is_partial = True
        owner.states.save(guest.instance, state)
        disks[guest.instance] = record.vault_disk
    owner.options.libvirt = IMPATIENT
    describe = libvirt.virDomain.XMLDesc

    def wait_and_describe(domain: Any, flags: int = 0) -> str:
        if domain.UUIDString() == attacker.instance:
            libvirt_qemu.qemuMonitorCommand(domain, '{"execute": "query-status"}', 0)
        return str(describe(domain, flags))

    monkeypatch.setattr(libvirt.virDomain, "XMLDesc", wait_and_describe)
    os.kill(attacker.pid(), signal.SIGSTOP)
    started = owner.started()
    daemon = started.daemon()
    collection = garbage_collection.GarbageCollection(
        ids.HostId(owner.options.owner),
        started.states,
        owner.places,
        lambda: kept,
        daemon,
        owner.ended,
    )
    try:
        with working(daemon):
            runs.wait_for(lambda: daemon.list_servers() is not None, 20.0, "the servers", str)
            assert collection.collect()
            assert sorted(started.states.list_instances()) == sorted(disks)
            assert held_disks(owner) == set(disks.values())
            assert [one.instance_id for one in daemon._failing()] == [attacker.instance]
            victim.domain.destroy()
            victim.domain.undefine()
            runs.wait_for(
                lambda: victim.instance not in (daemon.list_servers() or ()), 20.0, "it", str
            )
            assert collection.collect()
            assert started.states.list_instances() == [attacker.instance]
            assert held_disks(owner) == {disks[attacker.instance]}
            os.kill(attacker.pid(), signal.SIGCONT)
            runs.wait_for(lambda: daemon._failing() == [], 60.0, "its description", str)
    finally:
        os.kill(attacker.pid(), signal.SIGCONT)


def held_disks(owner: checkpoints.Host) -> set[str]:
    """Return the disks of a host of which both vaults hold objects."""
    found = []
    for holder in owner.places.other_hosts():
        with owner.places.client_of(holder) as client:
            found.append(set(client.list_disks(ids.HostId(owner.options.owner))))
    assert found[0] == found[1]
    return set(found[0])


def test_backup_job_that_starts_after_its_timeout_is_ended(
    owner: checkpoints.Host, guests: list[domain_lab.Domain]
) -> None:
    """Its scratch file would grow without a monitor."""
    owner = impatient(owner)
    attacker, bitmap = guests[0], "acstor-0123456789ab"
    server = server_of(owner, attacker)
    domain = owner.domains.find_domain(server)
    os.kill(attacker.pid(), signal.SIGSTOP)
    try:
        with pytest.raises(errors.Unusable, match="does not answer within"):
            with domain.export_snapshot(bitmap, "", owner.sockets):
                pass
    finally:
        os.kill(attacker.pid(), signal.SIGCONT)
    runs.wait_for(lambda: attacker.bitmaps() == [bitmap], 30.0, "the beginning of the job", str)
    runs.wait_for(lambda: not attacker.is_busy(), 5.0, "the end of the job", str)
    runs.wait_for(lambda: is_answered(owner, server), 5.0, "an answer of the domain", str)


@pytest.mark.expect_log("the capture is aborted: it has")
def test_scratch_file_is_monitored_from_the_start_of_its_job(
    owner: checkpoints.Host,
    guests: list[domain_lab.Domain],
    watching: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A guest overwrites its disk before a client has connected to the export."""
    guest, export, most = guests[0], libvirt_domain.Domain._export, list[int]()
    monkeypatch.setattr(owner.scratch, "_limit_bytes", 16 * MIB)
    guest.write(0, 15 * MIB, 7)

    def export_later(domain: libvirt_domain.Domain, socket: str) -> Any:
        for at in range(15):
            guest.write(at * MIB, MIB, 8)
            most.append(scratch_bytes(owner))  # before the monitor may have ended the job
            time.sleep(0.2)
            most.append(scratch_bytes(owner))
        return export(domain, socket)

    monkeypatch.setattr(libvirt_domain.Domain, "_export", export_later)
    server = server_of(owner, guest)
    with pytest.raises(scratch_files.ScratchFull, match="at most"):
        owner.taker.take_checkpoint(server)
    assert 8 * MIB < max(most) < 14 * MIB and most[-1] == 0 and not guest.is_busy()


@pytest.mark.allow_log("no checkpoint")
@pytest.mark.allow_log("did not end")
def test_server_that_ends_during_its_capture_does_not_stop_the_daemon(
    owner: checkpoints.Host, guests: list[domain_lab.Domain], monkeypatch: pytest.MonkeyPatch
) -> None:
    attacker, victim = guests
    put, lock = vault_client.VaultClient.put, threading.Lock()

    def kill_first(*words: Any) -> None:
        with lock:
            if attacker.domain.isActive() and attacker.is_busy():
                attacker.kill()
        put(*words)

    monkeypatch.setattr(vault_client.VaultClient, "put", kill_first)
    attacker.write(0, 12 * MIB, 9)
    with working(owner.daemon()):
        runs.wait_for(lambda: taken(owner, victim), 60.0, "the victim's checkpoint", str)
        runs.wait_for(lambda: not attacker.domain.isActive(), 60.0, "the end of the guest", str)
    assert not taken(owner, attacker) and list(owner.sockets.iterdir()) == []


@pytest.fixture
def short_folder() -> Iterator[pathlib.Path]:
    """Yield a folder whose sockets have short addresses, also in ``/proc/PID/root``."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield pathlib.Path(name)


@pytest.mark.expect_log("the capture is aborted: less than")
def test_full_disk_ends_the_capture_before_a_guest_write_fails(
    short_folder: pathlib.Path,
    owner: checkpoints.Host,
    guests: list[domain_lab.Domain],
    watching: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """QEMU fails a guest's write if the scratch file has no space for it."""
    guest = guests[0]
    guest.write(0, 15 * MIB, 7)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(short_folder)]
    subprocess.run([*guest.host.enter(), *mount], check=True)
    small = pathlib.Path(f"/proc/{guest.host.pid}/root{short_folder}")
    monkeypatch.setattr(owner.taker, "_settings", owner.taker._settings._replace(folder=small))
    monkeypatch.setattr(owner.taker._snapshots, "_folder", small)
    monkeypatch.setattr(owner.scratch, "_folder", small)
    monkeypatch.setattr(owner.scratch, "_spare_bytes", 16 * MIB)
    left = list(range(15))

    def overwrite() -> None:
        while left:
            guest.write(left.pop() * MIB, MIB, 8)
            time.sleep(0.1)

    put_after(monkeypatch, overwrite)
    server = server_of(owner, guest)
    with pytest.raises(scratch_files.ScratchFull, match="bytes are free beside it"):
        owner.taker.take_checkpoint(server)
    assert not guest.is_busy()
    subprocess.run([*guest.host.enter(), "umount", str(short_folder)], check=True)
    monkeypatch.undo()
    record = owner.taker.take_checkpoint(server)
    assert owner.rebuilt(record, BASE)[0] == (bytes([8]) * 15 * MIB).ljust(DISK_BYTES, b"\0")
