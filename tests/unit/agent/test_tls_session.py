# SPDX-License-Identifier: Apache-2.0
"""TLS sessions on byte strings: records split in any way, and invalid records."""

import contextlib
import random
import shutil
import socket
import ssl
import subprocess

import pytest

from acstor_agent.runtime import tls_session
from tests.unit.agent import test_peer_security as security

CLIENT, SERVER = security.CLIENT, security.SERVER
DATA = random.Random(1).randbytes(200_000)
SMALL_BYTES = 8192
PATIENCE_S = 20
BROKEN = r"BAD_RECORD_MAC|DECRYPTION_FAILED|RECORD_LAYER_FAILURE"
"""OpenSSL 3.5 reports every invalid record as the last one."""


@pytest.fixture
def contexts(tmp_path):
    """Return the TLS context of each side, and its files."""
    found = {host: security.Identity(tmp_path, host) for host in (CLIENT, SERVER)}
    return {
        host: (identity.read().tls_context(is_server=host == SERVER), identity.files)
        for host, identity in found.items()
    }


@pytest.fixture
def pair(contexts):
    """Return a client and a server after the handshake."""
    return joined(contexts)


def joined(contexts):
    client, server = (
        tls_session.TlsSession(contexts[host][0], is_server=host == SERVER)
        for host in (CLIENT, SERVER)
    )
    while not (client.continue_handshake() & server.continue_handshake()):
        server.add_received(client.take_outgoing())
        client.add_received(server.take_outgoing())
    return client, server


def read(session, length, more=True):
    """Return up to ``length`` bytes, read as the rest of a chunk or as the beginning of a frame."""
    space = memoryview(bytearray(length))
    rest = [memoryview(bytearray(SMALL_BYTES))] if more else []
    return bytes(space[: session.read_into(space, *rest)])


@pytest.mark.parametrize("seed", range(20))
def test_data_survives_any_split_of_writes_and_reads(pair, seed):
    client, server = pair
    dice = random.Random(seed)
    sizes = [1, 5, 100, 16384, 16385, 70_000]
    encrypted, start = b"", 0
    while start < len(DATA):
        end = start + dice.choice(sizes)
        encrypted += server.encrypt(DATA[start:end])
        start = end
    came, start = b"", 0
    while start < len(encrypted):
        end = start + dice.choice([1, 3, 5, 1000, 16384, 65536])
        client.add_received(encrypted[start:end])
        start = end
        while part := read(client, dice.choice([1, 700, 8192, 65536]), dice.random() < 0.5):
            came += part
    assert came == DATA
    assert not client.unread_bytes and not client.readable_bytes


def test_read_takes_one_record_at_a_frame_start_and_many_in_a_chunk(pair):
    client, server = pair
    client.add_received(
        b"".join(server.encrypt(DATA[start : start + 10]) for start in range(0, 100, 10))
    )
    assert read(client, 50, more=False) == DATA[:10]
    assert read(client, 50) == DATA[10:60]


def test_partial_record_is_unread_until_the_rest_arrives(pair):
    client, server = pair
    record = server.encrypt(DATA[:1000])
    for start, end in ((0, 3), (3, 500)):
        client.add_received(record[start:end])
        assert read(client, 1000) == b""
        assert client.unread_bytes == end or start  # OpenSSL has taken what it was given
    client.add_received(record[500:])
    assert read(client, 1000) == DATA[:1000]


def test_openssl_is_given_one_record_at_a_time(pair):
    """OpenSSL keeps, per connection, memory for the largest input so far."""
    client, server = pair
    client.add_received(server.encrypt(DATA[:65536]))
    read(client, 1, more=False)
    assert client._incoming.pending == 0
    assert client.unread_bytes > 3 * tls_session.RECORD_BYTES


@pytest.mark.parametrize("place", [5, 500, 1016])
def test_flipped_bit_is_detected_and_alerted_to_the_peer(pair, place):
    client, server = pair
    record = bytearray(server.encrypt(DATA[:1000]))
    record[place] ^= 1
    client.add_received(bytes(record))
    with pytest.raises(ssl.SSLError, match=BROKEN):
        read(client, 1000)
    server.add_received(client.take_outgoing())
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        read(server, 1000)


def test_missing_record_is_detected(pair):
    client, server = pair
    server.encrypt(DATA[:1000])
    client.add_received(server.encrypt(DATA[:1000]))
    with pytest.raises(ssl.SSLError, match=BROKEN):
        read(client, 1000)


