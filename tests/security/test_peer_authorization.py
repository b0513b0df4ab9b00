# SPDX-License-Identifier: Apache-2.0
"""Authentication and authorization of requests to a real agent."""

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import hosts
from tests.fakes import raw_peer
from tests.lab import identities
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(4 * geometry.MIB, seed=11)
CIDS = [ids.cid_of(DATA[start : start + CHUNK]) for start in range(0, len(DATA), CHUNK)]
MISSING = peer_wire.RefuseCode.MISSING
NOWHERE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DAY_S = 86_400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cloud")


@pytest.fixture(scope="module")
def images(folder):
    return local.ImageFolder(folder / "images")


@pytest.fixture(scope="module")
def mirrored(images):
    return images.add(DATA)


@pytest.fixture(scope="module")
def cloud(folder, images, mirrored) -> Iterator[hosts.Cloud]:
    """An agent with an image that its guest has read, and a host played by the test."""
    with hosts.cloud(
        folder, images, ("h1",), in_ring_only={"evil": 1}, security="secure", life_s=120
    ) as made:
        assert made["h1"].image_path(mirrored).read_bytes() == DATA
        yield made


def ask(cloud, *question, **options):
    with raw_peer.greeted(cloud.ports["h1"], "evil", identities.issue("evil")) as peer:
        return peer.get("h1", *question, **options)


def test_host_of_the_ring_gets_a_chunk_whose_cid_it_proves(cloud, mirrored, images):
    for image_id in (mirrored, images.add(DATA)):  # mirrored there, and not
        answer = ask(cloud, image_id, CHUNK, CHUNK, CIDS[1])
        assert isinstance(answer, peer_wire.Chunk) and answer.data == DATA[CHUNK : 2 * CHUNK]


QUESTIONS = {
    "one byte": (0, 1, ids.cid_of(DATA[:1])),
    "not aligned": (1, CHUNK, ids.cid_of(DATA[1 : CHUNK + 1])),
    "another chunk's CID": (0, CHUNK, CIDS[1]),
    "an unknown CID": (0, CHUNK, ids.cid_of(b"guessed")),
    "two chunks": (0, 2 * CHUNK, ids.cid_of(DATA[: 2 * CHUNK])),
    "past the end": (len(DATA), CHUNK, CIDS[0]),
    "boot image": ((1 << 62), CHUNK, CIDS[0]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_other_requests_are_refused_as_missing(cloud, mirrored, images, name):
    offset, length, cid = QUESTIONS[name]
    for image_id in (mirrored, images.add(DATA)):
        answer = ask(cloud, image_id, offset, length, cid)
        assert isinstance(answer, peer_wire.Refuse) and answer.code is MISSING
    assert "evil requested " in cloud["h1"].log()


def test_unknown_image_gets_the_same_refusal_as_an_existing_one(cloud, mirrored):
    wrong = ids.cid_of(b"guessed")
    answers = {ask(cloud, image_id, 0, CHUNK, wrong) for image_id in (NOWHERE, mirrored)}
    assert len(answers) == 1


def test_proof_made_for_another_host_is_refused(cloud, mirrored):
    """A home cannot forward a proof that it received."""
    stolen = peer_wire.proof_of(CIDS[0], ids.HostId("h2"), ids.HostId("evil"))
    for proof in (stolen, CIDS[0][:16], bytes(16)):
        answer = ask(cloud, mirrored, 0, CHUNK, CIDS[0], proof=proof)
        assert isinstance(answer, peer_wire.Refuse) and answer.code is MISSING


# Authentication

OTHER = certificates.Authority.create("another cloud", time.time(), DAY_S)
UNAUTHENTICATED: dict[str, tuple[str, identity_files.IdentitySet | None, str]] = {
    "not on the table": ("h9", identities.issue("h9"), "it is neither in the current v-node table"),
    "another cloud": ("evil", identities.issue("evil", OTHER), "its certificate is not trusted"),
    "another's name": ("evil", identities.issue("h9"), "its certificate is of h9"),
    "name of the agent itself": ("h1", identities.issue("evil"), "its certificate is of evil"),
    "long expired": (
        "evil",
        identities.issue("evil", age_s=9 * DAY_S),
        "8 days ago: it was not renewed",
    ),
    "not yet valid": (
        "evil",
        identities.issue("evil", age_s=-DAY_S),
        "from now: one of the two clocks is wrong",
    ),
    "clear text": ("evil", None, "peer_security differs"),
}


@pytest.mark.parametrize("name", UNAUTHENTICATED)
def test_unauthenticated_host_gets_no_response_and_is_logged(cloud, name):
    host, files, said = UNAUTHENTICATED[name]
    with raw_peer.RawPeer(cloud.ports["h1"], host, files) as peer:
        assert not isinstance(peer.greet(), peer_wire.Hello)
    hosts.wait_until(lambda: said in cloud["h1"].log(), f"a line about {name}")


def test_expired_certificate_is_accepted_within_its_grace_time(cloud):
    late = identities.issue("evil", age_s=3 * DAY_S)
    with raw_peer.greeted(cloud.ports["h1"], "evil", late) as peer:
        assert peer.name == "evil"


def test_garbage_before_the_handshake_does_not_affect_other_hosts(cloud, mirrored):
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(2000), b"\x16\x03\x01\xff\xff" * 50):
        with raw_peer.RawPeer(cloud.ports["h1"], "evil", None) as peer:
            with contextlib.suppress(ConnectionError):
                peer.link.sendall(garbage)
                while peer.link.recv(100):
                    pass
    assert isinstance(ask(cloud, mirrored, 0, CHUNK, CIDS[0]), peer_wire.Chunk)


def test_host_removed_from_the_ring_loses_its_open_connections(tmp_path, images, mirrored):
    with hosts.cloud(
        tmp_path,
        images,
        ("h1",),
        in_ring_only={"evil": 1},
        security="secure",
        constants={tuned.FORMER_TABLE_LIFETIME_S: 0},
    ) as cloud:
        with raw_peer.greeted(cloud.ports["h1"], "evil", identities.issue("evil")) as peer:
            answer = peer.get("h1", mirrored, 0, CHUNK, CIDS[0])
            assert isinstance(answer, peer_wire.Chunk)
            hosts.write_ring(cloud.ring_file, cloud.ports, epoch=2)
            assert peer.receive() is None
        with raw_peer.RawPeer(cloud.ports["h1"], "evil", identities.issue("evil")) as peer:
            assert peer.greet() is None
        assert "it is neither in the current v-node table" in cloud["h1"].log()


def test_insecure_agent_refuses_a_peer_with_its_own_name(tmp_path, images):
    with hosts.cloud(tmp_path, images, ("h1", "h2"), security="insecure") as cloud:
        for name, is_answered in (("h1", False), ("h2", True)):
            with raw_peer.RawPeer(cloud.ports["h1"], name, None) as peer:
                assert isinstance(peer.greet(), peer_wire.Hello) is is_answered
        assert "that is this host's own name" in cloud["h1"].log()
