# SPDX-License-Identifier: Apache-2.0
"""Authentication and admission of peers: certificates, modes and ring tables, over TCP."""

import contextlib
import itertools
import os
import socket
import time

import pytest
import trio

from acstor_agent import settings
from acstor_agent.peers import connection_setup
from acstor_agent.peers import peer_link
from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import periodic_checks
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import admission
from tests.fakes import manual_clock
from tests.unit.agent import test_peer_network as nets

CLIENT, SERVER, DATA, DEMAND = nets.CLIENT, nets.SERVER, nets.DATA, nets.DEMAND
asking, serving, wait_until = nets.asking, nets.serving, nets.wait_until
SECURE, INSECURE = peer_network.SecurityMode
DAY_S = 86400
OFTEN = peer_network.PeerLimits(check_interval_s=0.05)
GRACE_S = certificates.GRACE_S
OURS, THEIRS = (
    certificates.Authority.create(name, time.time(), 365 * DAY_S) for name in ("ours", "theirs")
)


class Identity:
    """Files of a host in a folder, and the credentials that are read from them."""

    def __init__(self, folder, host, issuer=OURS, names=None, age_s=0, now=time.time):
        self.folder = folder / f"{host}-{os.urandom(4).hex()}"
        self.folder.mkdir()
        self.host, self.now = host, now
        self.write(issuer, issuer.certificate_pem, names or host, age_s)

    @property
    def files(self):
        return identity_files.files_in(self.folder / "identity")

    def write(self, issuer=OURS, ca_pem=OURS.certificate_pem, names=None, age_s=0):
        """Replace the files, as a renewal does."""
        key = certificates.new_key()
        request = certificates.request(self.host, key)
        issued = issuer.issue_certificate(request, names or self.host, time.time() - age_s, DAY_S)
        made = identity_files.IdentitySet(ca_pem, issued, key, b"")
        identity_files.write(self.folder / "identity", made)

    def read(self, security=SECURE, grace_s=GRACE_S):
        looks = itertools.count(0, identity_files.CHECK_INTERVAL_S)  # a check at each call
        files = identity_files.IdentityFiles(
            self.host, self.files, manual_clock.FunctionClock(lambda: next(looks))
        )
        made = credentials.Credentials(
            files, security, grace_s, manual_clock.FunctionClock(self.now)
        )
        made.reload_files()
        return made


@pytest.fixture
def identity(tmp_path):
    return lambda *args, **kwargs: Identity(tmp_path, *args, **kwargs)


@pytest.fixture
def pair(identity):
    """Return the credentials of both sides."""

    def make(security=SECURE):
        return {host: identity(host).read(security) for host in (CLIENT, SERVER)}

    return make


async def test_authenticated_peer_serves_chunks(pair):
    tls = pair()
    async with (
        serving(tls=tls[SERVER]) as (server, address),
        asking(address, tls=tls[CLIENT]) as client,
    ):
        for length in (1, 65536, len(DATA)):
            assert await client.fetch(0, length) == DATA[:length]
        [connection] = server._incoming
        assert connection.host == connection.link.certificate.host == CLIENT
        assert connection.link.sending and connection.link.receiving


@pytest.mark.parametrize("security", [SECURE, INSECURE])
async def test_many_large_chunks_in_flight_arrive_intact(pair, security):
    """They exceed the socket buffers, so the outbox sends much of them in pieces."""
    tls = pair(security) if security is not INSECURE else {CLIENT: None, SERVER: None}
    whole = 0

    async def ask(client, priority):
        nonlocal whole
        data = await client.fetch(1, len(DATA) - 1, priority=priority)
        whole += data == DATA[1:]

    async with (
        serving(tls=tls[SERVER]) as (_server, address),
        asking(address, tls=tls[CLIENT]) as client,
        trio.open_nursery() as nursery,
    ):
        for number in range(40):
            nursery.start_soon(ask, client, nets.PEER if number % 2 else nets.PREFETCH)
    assert whole == 40


async def refused(serving_tls, asking_tls, *, client=CLIENT, **options):
    """Expect a fetch to fail; return the client's error."""
    served = []

    async def serve(host, get):
        served.append(host)
        return bytes(get.length)

    async with (
        serving(serve, tls=serving_tls, **options) as (server, address),
        asking(address, host=client, tls=asking_tls) as net,
    ):
        with pytest.raises((errors.SourceUnreachable, errors.RemoteProtocolError)) as caught:
            await net.fetch()
        await wait_until(lambda: server.connection_counts[0] == 0)
    assert not served
    return str(caught.value)


