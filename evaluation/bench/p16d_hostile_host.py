# SPDX-License-Identifier: Apache-2.0
"""P16d: checkpoints of three honest hosts under attack by a fourth one.

Each honest host has its real daemon and vault, and two guests of a real libvirt that write and have
a checkpoint every two minutes, so one of the six every 20 s.  The hostile host has a certificate, a
vault that the ring prefers, and a guest on an honest host.  It runs a dozen attacks in sequence.
The value is the longest delay of an honest guest's checkpoint beyond its interval, in intervals.
"""

import collections
import contextlib
import functools
import json
import os
import pathlib
import signal
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import msgspec
from oslo_config import cfg

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_pool
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import bus_client
from acstor_checkpoint.schedule import garbage_collection
from acstor_checkpoint.schedule import worker_pool
from acstor_checkpoint.vault import connection_limit
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_decision import conf as decision_conf
from acstor_decision import nova_client
from evaluation.bench import harness
from tests.fakes import dos_attacks
from tests.fakes import hostile_holder
from tests.fakes import http_server
from tests.lab import checkpoints
from tests.lab import domain as domain_lab
from tests.lab import runs
from tests.lab import vaults
from tests.lab.openstack import machine

HONEST, HOSTILE = ("h1", "h2", "h3"), "h4"
GUESTS = 2
"""Per honest host."""
INTERVAL_S = 120.0
"""As in the lab's flavor."""
REST_S = float(os.environ.get("ACSTOR_BENCH_P16D_REST_S", str(INTERVAL_S)))
ATTACK_S = float(os.environ.get("ACSTOR_BENCH_P16D_S", "30"))
HOLDING_S = ATTACK_S + 35.0
"""Of a holder's attack: longer than a request's limit (``HolderLimits.slack_s``)."""
SETTLES_S = 300.0
"""Longest wait before an attack until all checkpoints are in time and successful."""
IN_TIME = 0.1
MEANWHILE = 2
"""Checkpoints during each attack, which lasts up to one more interval for them."""
MIB, CHUNK = geometry.MIB, geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES, BASE = 16 * MIB, bytes(2 * MIB)
NOVA_S = 0.2
FLOODERS = 32
SERVER = ids.ImageId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
"""Nova is asked for this server at any registration."""
NAMED = b"\n".join(str(uuid.uuid4()).encode() for _ in range(quota.MAX_DISKS))


class Places(holder_pool.HolderPool):
    """Holders by the ring, the hostile host first; each has its own port."""

    def __init__(self, vault: vaults.Vault, ports: dict[str, int]) -> None:
        listed = (
            hash_ring.RingHost(ids.HostId(name), f"127.0.0.1:{n}", 8)
            for n, name in enumerate(ports, 1)
        )
        table = hash_ring.Ring(1, tuple(listed))
        super().__init__(vault.name, lambda: table, vault.credentials, 1)
        self._ports = ports

    def choose_holders(
        self, disk: ids.ImageId, copies: int, current: Sequence[ids.HostId]
    ) -> Sequence[checkpoint_record.VaultHolder]:
        return super().choose_holders(disk, copies, [ids.HostId(HOSTILE), *current])

    def forgive(self) -> None:
        """End the backoff of failed hosts."""
        self._backoffs.clear()

    def _address(self, _ring: hash_ring.Ring, host: ids.HostId) -> str:
        return f"127.0.0.1:{self._ports[host]}"


