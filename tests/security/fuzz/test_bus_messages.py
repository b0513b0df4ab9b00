# SPDX-License-Identifier: Apache-2.0
"""Every bus method accepts, answers or refuses any payload.

Payloads are changed as any publisher may, and their signed parts as an enrolled host may.
``ACSTOR_FUZZ_CASES`` sets the number of payloads for each method (100), and ``ACSTOR_FUZZ_SEED``
the seed (1).

"""

import base64
import collections
import contextlib
import functools
import itertools
import json
import pathlib
import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import msgspec
import oslo_messaging
import pytest
import trio
from oslo_config import cfg

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.schedule import bus_client
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import sealed_box
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import checkpoint_registry
from acstor_decision import conf as decision_conf
from acstor_decision import interval_lookup
from acstor_decision import rpc
from acstor_decision import service
from acstor_decision.core.membership import sample_inbox
from acstor_decision.db import database
from acstor_decision.switch_loads import none
from tests.fakes import bus_log_limit
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts
from tests.fakes import linked_host
from tests.fakes import manual_clock
from tests.fakes import memory_bus
from tests.security.fuzz import cases
from tests.security.fuzz import mutations
from tests.security.fuzz import wire_messages

CASES, SEED = cases.CASES, cases.SEED
NOW_S = checkpoint_hosts.NOW_S
HOSTS = ("h1", "h2", "h3")
KEPT = 2
CASE_S = 0.25
HUGE_BYTES, HUGE_S, HUGE_FACTOR = 4 << 20, 20.0, 40
DEEP = 900
"""Levels that the broker's JSON reader still accepts."""

Example = Callable[[float], msgspec.Struct]
"""Returns a message sent at a time."""
Sign = Callable[[str], dict[str, Any]]
"""Returns the signed message with a text as its payload."""


@pytest.fixture(autouse=True)
def own_log_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bus_log_limit.renew(monkeypatch)


def deep(rng: random.Random) -> Any:
    """Return an object nested as deeply as the bus accepts."""
    nested: Any = rng.choice(mutations.ODD_VALUES)
    for _ in range(DEEP):
        nested = rng.choice(([nested], {"host": nested}))
    return nested


def changed(example: msgspec.Struct, sign: Sign, rng: random.Random) -> Any:
    """Return a signed message changed before or after its signature, or no message at all."""
    text = msgspec.json.encode(example).decode()
    way = rng.randrange(8)
    if way == 0:
        return rng.choice((deep(rng), *mutations.ODD_VALUES))
    if way == 1:
        return sign(bytes(mutations.mutate(text.encode(), (), rng)).decode(errors="replace"))
    if way < 5:
        thing = json.loads(text)
        for _ in range(rng.choice((1, 1, 2, 4))):
            thing = mutations.change_json(thing, rng)
        return sign(json.dumps(thing))
    message = sign(text)
    if way == 5:
        return {**message, rng.choice((*message, "host")): deep(rng)}
    for _ in range(rng.choice((1, 1, 2, 4))):
        message = mutations.change_json(message, rng)
    return message


class Bus:
    """Accepts all messages to agents."""

    def publish_table(self, table: decision_messages.RingTable) -> bool:
        return True

    def send_table(self, host: str, table: decision_messages.RingTable) -> bool:
        return True

    def send_task(self, host: str, task: decision_messages.Signed) -> bool:
        return True


class Leader:
    """Always the leader."""

    instance = "one"

    def is_leader(self) -> bool:
        return True

    def step_down(self) -> None:
        pass


