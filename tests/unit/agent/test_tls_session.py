# SPDX-License-Identifier: Apache-2.0
"""TLS from bytes to bytes: records that come in any pieces, and what is wrong with them."""

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
"""The last is what OpenSSL 3.5 says of all that is wrong with a record."""


@pytest.fixture
def contexts(tmp_path):
    """Return what each side begins with, and the files that it has it from."""
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
def test_what_was_encrypted_in_any_pieces_and_comes_in_any_pieces_is_the_same(pair, seed):
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


def test_beginning_of_a_frame_gets_no_more_than_a_record_and_the_rest_of_a_chunk_many(pair):
    client, server = pair
    client.add_received(
        b"".join(server.encrypt(DATA[start : start + 10]) for start in range(0, 100, 10))
    )
    assert read(client, 50, more=False) == DATA[:10]
    assert read(client, 50) == DATA[10:60]


def test_part_of_a_record_is_unread_until_its_rest_comes(pair):
    client, server = pair
    record = server.encrypt(DATA[:1000])
    for start, end in ((0, 3), (3, 500)):
        client.add_received(record[start:end])
        assert read(client, 1000) == b""
        assert client.unread_bytes == end or start  # OpenSSL has taken what it was given
    client.add_received(record[500:])
    assert read(client, 1000) == DATA[:1000]


def test_openssl_is_given_one_record_at_a_time(pair):
    """It keeps for each connection the memory for the most that it was ever given."""
    client, server = pair
    client.add_received(server.encrypt(DATA[:65536]))
    read(client, 1, more=False)
    assert client._incoming.pending == 0
    assert client.unread_bytes > 3 * tls_session.RECORD_BYTES


@pytest.mark.parametrize("place", [5, 500, 1016])
def test_bit_that_was_changed_is_found_out_and_the_other_side_told(pair, place):
    client, server = pair
    record = bytearray(server.encrypt(DATA[:1000]))
    record[place] ^= 1
    client.add_received(bytes(record))
    with pytest.raises(ssl.SSLError, match=BROKEN):
        read(client, 1000)
    server.add_received(client.take_outgoing())
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        read(server, 1000)


def test_record_that_was_left_out_is_found_out(pair):
    client, server = pair
    server.encrypt(DATA[:1000])
    client.add_received(server.encrypt(DATA[:1000]))
    with pytest.raises(ssl.SSLError, match=BROKEN):
        read(client, 1000)


def test_record_that_says_to_be_longer_than_any_is_refused_before_it_is_whole(pair):
    client, _server = pair
    client.add_received(b"\x17\x03\x03\xff\xff")
    with pytest.raises(ssl.SSLError, match=rf"LENGTH|{BROKEN}"):
        for _ in range(20):
            assert read(client, 1000) == b""
            client.add_received(bytes(1024))


def test_end_that_the_other_side_says_is_seen(pair):
    client, server = pair
    last = server.encrypt(b"last")
    with contextlib.suppress(ssl.SSLWantReadError):  # it would wait for the other side's
        server._tls.unwrap()
    client.add_received(last + server.take_outgoing())
    assert read(client, 50) == b"last"
    assert read(client, 50) == b""
    assert client.is_over


def test_end_in_the_middle_of_the_handshake_is_an_error(contexts):
    server = tls_session.TlsSession(contexts[SERVER][0], is_server=True)
    assert not server.continue_handshake()
    server.receive_eof()
    with pytest.raises(ssl.SSLError, match=r"(?i)eof"):
        server.continue_handshake()


def test_few_session_tickets_cost_nothing_and_many_are_left(contexts):
    for count, is_borne in ((20, True), (1000, False)):
        contexts[SERVER][0].num_tickets = count
        client, server = joined(contexts)
        client.add_received(server.take_outgoing() + server.encrypt(b"data"))
        if is_borne:
            assert read(client, 50) == b"data"
            assert client._wordless_bytes > 20 * 100
            client.add_received(server.encrypt(DATA[:65_536]))
            assert len(read(client, 65_536)) == 65_536
            assert client._wordless_bytes == 0  # who speaks may send some again
        else:
            with pytest.raises(OSError, match="records of TLS itself, again and again"):
                read(client, 50)
            assert client.unread_bytes > 20_000


def test_short_records_are_decrypted_some_at_a_time(contexts):
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
    """Give a session, its socket, and the other side: Python cannot ask for new keys itself."""
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


def say(other, line):
    other.stdin.write(line + b"\n")
    other.stdin.flush()


NEEDS_OPENSSL = pytest.mark.skipif(
    not shutil.which("openssl"), reason="there is no openssl command, which asks for new keys"
)


@NEEDS_OPENSSL
def test_new_keys_that_the_other_side_asks_for_cost_nothing(contexts):
    with asked_for_new_keys(contexts) as (session, sock, other):
        for word, renewals in ((b"one", 0), (b"two", 5)):
            for _ in range(renewals):
                say(other, b"K")
                session.add_received(sock.recv(65536))
                assert read(session, 50) == b""
            say(other, word)
            heard = b""
            while not heard.endswith(b"\n"):
                session.add_received(sock.recv(65536))
                heard += read(session, 50)
            assert heard == word + b"\n"
            sock.sendall(session.encrypt(b"answer " + word + b"\n"))
        sock.shutdown(socket.SHUT_WR)  # it prints what it was sent, and ends
        said = other.stdout.read()
    assert b"answer one" in said and b"answer two" in said


@NEEDS_OPENSSL
def test_who_asks_for_new_keys_again_and_again_is_left(contexts):
    with asked_for_new_keys(contexts) as (session, sock, other):
        with pytest.raises(OSError, match="new keys again and again"):
            for _ in range(1000):
                say(other, b"K")
                session.add_received(sock.recv(65536))
                assert read(session, 50) == b""
        assert session._outgoing.pending < 5000
        other.kill()