class Host:
    """An honest host: its daemon and its guests.

    :param asked: a Nova client, used before a registration as in the decision service
    """

    def __init__(
        self,
        options: checkpoints.Options,
        holders: Places,
        guests: Sequence[domain_lab.Domain],
        asked: nova_client.NovaClient,
    ) -> None:
        self.name, self.guests, self._asked = options.owner, guests, asked
        self.places, self.here = holders, set[str]()
        mirrors = [str(guest.mirrors) for guest in guests]
        self.host = checkpoints.Host(options, mirrors, self.places)
        self._note, self.host.taker._register = self.host.register, self.register
        self.daemon = worker_pool.WorkerPool(
            self, self.host.taker, self.host.states, int(INTERVAL_S)
        )
        self.ended = threading.Event()

    def list_servers(self) -> domain_xml.ServerList:
        found = self.host.domains.list_servers().servers
        return domain_xml.ServerList([one for one in found if one.instance in self.here])

    def register(self, new: checkpoint_record.CheckpointRecord) -> set[str]:
        for pause_s in (0.0, *bus_client.LIMITS.pauses_s):
            time.sleep(pause_s)
            with contextlib.suppress(nova_client.NovaBusy):
                self._asked.get_server(SERVER, self.name)
                return self._note(new)
        raise errors.DecisionUnreachable(
            "the message bus", "requests of other hosts to Nova are in progress"
        )

    def collect(self) -> None:
        """Collect garbage at all hosts once, as the product does each hour."""
        host, states = ids.HostId(self.name), self.host.states
        garbage_collection.GarbageCollection(
            host, states, self.places, self.kept, self.daemon, self.ended
        ).collect()

    def kept(self) -> dict[str, set[str]]:
        """Return the last two manifests of each disk, as the decision service does."""
        kept = collections.defaultdict[str, list[str]](list)
        for one in self.host.registered():
            kept[one.vault_disk].append(one.manifest_name)
        return {disk: set(manifests[-2:]) for disk, manifests in kept.items()}

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run workers and the monitor of scratch files for the block."""
        work = [lambda: self.host.scratch.run(self.ended)] + [self.daemon.run] * worker_pool.WORKERS
        with threads(*work):
            try:
                yield
            finally:
                self.ended.set()
                self.host.ended.set()
                self.daemon.stop()


@contextlib.contextmanager
def threads(*work: Callable[[], Any]) -> Iterator[None]:
    """Run functions in threads; wait for their ends after the block."""
    started = [threading.Thread(target=one) for one in work]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        for thread in started:
            thread.join(300.0)


class Cloud:
    """All hosts; ``ports`` are those of their vaults."""

    def __init__(
        self, stack: contextlib.ExitStack, folder: pathlib.Path, libvirt: machine.Machine
    ) -> None:
        self.folder, self.ports = folder, dict[str, int]()
        self.vaults = {name: vaults.Vault(folder / name, name) for name in (*HONEST, HOSTILE)}
        for name, vault in self.vaults.items():
            stack.callback(vault.close)
            vault.start()
            self.ports[name] = vault.port
        self.nova = stack.enter_context(slow_nova())
        self.victims = [self.vaults[name] for name in HONEST]
        self.hosts: list[Host] = []
        for name in HONEST:
            guests = [self._guest(stack, libvirt, f"{name}-{n}") for n in range(GUESTS + 1)]
            self.hosts.append(self._host(name, libvirt, guests))
        self.attacker = self.hosts[0].guests[GUESTS]

    def _guest(
        self, stack: contextlib.ExitStack, libvirt: machine.Machine, name: str
    ) -> domain_lab.Domain:
        (self.folder / name).mkdir()
        guest = domain_lab.Domain(libvirt, self.folder / name, BASE, DISK_BYTES)
        stack.callback(guest.close)
        guest.domain.create()
        return guest

    def _host(
        self, name: str, libvirt: machine.Machine, guests: Sequence[domain_lab.Domain]
    ) -> Host:
        folder = self.folder / f"{name}-daemon"
        lab = checkpoints.Lab(folder, libvirt, guests[0].mirrors, 0)
        for guest in guests:
            lab.know(guest, CHUNK)
        options = msgspec.structs.replace(lab.options, owner=name, folder=str(folder))
        return Host(options, Places(self.vaults[name], self.ports), guests, self.nova)

    def honest(self) -> list[tuple[Host, domain_lab.Domain]]:
        """Return the honest guests, whose checkpoints must be in time, in order of start."""
        return [(host, host.guests[number]) for number in range(GUESTS) for host in self.hosts]

    def late(self) -> float:
        """Return the longest delay of one of them beyond its interval, in intervals."""
        waited = {host.name: host.daemon.overdue_s() for host in self.hosts}
        return max(waited[h.name].get(g.instance, 0.0) for h, g in self.honest()) / INTERVAL_S

    def failing(self) -> bool:
        """Return whether the last checkpoint attempt of one of them failed."""
        here = {guest.instance for _, guest in self.honest()}
        failing = [one for host in self.hosts for one in host.daemon.failures.failing_servers(None)]
        return any(one.instance_id in here for one in failing)

    def taken(self) -> int:
        """Return the number of their registered checkpoints."""
        here = {guest.instance for _, guest in self.honest()}
        return sum(one.instance_id in here for h in self.hosts for one in h.host.registered())


@contextlib.contextmanager
def slow_nova() -> Iterator[nova_client.NovaClient]:
    """Yield a client of a slow Nova."""
    reported = {"server": {"OS-EXT-SRV-ATTR:host": "h1", "tenant_id": "p"}}

    def slow(handler: Any, wanted: http_server.ClientRequest) -> None:
        time.sleep(NOVA_S)
        http_server.fine(handler, wanted)

    with http_server.serve({f"servers/{SERVER}": json.dumps(reported).encode()}) as web:
        web.always = slow
        conf = cfg.ConfigOpts()
        decision_conf.register_opts(conf)
        conf([], project="acstor", default_config_files=[], default_config_dirs=[])
        for name, value in {"auth_type": "none", "endpoint_override": web.url}.items():
            conf.set_override(name, value, "nova")
        yield nova_client.NovaClient(conf)


Ended = threading.Event
Work = Callable[[Ended], None]


@contextlib.contextmanager
def until_end(*work: Work) -> Iterator[None]:
    """Run functions repeatedly in threads, until the block ends."""
    ended = Ended()

    def again(one: Work) -> None:
        while not ended.is_set():
            with contextlib.suppress(errors.AcstorError, OSError):
                one(ended)
            ended.wait(0.01)

    with threads(*(functools.partial(again, one) for one in work)):
        try:
            yield
        finally:
            ended.set()


@contextlib.contextmanager
def nothing(_cloud: Cloud) -> Iterator[None]:
    yield


@contextlib.contextmanager
def strangers(cloud: Cloud) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for vault in cloud.victims:
            stack.enter_context(dos_attacks.SilentConnections(vault.port))
        yield


@contextlib.contextmanager
def idle_connections(cloud: Cloud) -> Iterator[None]:
    own = cloud.vaults[HOSTILE]
    with contextlib.ExitStack() as stack:
        for vault in cloud.victims:
            for _ in range(connection_limit.CONNECTIONS_OF_HOST):
                stack.enter_context(own.dial(vault))
        yield


def asking(
    cloud: Cloud, ask: Callable[[vault_client.VaultClient, object_names.VaultDisk], None]
) -> contextlib.AbstractContextManager[None]:
    own = cloud.vaults[HOSTILE]
    disk = object_names.VaultDisk(own.name, ids.ImageId(str(uuid.uuid4())))

    def work(vault: vaults.Vault, ended: Ended) -> None:
        with own.client(vault) as client:
            while not ended.is_set():
                ask(client, disk)

    return until_end(*(functools.partial(work, vault) for vault in cloud.victims for _ in range(2)))


def names_without_end(cloud: Cloud) -> contextlib.AbstractContextManager[None]:
    asked = sorted(os.urandom(32) for _ in range(object_names.MAX_NAMES))
    return asking(cloud, lambda client, disk: client.missing_chunks(disk, asked) and None)


def small_chunks(cloud: Cloud) -> contextlib.AbstractContextManager[None]:
    def put(client: vault_client.VaultClient, disk: object_names.VaultDisk) -> None:
        found = sorted(os.urandom(32) for _ in range(64))
        client.put(disk, [object_names.SealedChunk(ids.Cid(name), bytes(64)) for name in found])

    return asking(cloud, put)


@contextlib.contextmanager
def holding(
    cloud: Cloud, answer: Callable[[Any, str, Any], bytes | None], status: int = 200
) -> Iterator[None]:
    """Serve the hostile host's vault for the block."""
    port = cloud.ports[HOSTILE]
    with hostile_holder.HostileHolder(
        cloud.folder / HOSTILE / "identity",
        HOSTILE,
        lambda line, tls: answer(holder.ended, line, tls),
        status,
    ) as holder:
        cloud.ports[HOSTILE] = holder.port
        try:
            yield
        finally:
            cloud.ports[HOSTILE] = port