@pytest.mark.expect_log(r"127.0.0.1:\d+ dropped: its certificate is not trusted")
async def test_client_of_another_cloud_is_not_served(identity):
    stranger = identity(CLIENT, THEIRS)
    stranger.write(THEIRS, OURS.certificate_pem + THEIRS.certificate_pem)
    await refused(identity(SERVER).read(), stranger.read())


@pytest.mark.allow_log(r"127.0.0.1:\d+ dropped")
async def test_server_of_another_cloud_is_not_trusted(identity):
    why = await refused(identity(SERVER, THEIRS).read(), identity(CLIENT).read())
    assert "its certificate is not trusted" in why


@pytest.mark.expect_log("Hello of impostor.example is rejected: its certificate is of client.ex")
async def test_client_whose_certificate_names_another_host_is_dropped(identity):
    """Its Hello names another host."""
    tls = identity(CLIENT).read()
    await refused(identity(SERVER).read(), tls, client=ids.HostId("impostor.example"))


@pytest.mark.expect_log("Hello of server.example is rejected: its certificate is of client.exa")
async def test_server_whose_certificate_names_another_host_is_not_trusted(identity):
    await refused(identity(CLIENT).read(), identity(CLIENT).read())


@pytest.mark.expect_log(r"certificate of client.example is rejected: valid until .* 8 days ago")
@pytest.mark.allow_log("was not renewed")
async def test_expired_certificate_is_accepted_only_within_the_grace_period(identity):
    for age_s in (DAY_S + GRACE_S - 3600,):
        async with (
            serving(tls=identity(SERVER).read()) as (_server, address),
            asking(address, tls=identity(CLIENT, age_s=age_s).read()) as client,
        ):
            assert await client.fetch(0, 10) == DATA[:10]
    await refused(identity(SERVER).read(), identity(CLIENT, age_s=DAY_S + 8 * DAY_S).read())


@pytest.mark.expect_log("client.example is rejected: valid from .* 23 h from now: one of the two")
@pytest.mark.expect_log("cert.pem: valid from .* 23 h from now")
async def test_certificate_from_the_future_is_refused_with_the_time_offset(identity):
    early = identity(CLIENT, age_s=-23 * 3600 - certificates.BACKDATE_S - 60)
    await refused(identity(SERVER).read(), early.read())


@pytest.mark.allow_log("127.0.0.1")
@pytest.mark.parametrize("ours", [SECURE, INSECURE])
@pytest.mark.parametrize("theirs", [SECURE, INSECURE])
async def test_peers_with_different_security_modes_refuse_each_other(pair, ours, theirs, caplog):
    if ours is theirs:
        return
    servers = None if ours is INSECURE else pair(ours)[SERVER]
    clients = None if theirs is INSECURE else pair(theirs)[CLIENT]
    await refused(servers, clients)
    assert "peer_security differs" in caplog.text


# Admission


def admitting(*hosts):
    return admission.Admission(
        lambda host, not_before_s: "" if host in hosts else "it is not on the table"
    )


@pytest.mark.expect_log("Hello of client.example is rejected: it is not on the table")
@pytest.mark.parametrize("security", [SECURE, INSECURE])
async def test_client_outside_the_ring_table_is_refused(pair, security):
    tls = pair(security) if security is SECURE else {CLIENT: None, SERVER: None}
    await refused(tls[SERVER], tls[CLIENT], admission=admitting(SERVER))


@pytest.mark.expect_log("Connection to .* dropped: Hello of server.example .* not on the table")
async def test_server_outside_the_ring_table_is_refused(pair):
    tls = pair()
    async with (
        serving(tls=tls[SERVER]) as (_server, address),
        asking(address, tls=tls[CLIENT], admission=admitting(CLIENT)) as client,
    ):
        with pytest.raises(errors.SourceUnreachable, match="not on the table"):
            await client.fetch()