def test_record_of_excessive_length_is_refused_before_it_is_complete(pair):
    client, _server = pair
    client.add_received(b"\x17\x03\x03\xff\xff")
    with pytest.raises(ssl.SSLError, match=rf"LENGTH|{BROKEN}"):
        for _ in range(20):
            assert read(client, 1000) == b""
            client.add_received(bytes(1024))


def test_close_notify_of_the_peer_ends_the_session(pair):
    client, server = pair
    last = server.encrypt(b"last")
    with contextlib.suppress(ssl.SSLWantReadError):  # it would wait for the other side's
        server._tls.unwrap()
    client.add_received(last + server.take_outgoing())
    assert read(client, 50) == b"last"
    assert read(client, 50) == b""
    assert client.is_over


def test_eof_during_the_handshake_is_an_error(contexts):
    server = tls_session.TlsSession(contexts[SERVER][0], is_server=True)
    assert not server.continue_handshake()
    server.receive_eof()
    with pytest.raises(ssl.SSLError, match=r"(?i)eof"):
        server.continue_handshake()


def test_few_session_tickets_are_accepted_and_many_are_refused(contexts):
    for count, is_borne in ((20, True), (1000, False)):
        contexts[SERVER][0].num_tickets = count
        client, server = joined(contexts)
        client.add_received(server.take_outgoing() + server.encrypt(b"data"))
        if is_borne:
            assert read(client, 50) == b"data"
            assert client._wordless_bytes > 20 * 100
            client.add_received(server.encrypt(DATA[:65_536]))
            assert len(read(client, 65_536)) == 65_536
            assert client._wordless_bytes == 0  # data resets the count
        else:
            with pytest.raises(OSError, match="too many TLS control records"):
                read(client, 50)
            assert client.unread_bytes > 20_000


def test_number_of_records_decrypted_per_read_is_limited(contexts):
    client, server = joined(contexts)
    row = tls_session.RECORDS_IN_A_ROW
    client.add_received(
        server.take_outgoing() + b"".join(server.encrypt(b"x") for _ in range(row + 3))
    )
    space = memoryview(bytearray(200))
    assert client.read_into(space, space) == row
    assert client.read_into(space, space) == 3


@contextlib.contextmanager
def asked_for_new_keys(contexts):
    """Yield a session, its socket and an openssl peer, as Python cannot request new keys."""
    context, files = contexts[SERVER][0], contexts[CLIENT][1]
    session = tls_session.TlsSession(context, is_server=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}"]
        command += ["-cert", files.certificate, "-key", files.key, "-alpn", "secure"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as other:
            sock, _address = listener.accept()
            with sock:
                sock.settimeout(PATIENCE_S)
                while not session.continue_handshake():
                    sock.sendall(session.take_outgoing())
                    session.add_received(sock.recv(65536))
                sock.sendall(session.take_outgoing())
                yield session, sock, other


def send(other, line):
    other.stdin.write(line + b"\n")
    other.stdin.flush()


NEEDS_OPENSSL = pytest.mark.skipif(
    not shutil.which("openssl"), reason="there is no openssl command, which asks for new keys"
)


@NEEDS_OPENSSL
def test_key_updates_of_the_peer_are_accepted(contexts):
    with asked_for_new_keys(contexts) as (session, sock, other):
        for word, renewals in ((b"one", 0), (b"two", 5)):
            for _ in range(renewals):
                send(other, b"K")
                session.add_received(sock.recv(65536))
                assert read(session, 50) == b""
            send(other, word)
            received = b""
            while not received.endswith(b"\n"):
                session.add_received(sock.recv(65536))
                received += read(session, 50)
            assert received == word + b"\n"
            sock.sendall(session.encrypt(b"answer " + word + b"\n"))
        sock.shutdown(socket.SHUT_WR)  # it prints what it was sent, and ends
        said = other.stdout.read()
    assert b"answer one" in said and b"answer two" in said


@NEEDS_OPENSSL
def test_flood_of_key_updates_is_refused(contexts):
    with asked_for_new_keys(contexts) as (session, sock, other):
        with pytest.raises(OSError, match="too many key updates"):
            for _ in range(1000):
                send(other, b"K")
                session.add_received(sock.recv(65536))
                assert read(session, 50) == b""
        assert session._outgoing.pending < 5000
        other.kill()