def is_silent(ended: Ended, _line: str, _tls: Any) -> None:
    ended.wait(600.0)


def drips(ended: Ended, _line: str, tls: Any) -> None:
    hostile_holder.drip(tls, 0.5, ended)


def refuses(_ended: Ended, _line: str, _tls: Any) -> bytes:
    return b"no"


def names_disks(ended: Ended, line: str, tls: Any) -> bytes | None:
    if line.startswith("GET"):
        return NAMED
    return drips(ended, line, tls)


@contextlib.contextmanager
def naming_disks(cloud: Cloud) -> Iterator[None]:
    with holding(cloud, names_disks):
        for host in cloud.hosts:
            threading.Thread(target=host.collect, daemon=True).start()
        yield


def registrations(cloud: Cloud) -> contextlib.AbstractContextManager[None]:
    def work(number: int, _ended: Ended) -> None:
        with contextlib.suppress(nova_client.NovaBusy):
            cloud.nova.get_server(SERVER, f"hostile {number}")

    return until_end(*(functools.partial(work, number) for number in range(FLOODERS)))


def overwriting(cloud: Cloud) -> contextlib.AbstractContextManager[None]:
    def work(ended: Ended) -> None:
        for at in range(0, DISK_BYTES, MIB):
            cloud.attacker.write(at, MIB, int(time.monotonic()) % 256, "")
            if ended.wait(0.05):
                return

    return until_end(work)