async def test_admission_check_gets_the_start_time_of_the_certificate(pair):
    seen = []

    def authorize(host, not_before_s):
        seen.append((host, not_before_s))
        return ""

    tls = pair()
    async with (
        serving(tls=tls[SERVER], admission=admission.Admission(authorize)) as (_server, address),
        asking(address, tls=tls[CLIENT]) as client,
    ):
        await client.fetch(0, 1)
    assert seen[0][0] == CLIENT
    assert seen[0][1] == pytest.approx(time.time() - certificates.BACKDATE_S, abs=60)


@pytest.mark.expect_log("Connection with .* dropped: it is not on the table")
async def test_open_connection_ends_when_its_host_leaves_the_ring_table(pair):
    allowed = {CLIENT, SERVER}
    tls = pair()

    def authorize(host, not_before_s):
        return admitting(*allowed).admission_error(host, not_before_s)

    async with (
        serving(limits=OFTEN, tls=tls[SERVER]) as (server, address),
        asking(
            address, limits=OFTEN, tls=tls[CLIENT], admission=admission.Admission(authorize)
        ) as client,
    ):
        await client.fetch(0, 10)
        allowed.discard(SERVER)
        await wait_until(
            lambda: client.net.connection_counts[1] == 0 and server.connection_counts[0] == 0
        )


@pytest.mark.expect_log("Connection with .* dropped: valid until")
@pytest.mark.allow_log("was not renewed")
async def test_open_connection_ends_when_the_certificate_expires(identity):
    passed_s = 0
    tls = identity(CLIENT, now=lambda: time.time() + passed_s).read()
    async with (
        serving(limits=OFTEN, tls=identity(SERVER).read()) as (_server, address),
        asking(address, limits=OFTEN, tls=tls) as client,
    ):
        await client.fetch(0, 10)
        passed_s = DAY_S + GRACE_S + 3600
        await wait_until(lambda: client.net.connection_counts[1] == 0)


# Files


async def test_certificate_renewal_under_load_closes_no_connection(identity):
    files = {host: identity(host) for host in (CLIENT, SERVER)}
    tls = {host: found.read() for host, found in files.items()}
    async with (
        serving(limits=OFTEN, tls=tls[SERVER]) as (server, address),
        asking(address, limits=OFTEN, tls=tls[CLIENT]) as client,
    ):
        await client.fetch(0, 10)
        [before] = server._incoming
        for generation in (2, 3):
            for found in files.values():
                found.write()
            with trio.fail_after(5):
                while tls[CLIENT].generation < generation:
                    assert len(await client.fetch(0, 65536)) == 65536
        assert list(server._incoming) == [before] and not before.is_closed
        await client.fetch(0, 10, priority=nets.PREFETCH)
        newest = {c.link.certificate.pem for c in server._incoming}
        assert len(newest) == 2  # a new connection uses the new certificate


@pytest.mark.expect_log("Connection with .* dropped: none of the trusted authorities")
async def test_connections_end_when_their_authority_is_no_longer_trusted(identity):
    found = identity(CLIENT)
    async with (
        serving(limits=OFTEN, tls=identity(SERVER).read()) as (_server, address),
        asking(address, limits=OFTEN, tls=found.read()) as client,
    ):
        await client.fetch(0, 10)
        found.write(THEIRS, THEIRS.certificate_pem)
        await wait_until(lambda: client.net.connection_counts[1] == 0)


@pytest.mark.expect_log(
    r"Connection with client.example .* dropped: none of the trusted authorities"
)
async def test_hello_after_its_authority_was_removed_closes_the_connection(identity, monkeypatch):
    """The handshake precedes the removal; the check of all connections precedes the Hello."""
    found = identity(SERVER)
    ours = found.read()
    looks = periodic_checks.Reauthorization(nets.EVERYBODY, ours, nets.PATIENT)
    async with serving(tls=ours) as (server, address):
        ip, port = address.split(":")
        client = identity(CLIENT).read()
        link = await connection_setup.connect(ip, int(port), client, silence_s=5)
        await wait_until(lambda: len(server.unauthenticated) == 1)
        await trio.sleep(0.05)
        found.write(THEIRS, THEIRS.certificate_pem)
        ours.reload_files()
        await looks._check(server._all())
        hello = peer_wire.Hello(CLIENT, nets.DEMAND, 1)
        await link.send_some(peer_wire.encode(hello, link.sending))
        await wait_until(lambda: server._incoming)
        await looks._check(server._all())
        await wait_until(lambda: server.connection_counts[0] == 0)
        link.close()