class Decision:
    """The decision service on SQLite, behind its endpoint, and enrolled hosts."""

    def __init__(self, folder: pathlib.Path) -> None:
        conf = cfg.ConfigOpts()
        decision_conf.register_opts(conf)
        conf([], project="acstor", default_config_files=[], default_config_dirs=[])
        conf.set_override("connection", f"sqlite:///{folder}/decision.sqlite", "database")
        self.store, nova = database.Database(conf), checkpoint_hosts.Nova()
        self.store.upgrade()
        due_s = itertools.count(0.0, checkpoint_registry.NOTE_EVERY_S)  # each is asked in time
        clock = manual_clock.FunctionClock(due_s.__next__, lambda: NOW_S)
        self.hosts = enrolled_hosts.EnrolledHosts(conf, self.store, lambda: NOW_S)
        for host in HOSTS:
            self.hosts.identity(host)
        self.service = service.DecisionService(
            conf,
            self.store,
            Leader(),  # type: ignore[arg-type]
            none.NoLoads(),
            Bus(),
            clock=manual_clock.FunctionClock(time.monotonic, lambda: NOW_S),
        )
        self.service.load_trust()
        self.kept = checkpoint_registry.CheckpointRegistry(
            self.store,
            nova,  # type: ignore[arg-type]
            self.service.trust_state,
            interval_lookup.IntervalLookup(nova, 300, clock),  # type: ignore[arg-type]
            kept=KEPT,
            kept_after_s=100.0,
            clock=clock,
        )
        self.refused = collections.Counter[str]()
        self.endpoint = rpc._Endpoint(
            self.service.accept_sample,
            self.refused,
            self.kept.rpc_methods(),
        )

    def call(self, method: str, payload: Any) -> Any:
        return getattr(self.endpoint, method)({}, payload)

    def signer(self, purpose: str) -> Sign:
        """Return a function that signs as host h1."""
        key, certificate = self.hosts.identity("h1")

        def sign(text: str) -> dict[str, Any]:
            signature = signed_messages.signature_of(purpose, text.encode(), key)
            return {"payload": text, "signature": signature, "certificate": certificate.decode()}

        return sign

    def concealed(self, sent_s: float) -> Sign:
        """Return a function that signs as host h1 a text that only the service can read."""
        public = sealed_box.public_key(self.service.trust_state().signer)
        sign = self.signer(signing.CHECKPOINT)

        def conceal(text: str) -> dict[str, Any]:
            box = sealed_box.encrypt(public, text.encode(), b"h1")
            reported = messages.SealedMessage(
                host="h1", box=base64.b64encode(box).decode(), sent_s=sent_s
            )
            return sign(msgspec.json.encode(reported).decode())

        return conceal

    def opened(self, answer: Any, purpose: str, kind: type[Any]) -> Any:
        signers = signing.read_public_keys(self.hosts.keeper.signer_keys())
        signed = decision_messages.decode(answer, decision_messages.Signed)
        return signed_messages.verify_from_service(signed, purpose, signers, kind)


@pytest.fixture
def decision(tmp_path: pathlib.Path) -> Iterator[Decision]:
    made = Decision(tmp_path)
    yield made
    made.store.close()


def sample(sent_s: float) -> msgspec.Struct:
    number = int((sent_s - NOW_S) * 1000) + 1
    return msgspec.structs.replace(wire_messages.SAMPLE_EXAMPLE, sent_s=sent_s, number=number)


def failing(sent_s: float) -> msgspec.Struct:
    reported = (
        messages.Failing(checkpoint_hosts.SERVER, "holder", "h2"),
        messages.Failing("", "full"),
    )
    return messages.IntervalRequest(host="h1", sent_s=sent_s, failing=reported)


CALLS: dict[str, tuple[Example, str, type[Any]]] = {
    messages.KEPT_CHECKPOINTS: (
        lambda sent_s: messages.RetentionRequest(host="h1", sent_s=sent_s),
        signing.CHECKPOINT_ANSWER,
        messages.CheckpointResponse,
    ),
    messages.INTERVALS: (failing, signing.CHECKPOINT_INTERVALS, messages.IntervalResponse),
    messages.OWNERS: (
        lambda sent_s: messages.OwnerRequest(host="h1", owners=("h2", "h9"), sent_s=sent_s),
        signing.CHECKPOINT_OWNERS,
        messages.OwnerResponse,
    ),
    messages.SERVICE_KEY: (
        lambda sent_s: messages.RetentionRequest(host="h1", sent_s=sent_s),
        signing.CHECKPOINT_KEY,
        messages.ServiceKey,
    ),
}


def moments() -> Iterator[float]:
    """Yield distinct times that the service accepts as the present."""
    return (NOW_S + number / 1000 for number in range(CASES))


@pytest.mark.allow_log("checkpoints: ")
@pytest.mark.parametrize("method", CALLS)
def test_calls_of_hosts_are_answered_or_refused(decision: Decision, method: str) -> None:
    example, purpose, kind = CALLS[method]
    sign, rng, answered = decision.signer(signing.CHECKPOINT), random.Random(SEED), 0
    for sent_s in moments():
        payload = changed(example(sent_s), sign, rng)
        answer = decision.opened(decision.call(method, payload), purpose, kind)
        answered += not getattr(answer, "why", "")
    print(f"{method}: {answered} of {CASES} answered")
    assert answered > CASES // 40
    assert_nothing_leaked(decision)