@contextlib.contextmanager
def stopped_qemu(cloud: Cloud) -> Iterator[None]:
    pid = cloud.attacker.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


Attack = Callable[[Cloud], contextlib.AbstractContextManager[None]]
ATTACKS: dict[str, tuple[Attack, float]] = {
    "nothing": (nothing, REST_S),
    "silent unauthenticated connections": (strangers, ATTACK_S),
    "idle authenticated connections": (idle_connections, ATTACK_S),
    "an endless list of names": (names_without_end, ATTACK_S),
    "endless small chunks": (small_chunks, ATTACK_S),
    "a holder that is silent": (functools.partial(holding, answer=is_silent), HOLDING_S),
    "a holder that sends slowly": (functools.partial(holding, answer=drips), HOLDING_S),
    "a holder that refuses": (functools.partial(holding, answer=refuses, status=500), ATTACK_S),
    "a holder that names 28,000 disks": (naming_disks, HOLDING_S),
    "endless registrations": (registrations, ATTACK_S),
    "a guest that overwrites": (overwriting, ATTACK_S),
    "a QEMU that does not answer": (stopped_qemu, ATTACK_S),
}


@harness.measures("P16d")
def run(say: harness.Say) -> harness.Result:
    """Run all attacks in sequence, and measure the delay of checkpoints."""
    found = {}
    with contextlib.ExitStack() as stack:
        folders = stack.enter_context(runs.Run())
        cloud = Cloud(stack, folders.folder, stack.enter_context(domain_lab.libvirt_host()))
        for host in cloud.hosts:
            stack.enter_context(host.working())
        cloud.hosts[0].here.add(cloud.attacker.instance)
        arrivals = cloud.honest()
        stack.enter_context(until_end(functools.partial(writing, cloud)))
        for name, (attack, seconds) in ATTACKS.items():
            for host in cloud.hosts:
                host.places.forgive()
            found[name] = _attacked(cloud, attack, seconds, arrivals)
            say(f"{name}: {found[name][0]:.2f} intervals late, {found[name][1]} checkpoints")
    late = {name: value for name, (value, _) in found.items()}
    return harness.Result(
        {"P16d": max(late.values())},
        {"late": late, "taken": {name: count for name, (_, count) in found.items()}},
    )


def writing(cloud: Cloud, ended: Ended) -> None:
    """Write a little to each honest guest's disk."""
    for _, guest in cloud.honest():
        guest.write(int(time.monotonic()) % 64 * 4 * CHUNK, 4 * CHUNK, os.urandom(1)[0])
    ended.wait(5.0)


def _attacked(
    cloud: Cloud,
    attack: Attack,
    seconds: float,
    arrivals: list[tuple[Host, domain_lab.Domain]],
) -> tuple[float, int]:
    """Return the longest delay during an attack, and the number of checkpoints."""
    taken, late, arrives_s = cloud.taken(), 0.0, time.monotonic()
    until_s = arrives_s + seconds
    with attack(cloud):
        while time.monotonic() < until_s or (
            cloud.taken() < taken + MEANWHILE and time.monotonic() < until_s + INTERVAL_S
        ):
            if arrivals and time.monotonic() >= arrives_s:
                host, guest = arrivals.pop(0)
                host.here.add(guest.instance)
                arrives_s += REST_S / (GUESTS * len(HONEST))
            late = max(late, cloud.late())
            time.sleep(0.5)
    until_s = time.monotonic() + SETTLES_S
    while ((now := cloud.late()) > IN_TIME or cloud.failing()) and time.monotonic() < until_s:
        late = max(late, now)
        time.sleep(0.5)
    return max(late, now), cloud.taken() - taken