async def test_both_authorities_are_trusted_while_one_replaces_the_other(identity):
    both = OURS.certificate_pem + THEIRS.certificate_pem
    old, new = identity(CLIENT), identity(SERVER)
    old.write(OURS, both)
    new.write(THEIRS, both)
    async with (
        serving(tls=new.read()) as (_server, address),
        asking(address, tls=old.read()) as client,
    ):
        assert await client.fetch(0, 10) == DATA[:10]


@pytest.mark.allow_log("it is not used")
@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_unusable_files_leave_the_former_certificate_in_use(identity, name):
    found = identity(CLIENT)
    good = found.read()
    getattr(found.files, name).write_bytes(b"garbage")
    bad = found.read()
    good.reload_files()
    assert good.has_certificate and good.generation == 1
    assert not bad.has_certificate
    with pytest.raises(OSError, match="no certificate yet"):
        bad.tls_context(is_server=True)
    found.write()
    for credentials_ in (good, bad):
        credentials_.reload_files()
    assert (good.generation, bad.generation, bad.has_certificate) == (2, 1, True)


@pytest.mark.expect_log("server.example is rejected: this host is client.example; it is not used")
def test_certificate_of_another_host_is_not_used(identity):
    assert not identity(CLIENT, names=SERVER).read().has_certificate


# On the wire


async def relay(listener, port, change):
    """Relay bytes between two agents, and change them."""

    async def pass_on(source, to, is_answer):
        count = 0
        try:
            while data := await source.recv(65536):
                await to.send(change(data, count, is_answer))
                count += len(data)
        except OSError:
            pass
        for sock in (source, to):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    async def handler(stream):
        other = await trio.open_tcp_stream("127.0.0.1", port)
        async with trio.open_nursery() as nursery:
            for ends in ((stream.socket, other.socket, False), (other.socket, stream.socket, True)):
                nursery.start_soon(pass_on, *ends)

    await trio.serve_listeners(handler, [listener])


