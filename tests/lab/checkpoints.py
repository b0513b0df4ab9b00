# SPDX-License-Identifier: Apache-2.0
"""A host that takes checkpoints, with the product's components.

A file stands in for the decision service.  As a process it runs until it is killed:

    python -m tests.lab.checkpoints OPTIONS.json
"""

import json
import pathlib
import sys
import threading
from collections.abc import Sequence
from typing import Any
from typing import Self

import msgspec

from acstor_checkpoint import agent_files
from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import take_checkpoint
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import worker_pool
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import addresses
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import checkpoint_copies
from tests.lab import domain as domain_lab
from tests.lab import vaults
from tests.lab.openstack import machine

OWNER = "owner"


class Options(msgspec.Struct):
    """Options of the process.

    :param vaults: ports of the possible holders, by name
    :param owner: the host's name
    """

    folder: str
    uri: str
    run_dir: str
    mirrors: str
    vaults: dict[str, int]
    copies: int = 2
    rate_bytes_s: int = 0
    interval_s: int = 3600
    longest_s: float = 600.0
    most_s: float = 600.0
    scratch_limit_bytes: int = 1 << 30
    owner: str = OWNER
    libvirt: libvirt_link.LibvirtLimits = libvirt_link.LIMITS


class Places:
    """Chooses holders by name, failed ones last."""

    def __init__(self, options: Options) -> None:
        self._vaults = options.vaults
        self._proof = vaults.credentials_of(pathlib.Path(options.folder, "identity"), OWNER)
        self.avoided: list[str] = []
        self.costly: list[str] = []

    def choose_holders(
        self, disk: ids.ImageId, copies: int, current: Any
    ) -> list[checkpoint_record.VaultHolder]:
        order = sorted(self._vaults, key=lambda name: (name in self.avoided, name))
        return [
            checkpoint_record.VaultHolder(ids.HostId(name), f"127.0.0.1:{self._vaults[name]}")
            for name in order[:copies]
        ]

    def other_hosts(self) -> list[checkpoint_record.VaultHolder]:
        return self.choose_holders(ids.ImageId(""), len(self._vaults), [])

    def client_of(self, holder: checkpoint_record.VaultHolder) -> vault_client.VaultClient:
        address = addresses.parse(holder.address)
        return vault_client.VaultClient(holder.host, address, self._proof)

    def record_failure(self, holder: ids.HostId, *, is_costly: bool) -> None:
        self.avoided.append(holder)
        self.costly += [holder] * is_costly


class Host:
    """The components of a host that takes checkpoints.

    :param mirrors: mirror folders, one per guest
    :param places: the choice of holders; None: by name
    :param limits: of holders
    """

    def __init__(
        self,
        options: Options,
        mirrors: Sequence[str] = (),
        places: Any = None,
        limits: holder_group.HolderLimits = holder_group.LIMITS,
    ) -> None:
        self.options, self.folder, self._mirrors = options, pathlib.Path(options.folder), mirrors
        self.sockets, self.ended = self.folder / "sockets", threading.Event()
        self.sockets.mkdir(exist_ok=True)
        self.scratch = scratch_files.ScratchFiles(self.sockets, options.scratch_limit_bytes)
        self.states = disk_states.DiskStates(self.folder / "state")
        self.records = self.folder / "records"
        self.refuses = False
        self.places = places or Places(options)
        shown = mirrors or [options.mirrors]
        self.domains = domain_list.Domains(
            options.uri,
            lambda path: next(filter(None, (overlay.base_of(path, one) for one in shown)), None),
            options.run_dir,
            options.libvirt,
        )
        self.taker = take_checkpoint.CheckpointTaker(
            take_checkpoint.Settings(
                ids.HostId(options.owner),
                options.copies,
                options.rate_bytes_s,
                self.sockets,
                str(options.mirrors),
                self.ended,
                options.longest_s,
                options.most_s,
                limits,
            ),
            self.domains,
            self.states,
            agent_files.AgentFiles(self.folder, None).read_image,
            self.places,
            self.register,
            self.scratch,
        )

    def started(self) -> "Host":
        """Return the host as restarted."""
        return Host(self.options, self._mirrors)

    def daemon(self) -> worker_pool.WorkerPool:
        return worker_pool.WorkerPool(
            self.domains, self.taker, self.states, self.options.interval_s
        )

    def register(self, new: checkpoint_record.CheckpointRecord) -> set[str]:
        """Record a checkpoint; keep the last two of a disk."""
        if self.refuses:
            raise errors.Unusable("decision service", "it does not answer")
        with self.records.open("a") as file:
            file.write(json.dumps(new._asdict()) + "\n")
        mine = [each for each in self.registered() if each.vault_disk == new.vault_disk]
        return {each.manifest_name for each in mine[-2:]}

    def registered(self) -> list[checkpoint_record.CheckpointRecord]:
        if not self.records.exists():
            return []
        return [
            checkpoint_record.CheckpointRecord(**json.loads(line)) for line in self.records.open()
        ]

    def rebuilt(self, new: checkpoint_record.CheckpointRecord, base: bytes) -> list[bytes]:
        """Return a checkpoint's disk, restored from each holder."""
        seal = checkpoint_encryption.Seal(bytes.fromhex(new.key))
        disk = object_names.VaultDisk(ids.HostId(new.owner), new.vault_disk)
        found = []
        for holder in new.holders:
            with self.places.client_of(checkpoint_record.VaultHolder(*holder)) as client:
                sealed = client.fetch_manifest(disk, bytes.fromhex(new.manifest_name))
                plain = seal.open_manifest(sealed, checkpoint_manifest.MAX_BYTES)
                manifest = checkpoint_manifest.Manifest.parse(plain, "it")
                found.append(
                    checkpoint_copies.rebuilt(
                        base, manifest, seal, lambda name, ask=client: ask.fetch_chunk(disk, name)
                    )
                )
        return found


class Lab:
    """Context manager: vaults, and the options of a host."""

    def __init__(
        self, folder: pathlib.Path, host: machine.Machine, mirrors: pathlib.Path, count: int
    ) -> None:
        folder.mkdir()
        self.vaults = {}
        for name in (f"h{number}" for number in range(1, count + 1)):
            (folder / name).mkdir()
            self.vaults[name] = vaults.Vault(folder / name, name)
        vaults.credentials_of(folder / "identity", OWNER)  # issued by this process's authority
        ports = {name: vault.port for name, vault in self.vaults.items()}
        self.options = Options(
            str(folder), domain_lab.uri(host), domain_lab.run_dir(host), str(mirrors), ports
        )

    def __enter__(self) -> Self:
        for vault in self.vaults.values():
            vault.start()
        return self

    def __exit__(self, *_: object) -> None:
        for vault in self.vaults.values():
            vault.close()

    def know(self, guest: domain_lab.Domain, chunk_bytes: int) -> None:
        """Write the chunk map of a guest's image where an agent would."""
        size = guest.base_bytes
        subject = chunk_map.Subject(
            guest.image,
            geometry.Geometry(size, chunk_bytes),
            chunk_map.OsHash("sha512", bytes(range(64))),
            (),
            layout.raw_file(size),
        )
        maps = pathlib.Path(self.options.folder, "maps")
        maps.mkdir(exist_ok=True)
        head = chunk_map_header.header_bytes(subject, chunk_map.Tables(blocks=1, contents=0))
        (maps / f"{guest.image}.acmap").write_bytes(head)


if __name__ == "__main__":
    Host(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=Options)).daemon().run()