@pytest.mark.allow_log("checkpoints: |checkpoint .* is refused")
def test_host_cannot_register_checkpoints_of_other_servers(decision: Decision) -> None:
    rng, store, registered = random.Random(SEED), decision.store, 0
    for number, sent_s in enumerate(moments(), 1):
        taken, conceal = checkpoint_hosts.taken(number, sent_s=sent_s), decision.concealed(sent_s)
        outer = decision.signer(signing.CHECKPOINT) if rng.randrange(3) == 0 else conceal
        payload = changed(taken, outer, rng)
        said = decision.call(messages.REGISTER_CHECKPOINT, payload)
        answer = decision.opened(said, signing.CHECKPOINT_ANSWER, messages.CheckpointResponse)
        assert not answer.is_transient
        registered += not answer.why
        rows = store.list_checkpoints("", 100, "", "")
        assert len(rows) <= KEPT
        assert {(row.instance_id, row.host) for row in rows} <= {(checkpoint_hosts.SERVER, "h1")}
    print(f"{registered} of {CASES} registered")
    assert registered == decision.kept.registered > CASES // 40
    assert_nothing_leaked(decision)


@pytest.mark.allow_log("message sample_collected is ignored")
@pytest.mark.allow_log("samples in the name of")
@pytest.mark.allow_log("is refused: ")
@pytest.mark.allow_log("more messages were ignored")
def test_samples_are_accepted_or_refused(decision: Decision) -> None:
    sign, rng = decision.signer(signing.SAMPLE), random.Random(SEED)
    for number, sent_s in enumerate(moments()):
        payload = changed(sample(sent_s), sign, rng)
        assert decision.call(decision_messages.SAMPLE_COLLECTED, payload) is None
        assert len(decision.service._inbox) <= sample_inbox.WAITING_OF_A_HOST
        if number % 20 == 0:  # its failure would be logged
            decision.service.run_round()
    assert decision.service._accepted > CASES // 100
    assert_nothing_leaked(decision)


def assert_nothing_leaked(decision: Decision) -> None:
    """Check that no slot is taken, and that rows belong to enrolled hosts."""
    assert not decision.kept._asking
    assert decision.kept._freshness.keys() | decision.kept._noted_s.keys() <= {"h1"}
    assert decision.store.checkpoint_failures(NOW_S).keys() <= {"h1"}
    assert {row.host for row in decision.store.list_hosts()} <= {"h1"}


async def test_agent_accepts_or_refuses_tables_and_tasks(
    nursery: trio.Nursery, tmp_path: pathlib.Path
) -> None:
    host, rng, keys = linked_host.LinkedHost(tmp_path), random.Random(SEED), linked_host.KEYS
    nursery.start_soon(host.link.run)
    await trio.sleep(linked_host.COLLECTION_S / 2)

    def sign(text: str) -> dict[str, Any]:
        signature = signed_messages.signature_of(signing.TASK, text.encode(), keys.signing_key)
        return {"payload": text, "signature": signature}

    def sign_table(text: str) -> dict[str, Any]:
        signature = signed_messages.signature_of(signing.TABLE, text.encode(), keys.signing_key)
        return {"epoch": host.rings.ring.epoch + 1, "table": text, "signature": signature}

    def process_request() -> None:
        for number in range(CASES):
            task = msgspec.structs.replace(wire_messages.TASK_EXAMPLE, request=number)
            given = decision_messages.TaskForHosts(task=task, hosts=("h1",), given_s=time.time())
            refused(
                host.bus.handlers[decision_messages.IMAGE_TASK_GIVEN], changed(given, sign, rng)
            )
            table = hash_ring.Ring(
                host.rings.ring.epoch + 1, (hash_ring.RingHost("h1", "10.0.0.1:1", 3),)
            )
            payload = changed(msgspec.Raw(hash_ring.encode(table)), sign_table, rng)  # type: ignore[arg-type]
            refused(host.bus.handlers[decision_messages.RING_PUBLISHED], payload)

    await trio.to_thread.run_sync(process_request)
    print(f"{len(host.tasks)} tasks and {host.rings.ring.epoch} tables taken of {CASES} each")
    assert CASES // 40 < len(host.tasks) < CASES