@pytest.mark.expect_log("its MAC is wrong")
@pytest.mark.parametrize("place", [30_000, 65_000])
async def test_bit_flipped_in_transit_fails_the_fetch_by_its_mac(pair, place):
    tls = pair(SECURE)
    is_on = False

    def change(data, count, is_answer):
        if is_on and is_answer and len(data) > 1000:
            changed = bytearray(data)
            changed[len(data) // 2] ^= 4
            return bytes(changed)
        return data

    async with serving(tls=tls[SERVER]) as (_server, address), trio.open_nursery() as nursery:
        port = int(address.rpartition(":")[2])
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(relay, listener, port, change)
        async with asking(nets.address_of(listener), tls=tls[CLIENT]) as client:
            assert await client.fetch(0, place) == DATA[:place]
            is_on = True
            with pytest.raises(errors.RemoteProtocolError, match="MAC"):
                await client.fetch(0, place)
            is_on = False
            assert await client.fetch(0, place) == DATA[:place]
        nursery.cancel_scope.cancel()


async def test_traffic_is_readable_only_in_insecure_mode(pair):
    for security, is_readable in ((SECURE, False), (INSECURE, True)):
        seen = bytearray()

        def listen(data, count, is_answer, seen=seen):
            seen.extend(data)
            return data

        tls = pair() if security is SECURE else {CLIENT: None, SERVER: None}
        async with serving(tls=tls[SERVER]) as (_server, address), trio.open_nursery() as nursery:
            port = int(address.rpartition(":")[2])
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(relay, listener, port, listen)
            async with asking(nets.address_of(listener), tls=tls[CLIENT]) as client:
                await client.fetch(0, 65536)
            nursery.cancel_scope.cancel()
        assert (DATA[1000:1100] in seen) == is_readable


# Options


class Options:
    """The options of [acstor_agent] that matter here."""

    def __init__(self, peer_listen="0.0.0.0:7201", peer_security=None):
        self.peer_listen, self.peer_security = peer_listen, peer_security


def files_of(found):
    return identity_files.IdentityFiles(found.host, found.files)


@pytest.mark.parametrize("address", ["127.0.0.1:7201", "[::1]:7201"])
def test_loopback_address_defaults_to_insecure(identity, address):
    assert settings.peer_credentials(Options(address), files_of(identity(CLIENT))) is None


@pytest.mark.parametrize("address", ["0.0.0.0:7201", "192.0.2.1:7201", "[::]:7201"])
def test_other_addresses_default_to_secure(identity, address):
    made = settings.peer_credentials(Options(address), files_of(identity(CLIENT)))
    assert made.protocol is SECURE and made.has_certificate


def test_missing_certificate_is_fatal_unless_it_may_come_later(identity, tmp_path):
    nothing = identity_files.IdentityFiles(CLIENT, identity_files.files_in(tmp_path / "none"))
    with pytest.raises(errors.Unusable, match=r"none/cert\.pem.*Enrol.*peer_security = insecure"):
        settings.peer_credentials(Options(), nothing)
    made = settings.peer_credentials(Options(), nothing, may_come_later=True)
    assert not made.has_certificate


@pytest.mark.expect_log("peer_security = insecure: anyone who reaches this host's port")
def test_insecure_mode_off_the_loopback_is_logged_as_a_warning(identity):
    own = Options(peer_security="insecure")
    assert settings.peer_credentials(own, files_of(identity(CLIENT))) is None


# Many at a time


class LoopIterations(trio.abc.Instrument):
    """Counts events: in total, in this turn of the scheduler, and the most in a turn."""

    def __init__(self):
        self.done = self.most = self.total = 0

    def note(self):
        self.done += 1
        self.total += 1
        self.most = max(self.most, self.done)

    def before_io_wait(self, timeout):
        self.done = 0


class Connected(base_connection.PeerConnection):
    """A silent connection of a host with a real certificate."""

    is_idle = True

    def __init__(self, host, certificate):
        ours, self.theirs = socket.socketpair()
        link = peer_link.PeerLink(ours)
        link.certificate = certificate
        share = loop_share.LoopShare(1)
        receiver = peer_receiver.receiver(host, peer_wire.FROM_CLIENT, None)
        super().__init__(host, link, receiver, DEMAND, demand_gate.DemandGate(), share)

    def _handle(self, message):
        pass

    def _has_room(self, message):
        return True


@pytest.fixture
async def connected():
    """Make connections, whose sockets are closed also where a test fails."""
    with contextlib.ExitStack() as stack:

        def connect(host, certificate):
            made = Connected(host, certificate)
            stack.callback(made.link.close)
            stack.callback(made.theirs.close)
            return made

        yield connect


@pytest.mark.expect_log("Connection with h7 dropped: none of the trusted authorities")
async def test_certificate_checks_are_spread_over_loop_turns(identity, connected, monkeypatch):
    ours = identity(SERVER).read()
    before = {f"h{n}": identity(f"h{n}").files.certificate.read_bytes() for n in range(40)}
    before["h7"] = identity("h7", THEIRS).files.certificate.read_bytes()
    known = {
        host: certificates.read_host_certificate(
            pem, (THEIRS if host == "h7" else OURS).certificate_pem
        )
        for host, pem in before.items()
    }
    connections = [connected(host, known[host]) for host in known for _ in range(4)]
    turns, check = LoopIterations(), ours.validity_fault

    def counted(certificate):
        turns.note()
        return check(certificate)

    monkeypatch.setattr(ours, "validity_fault", counted)
    trio.lowlevel.add_instrument(turns)
    watched = periodic_checks.Reauthorization(nets.EVERYBODY, ours, nets.PATIENT)
    await watched._check(connections)
    assert turns.total == 40  # once for each host
    assert turns.most <= periodic_checks.BATCH / periodic_checks.CERTIFICATE_COST + 1
    assert {c.host for c in connections if c.is_closed} == {"h7"}
    await watched._check(connections)
    assert turns.total == 40  # the files are unchanged


async def test_admission_checks_are_spread_over_loop_turns(connected):
    turns = LoopIterations()

    def authorize(host, not_before_s):
        turns.note()
        return ""

    connections = [connected(f"h{n}", None) for n in range(3 * periodic_checks.BATCH)]
    trio.lowlevel.add_instrument(turns)
    await periodic_checks.Reauthorization(
        admission.Admission(authorize), None, nets.PATIENT
    )._check(connections)
    assert turns.total == len(connections) and turns.most <= periodic_checks.BATCH + 1
