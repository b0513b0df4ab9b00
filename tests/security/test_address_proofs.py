# SPDX-License-Identifier: Apache-2.0
"""The decision service connects to an announced address before it publishes it.

One address belongs to a real agent, the others to sockets of the test.  The whole service would
accept loopback addresses without a proof, so the tests call the verifier.

"""

import contextlib
import pathlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import serialization

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_decision.core import enrolment_rules
from acstor_decision.core.membership import address_book
from acstor_decision.db import models
from acstor_decision.identity import address_verifier
from acstor_decision.identity import trust_state
from tests.fakes import hosts
from tests.lab import identities
from tests.lab import local

pytestmark = hosts.needs_fuse

MUTE = 100
WAIT_S = 30.0


def believed(*shown: bytes) -> trust_state.TrustState:
    """Return the trust state of the lab's authority, with hosts enrolled by certificate."""
    rows = {}
    for pem in shown:
        found = certificates.read_host_certificate(pem, identities.authority().certificate_pem)
        key = found.public_key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        rows[str(found.host)] = models.Enrolment(
            host=found.host,
            state=enrolment_rules.EnrolmentState.ENROLLED,
            public_key=key.decode(),
            former_key="",
            revoked_before_s=0,
        )
    return trust_state.TrustState(ca=identities.authority().certificate_pem, hosts=rows)


@contextlib.contextmanager
def listening() -> Iterator[address_book.Address]:
    """Run a listener that accepts connections and sends nothing."""
    with socket.create_server((local.LOOPBACK, 0), backlog=64) as server:
        yield address_book.Address(*server.getsockname())


@contextlib.contextmanager
def showing(files: identity_files.IdentitySet) -> Iterator[address_book.Address]:
    """Run a server with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with credentials._in_memory(files.certificate + files.key) as path:
        context.load_cert_chain(path)

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link, _ = server.accept()
            with link, context.wrap_socket(link, server_side=True):
                pass

    with socket.create_server((local.LOOPBACK, 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield address_book.Address(*server.getsockname())


def test_only_the_agent_itself_proves_its_address(tmp_path: pathlib.Path) -> None:
    images = local.ImageFolder(tmp_path / "images")
    with hosts.cloud(tmp_path, images, ("h1",), security="secure", life_s=60) as cloud:
        pem = (cloud["h1"].state_dir / "identity" / "cert.pem").read_bytes()
        trusted = believed(pem)
        at_h1 = address_book.Address(local.LOOPBACK, cloud.ports["h1"])
        for _ in range(3):
            assert address_verifier.verify_address(at_h1, trusted, time.time()) == "h1"
        with pytest.raises(errors.NotAuthenticated, match="it has not enrolled here"):
            address_verifier.verify_address(at_h1, believed(), time.time())
        stranger = certificates.Authority.create("another cloud", time.time(), 3600)
        for files, refusal in (
            (identities.issue("h1", stranger), ssl.SSLError),
            (
                identities.issue("h1"),
                errors.NotAuthenticated,
            ),  # with another key than the enrolled one
        ):
            with showing(files) as address, pytest.raises(refusal):
                address_verifier.verify_address(address, trusted, time.time())
        with pytest.raises(OSError):
            unused = address_book.Address(local.LOOPBACK, local.unused_port())
            address_verifier.verify_address(unused, trusted, time.time())
        assert "dropped" not in cloud["h1"].log()
        assert cloud["h1"].status()["refused"]["connections"] == 0


def test_silent_addresses_delay_verification_only_by_their_time_limit(
    tmp_path: pathlib.Path,
) -> None:
    files = identities.issue("h1")
    prover = address_verifier.AddressVerifier(attempt_s=0.5)

    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(listening()) for _ in range(MUTE)]
        at_h1 = stack.enter_context(showing(files))
        prover.submit_addresses([*mute, at_h1, *mute], believed(files.certificate))
        began = time.monotonic()
        prover.start(threading.Event())
        found: list[address_verifier.VerifyResult] = []
        while len(found) <= MUTE and time.monotonic() - began < WAIT_S:
            found += prover.take_results()
            time.sleep(0.02)
        assert len(found) == MUTE + 1
        assert {proof.host for proof in found if proof.address == at_h1} == {"h1"}
        assert {proof.host for proof in found if proof.address != at_h1} == {""}
        assert time.monotonic() - began < 3 * 0.5 * MUTE / address_verifier.WORKERS