def refused(process_request: Callable[[Any], Any], payload: Any) -> Any:
    """Return a bus method's result for a payload; None if it refuses it by name."""
    try:
        return process_request(payload)
    except (errors.AcstorError, ValueError, OSError):  # as message_bus.Endpoint does
        return None


def test_daemon_obeys_only_valid_requests_of_the_service(tmp_path: pathlib.Path) -> None:
    rng, keys, asked = random.Random(SEED), linked_host.KEYS, list[str]()
    identity_files.write(tmp_path / "identity", keys.host("h1"))
    host = ids.HostId("h1")
    files = identity_files.IdentityFiles(host, identity_files.files_in(tmp_path / "identity"))
    daemon = bus_client.BusClient(
        host, files, None, clock=manual_clock.FunctionClock(lambda: NOW_S)
    )

    def sign(text: str) -> dict[str, Any]:
        purpose = signing.CHECKPOINT_WANTED
        signature = signed_messages.signature_of(purpose, text.encode(), keys.signing_key)
        return {"payload": text, "signature": signature}

    def ask(instance: ids.ImageId) -> int:
        asked.append(instance)
        if instance != checkpoint_hosts.SERVER:
            raise errors.Unusable(f"server {instance}", "it is not here")
        return 7

    handle = 0
    for number in range(CASES):
        wanted = messages.CheckpointRequest(
            request=number, instance_id=checkpoint_hosts.SERVER, host="h1", given_s=NOW_S
        )
        payload = changed(wanted, sign, rng)
        handle += refused(lambda said: daemon.request_checkpoint(said, ask), payload) is not None
    print(f"{handle} of {CASES} heeded")
    assert CASES // 40 < handle == len(asked) < CASES
    assert len(daemon._freshness._seen) <= CASES


KEPT_CHECKPOINTS = messages.CheckpointResponse(
    kept=(
        messages.RetainedCheckpoint(
            checkpoint_hosts.IMAGE, checkpoint_hosts.SERVER, checkpoint_hosts.DISK, "ab" * 32
        ),
    )
)
ANSWERS: dict[str, tuple[msgspec.Struct, str]] = {
    messages.REGISTER_CHECKPOINT: (KEPT_CHECKPOINTS, signing.CHECKPOINT_ANSWER),
    messages.KEPT_CHECKPOINTS: (KEPT_CHECKPOINTS, signing.CHECKPOINT_ANSWER),
    messages.INTERVALS: (
        messages.IntervalResponse(
            of_host=60, of_servers=(messages.ServerInterval(checkpoint_hosts.SERVER, 600),)
        ),
        signing.CHECKPOINT_INTERVALS,
    ),
    messages.OWNERS: (messages.OwnerResponse(gone=("h2",)), signing.CHECKPOINT_OWNERS),
    messages.SERVICE_KEY: (messages.ServiceKey("ab" * 32), signing.CHECKPOINT_KEY),
}


class Answers:
    """A decision service on the bus with a valid key, whose responses a test may change.

    :param keys: of the service
    :ivar change: by method, makes the sent payload from a signed response and its signer
    """

    def __init__(self, transport: Any, keys: Any) -> None:
        self._keys = keys
        self.change = dict[str, Callable[[msgspec.Struct, Sign], Any]]()
        endpoint = message_bus.Endpoint({})
        for method in ANSWERS:
            setattr(endpoint, method, functools.partial(self._hear, method))
        target = oslo_messaging.Target(topic=decision_messages.TOPIC, server="one")
        self.served = message_bus.serve(transport, target, endpoint, threading.Event())

    def _hear(self, method: str, _context: object, payload: Any) -> Any:
        answer, purpose = ANSWERS[method]
        if method == messages.SERVICE_KEY:
            answer = messages.ServiceKey(sealed_box.public_key(self._keys.signing_key).hex())
        else:
            sent_s = json.loads(payload["payload"])["sent_s"]
            answer = msgspec.structs.replace(answer, host="h1", sent_s=sent_s)

        def sign(text: str) -> dict[str, Any]:
            signature = signed_messages.signature_of(purpose, text.encode(), self._keys.signing_key)
            return {"payload": text, "signature": signature}

        change = self.change.get(method)
        return change(answer, sign) if change else sign(msgspec.json.encode(answer).decode())


