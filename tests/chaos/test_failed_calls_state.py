# SPDX-License-Identifier: Apache-2.0
"""Each file system call on a state file fails: the old state or the new one is left."""

import abc
import contextlib
import functools
import json
import os
import pathlib

import msgspec
import pytest

from acstor_agent.cloud import ring_store
from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_agent.core.images import pin_record
from acstor_agent.core.mount import inodes
from acstor_agent.disks import restore_files
from acstor_agent.images.boot import trace_spool
from acstor_agent.images.keep import pin_file
from acstor_agent.mount import mount_record
from acstor_agent.process import folders
from acstor_agent.process import host_secret
from acstor_checkpoint.capture import disk_states
from acstor_common import errors
from acstor_common.disks import recovery_marker
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_common.wire import trace_message
from acstor_glance.boot import trace_store
from acstor_nova import mirror_link
from tests.fakes import cloud_keys
from tests.fakes import failing_calls

pytestmark = failing_calls.marks

H1 = ids.HostId("h1")
IMAGES = [ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1{n}") for n in range(3)]


class StateFile(abc.ABC):
    """Files whose state is 0 (none), 1 or 2."""

    save_errors: tuple[type[Exception], ...] = ()  # that its writer may raise
    load_errors: tuple[type[Exception], ...] = ()  # that its reader may raise
    is_certain = True  # a write without error is one that succeeded

    @abc.abstractmethod
    def save(self, folder: pathlib.Path, state: int) -> None:
        """Change the state from the one before."""

    @abc.abstractmethod
    def load(self, folder: pathlib.Path) -> int:
        """Return the state, as after a restart."""

    def check_files(self, folder: pathlib.Path) -> None:
        """Check that no file of a failed writer is left after a restart."""
        with folders.lock_folders([folder]):
            pass
        assert not list(folder.rglob(f"{atomic_file.INCOMING}*"))


class Pins(StateFile):
    save_errors = (OSError,)

    def save(self, folder, state):
        (folder / "maps").mkdir(exist_ok=True)
        pin_file.PinFile(folder).write({IMAGES[0]: pin_record.ImagePin(IMAGES[0], state)})

    def load(self, folder):
        found = pin_file.PinFile(folder).read()
        if found is None:
            assert pin_file.PinFile(folder).pins_of_attached() == {}
            return 0
        return int(found[IMAGES[0]].since_s)


class VnodeTable(StateFile):
    is_certain = False  # the agent goes on with the table in memory

    def save(self, folder, state):
        self._open(folder).set_operator_table(vnode_table(state))

    def load(self, folder):
        return self._open(folder).current_ring().epoch

    def _open(self, folder):
        return ring_store.RingStore(folder / "ring.json", None)


def vnode_table(epoch: int) -> bytes:
    host = {"host": "h1", "address": "10.0.0.1:7201", "vnodes": 10}
    return json.dumps({"version": 1, "epoch": epoch, "hosts": [host]}).encode()


@functools.cache
def identity_sets() -> list[identity_files.IdentitySet]:
    keys = cloud_keys.CloudKeys()
    return [identity_files.IdentitySet(b"", b"", b"", b""), keys.host("h1"), keys.host("h1")]


class Identity(StateFile):
    save_errors = (OSError,)

    def save(self, folder, state):
        identity_files.write(folder / "identity", identity_sets()[state])

    def load(self, folder):
        files = identity_files.files_in(folder / "identity")
        found = identity_files.IdentityFiles(H1, files).current_credentials()
        known = [one.key for one in identity_sets()]
        assert bool(found.certificate) == bool(found.key)
        return known.index(found.key)

    def check_files(self, folder):
        for state in (1, 2):
            Identity.save(self, folder, state)
        sets = list(folder.glob(f"{identity_files.SET_PREFIX}*"))
        assert len(sets) == 2 and not list(folder.rglob(f"{atomic_file.INCOMING}*"))


class IdentityByHand(Identity):
    def save(self, folder, state):
        if state == 1:
            names = (path.name for path in identity_files.files_in(folder))
            made = dict(zip(names, identity_sets()[1], strict=True))
            atomic_file.write_secrets(folder / "new", made)
            (folder / "new").rename(folder / "identity")  # an operator's own way
        else:
            super().save(folder, state)


class Captured(StateFile):
    save_errors = (errors.Unusable, OSError)
    load_errors = (OSError,)  # no folder

    def save(self, folder, state):
        states = disk_states.DiskStates(folder)
        new = states.load(IMAGES[0]) or disk_states.new_state(IMAGES[1], 65536)
        new.number = state
        states.save(IMAGES[0], new)
        new.manifest = states.save_manifest(IMAGES[0], bytes([state]) * 100)
        states.save(IMAGES[0], new)
        states.retain_only(IMAGES[0], {new.manifest})

    def load(self, folder):
        states = disk_states.DiskStates(folder)
        found = states.load(IMAGES[0])
        if found is None:
            return 0
        if found.manifest:
            raw = (folder / IMAGES[0] / f"{found.manifest}.manifest").read_bytes()
            assert raw in (bytes([n]) * 100 for n in (1, 2))
        return found.number

    def check_files(self, folder):
        states = disk_states.DiskStates(folder)
        if (found := states.load(IMAGES[0])) is not None:
            states.retain_only(IMAGES[0], {found.manifest})
            names = {path.name for path in (folder / IMAGES[0]).iterdir()}
            assert names <= {"state.json", f"{found.manifest}.manifest"}


class RestoredDisk(StateFile):
    save_errors = load_errors = (OSError,)
    disk = disk_header.parse_disk_id(IMAGES[0])
    record = restore_record.RestoreRecord(
        disk, *IMAGES[1:], H1, IMAGES[1], bytes(32),
        (restore_record.CheckpointHolder(H1, "10.0.0.1:7205"),), bytes(range(32)),
    )  # fmt: skip

    def save(self, folder, state):
        if state == 1:
            restore_files.write(folder, self.record, b"sealed" * 100)
        else:
            restore_files.mark_complete(folder, self.record)

    def load(self, folder):
        found = restore_files.read(folder, self.disk)
        if found is None:
            return 0
        if found.is_complete:
            return 2
        assert found == self.record
        assert restore_files.read_manifest(folder, self.disk) == b"sealed" * 100
        return 1


class BootTraces(StateFile):
    """The agent's folder of traces."""

    is_certain = False  # it logs the loss of a trace
    load_errors = (OSError,)  # of the test's own reads

    def save(self, folder, state):
        trace_spool.TraceSpool(folder).write(trace(state))

    def load(self, folder):
        trace_spool.TraceSpool(folder)
        found = [path.read_bytes() for path in folder.glob(f"*{trace_spool.ENDING}")]
        return len([msgspec.json.decode(raw, type=trace_message.BootTrace) for raw in found])


class StoredTraces(StateFile):
    """The listener's folder of traces."""

    save_errors = load_errors = (OSError,)

    def save(self, folder, state):
        trace_store.TraceStore(folder).add_trace(trace(state))

    def check_files(self, folder):
        """Leftovers stay: another listener of this host may write them."""

    def load(self, folder):
        store = trace_store.TraceStore(folder)
        assert set(store.list_images()) <= {IMAGES[0]}
        return len(store.list_traces(IMAGES[0]))


def trace(number: int) -> trace_message.BootTrace:
    return trace_message.BootTrace(
        host=f"h{number}", image_id=IMAGES[0], size_bytes=1 << 20, chunk_bytes=65536, trace=(1,)
    )


class RecoveryMarker(StateFile):
    save_errors = load_errors = (OSError,)

    def save(self, folder, state):
        recovery_marker.write(str(folder / "disk"), IMAGES[state])

    def load(self, folder):
        found = recovery_marker.read(str(folder / "disk"))
        return 0 if found is None else IMAGES.index(found)


class MirrorLink(StateFile):
    save_errors = (OSError,)

    def save(self, folder, state):
        path = mirror_link.mirror_path("/mirror", IMAGES[state])
        mirror_link.make_link(path, str(folder / "link"))

    def load(self, folder):
        found = mirror_link.image_of(str(folder / "link"))
        return 0 if found is None else IMAGES.index(found)


STATE_FILES = [
    Pins, VnodeTable, Identity, IdentityByHand, Captured, RestoredDisk, BootTraces, StoredTraces,
    RecoveryMarker, MirrorLink,
]  # fmt: skip
CHANGES = [(subject, after) for subject in STATE_FILES for after in (1, 2)]
CHANGES.remove((IdentityByHand, 1))
each_change = pytest.mark.parametrize(
    ("kind", "after"), CHANGES, ids=[f"{kind.__name__}-{after}" for kind, after in CHANGES]
)


def prepared(subject: StateFile, folder: pathlib.Path, state: int) -> None:
    for number in range(1, state + 1):
        subject.save(folder, number)


@each_change
def test_state_is_the_old_or_the_new_one_after_a_failed_call(tmp_path, kind, after):
    subject = kind()
    for calls in failing_calls.each_call(tmp_path, least=12):
        prepared(subject, calls.folder, after - 1)
        is_saved = False
        with calls:
            try:
                subject.save(calls.folder, after)
                is_saved = subject.is_certain or not calls.hit
            except subject.save_errors:
                assert calls.hit
            if not calls.hit or calls.fault.is_lasting:
                load_with_fault(subject, calls)
        found = subject.load(calls.folder)
        assert found == after or (not is_saved and found == after - 1)
        subject.check_files(calls.folder)


def load_with_fault(subject: StateFile, calls: failing_calls.FailingCalls) -> None:
    try:
        subject.load(calls.folder)
    except subject.load_errors:
        assert calls.hit


@each_change
def test_state_is_the_old_or_the_new_one_after_a_kill_at_a_call(tmp_path, kind, after):
    subject = kind()

    def work(folder, tell):
        subject.save(folder, after)
        tell("saved")

    for folder, reported, is_killed in failing_calls.each_kill(
        tmp_path, 3, work, prepare=lambda folder: prepared(subject, folder, after - 1)
    ):
        found = subject.load(folder)
        assert found == after or (not reported and found == after - 1)
        assert is_killed or reported
        subject.check_files(folder)


def test_host_secret_is_kept_after_a_failed_call(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=20):
        made = None
        with calls:
            for _ in range(2):
                try:
                    found = host_secret.load(calls.folder)
                except errors.Unusable:
                    assert calls.hit
                else:
                    made = made or found
                    assert found == made
        kept = host_secret.load(calls.folder)
        assert made is None or kept == made
        assert host_secret.load(calls.folder) == kept


def test_host_secret_is_kept_after_a_kill_at_a_call(tmp_path):
    for folder, reported, _ in failing_calls.each_kill(
        tmp_path, 5, lambda folder, tell: tell(host_secret.load(folder))
    ):
        kept = host_secret.load(folder)
        assert reported in ([], [kept])
        assert host_secret.load(folder) == kept


def test_mount_record_has_its_facts_after_a_failed_call(tmp_path):
    begun = mount_record.MountRecord.begin_record
    for calls in failing_calls.each_call(tmp_path, 8, inside=f"/memfd:{mount_record.NAME}"):
        record = answered = None
        with calls, contextlib.suppress(OSError):
            record = begun(b"offer")
            record.record_init_answer(b"yes")
            answered = record.init_answer()
        assert calls.hit or answered == b"yes"
        if record is not None:
            again = mount_record.MountRecord(os.dup(record.fd))
            assert again.mounted == mount_record.Mounted(inodes.LAYOUT, b"offer")
            assert again.init_answer() in (b"yes", answered)
            again.record_init_answer(b"yes")
            assert record.init_answer() == b"yes"
            again.close()
            record.close()
        assert not open_records()


def open_records() -> list[str]:
    descriptors = pathlib.Path("/proc/self/fd").iterdir()
    return [path.name for path in descriptors if "memfd:acstor" in os.path.realpath(path)]


def test_mount_record_has_its_facts_after_a_kill_at_a_call(tmp_path):
    record = mount_record.MountRecord.begin_record(b"offer")
    size = os.fstat(record.fd).st_size
    inside = f"/memfd:{mount_record.NAME}"

    def work(_folder, tell):
        record.record_init_answer(b"yes")
        tell("answered")

    for _folder, reported, is_killed in failing_calls.each_kill(tmp_path, 3, work, inside=inside):
        again = mount_record.MountRecord(os.dup(record.fd))
        assert again.init_answer() == b"yes" or not reported
        assert reported or is_killed
        again.close()
        os.ftruncate(record.fd, size)
    record.close()


def test_identity_and_operator_table_are_read_again_after_a_failed_call(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=20):
        identity_files.write(calls.folder / "identity", identity_sets()[1])
        table = calls.folder / "table.json"
        table.write_bytes(vnode_table(1))
        paths = identity_files.files_in(calls.folder / "identity")
        files = identity_files.IdentityFiles(H1, paths)
        with calls:
            files.current_credentials()
            keeper = ring_store.RingStore(calls.folder / "ring.json", table)
        files.invalidate()
        keeper._check_file()
        assert files.current_credentials().key == identity_sets()[1].key
        assert keeper.current_ring().epoch == 1