@pytest.fixture
def bus() -> Iterator[Any]:
    with memory_bus.transport() as made:
        yield made


@pytest.fixture
def asking(bus: Any, tmp_path: pathlib.Path) -> Iterator[tuple[bus_client.BusClient, Answers]]:
    """Yield a daemon that sends requests, and the service that responds."""
    keys = linked_host.KEYS
    identity_files.write(tmp_path / "identity", keys.host("h1"))
    host = ids.HostId("h1")
    files = identity_files.IdentityFiles(host, identity_files.files_in(tmp_path / "identity"))
    daemon = bus_client.BusClient(host, files, bus, limits=bus_client.BusLimits(answer_s=10.0))
    daemon._stopping.set()  # it does not wait before a retry
    service = Answers(bus, keys)
    yield daemon, service
    service.served.close()


Asks = Callable[[bus_client.BusClient], object]


def tidying(folder: pathlib.Path, asks: Callable[[bus_client.BusClient], Any]) -> Asks:
    """Return a request for the retained manifests, handled as a daemon does."""
    states, instance = disk_states.DiskStates(folder / "states"), checkpoint_hosts.SERVER
    state = disk_states.new_state(checkpoint_hosts.IMAGE, 65536)

    def tidy(daemon: bus_client.BusClient) -> None:
        names = set(asks(daemon))
        assert all(len(bytes.fromhex(name)) == 32 for name in names)
        states.retain_only(instance, names)
        with contextlib.suppress(errors.Unusable):  # none of them is here
            list(states.iter_needed(instance, state, names))

    return tidy


def register(daemon: bus_client.BusClient) -> set[str]:
    return daemon.register_checkpoint(checkpoint_hosts.record())


def kept(daemon: bus_client.BusClient) -> set[str]:
    found = daemon.list_retained()
    assert all(ids.parse_image_id(disk) == disk for disk in found)
    return {name for names in found.values() for name in names}


def asks_of(method: str, folder: pathlib.Path) -> Asks:
    """Return a daemon's action that requests a response of a method."""
    return {
        messages.REGISTER_CHECKPOINT: tidying(folder, register),
        messages.SERVICE_KEY: register,
        messages.KEPT_CHECKPOINTS: tidying(folder, kept),
        messages.INTERVALS: lambda daemon: daemon.fetch_intervals(),
        messages.OWNERS: lambda daemon: daemon.departed_owners([ids.HostId("h2")]),
    }[method]


def is_taken(asks: Asks, daemon: bus_client.BusClient) -> bool:
    """Return whether a response is accepted; refusals are the product's exceptions."""
    try:
        asks(daemon)
    except (
        errors.NotAuthenticated,
        errors.RemoteProtocolError,
        errors.DecisionUnreachable,
        errors.CheckpointRefused,
    ):
        return False
    return True


@pytest.mark.parametrize("method", ANSWERS)
def test_responses_of_the_service_are_accepted_or_refused(
    asking: tuple[bus_client.BusClient, Answers], tmp_path: pathlib.Path, method: str
) -> None:
    """The service is compromised, or its responses are changed in transit."""
    (daemon, service), rng = asking, random.Random(SEED)
    service.change[method] = lambda answer, sign: changed(answer, sign, rng)
    asks = asks_of(method, tmp_path)
    cases.check_some_taken(method, lambda: is_taken(asks, daemon), CASE_S)


def test_huge_response_is_refused_in_bounded_time_and_memory(
    asking: tuple[bus_client.BusClient, Answers],
) -> None:
    """The broker limits a message: here to 4 MiB of words, of text or of levels."""
    daemon, service = asking
    for huge in (
        lambda _answer, _sign: ["1"] * (HUGE_BYTES // 4),
        lambda _answer, _sign: "x" * HUGE_BYTES,
        lambda _answer, sign: sign("[" * HUGE_BYTES),
        lambda _answer, sign: sign('{"why": ' + "9" * HUGE_BYTES + "}"),
    ):
        service.change[messages.KEPT_CHECKPOINTS] = huge
        began_s = time.monotonic()
        tracemalloc.start()
        assert not is_taken(kept, daemon)
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        took_s = time.monotonic() - began_s
        print(f"refused in {took_s:.1f} s with {most_bytes / HUGE_BYTES:.0f} times its size")
        assert took_s < HUGE_S and most_bytes < HUGE_FACTOR * HUGE_BYTES
