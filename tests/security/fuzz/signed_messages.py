# SPDX-License-Identifier: Apache-2.0
"""Targets of signed bus messages: a valid signature does not make the content valid.

After the damage the host or the decision service that owns a message signs it again.

"""

import base64
import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec

from acstor_agent.cloud import message_signing
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants
from acstor_common.wire import signed_messages
from tests.security.fuzz import trust
from tests.security.fuzz import wire_messages
from tests.security.fuzz.target import Target

SIGNERS = signing.read_public_keys(signing.public_pem(trust.CA_KEY))
REFUSALS = (wire_messages.NotJson, errors.RemoteProtocolError, errors.NotAuthenticated)


def _re_sign(purpose: str, key: bytes, signed: str = "payload") -> Callable[[bytearray], None]:
    """Return a function that signs the field ``signed`` of a message, if present."""

    def fix_checksums(data: bytearray) -> None:
        try:
            message = json.loads(bytes(data))
            text = message[signed].encode()
            message["signature"] = signed_messages.signature_of(purpose, text, key)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return
        data[:] = json.dumps(message).encode()

    return fix_checksums


def _from_host(data: bytes, purpose: str, kind: type[Any]) -> tuple[Any, Any]:
    message = decision_messages.decode(wire_messages.on_the_bus(data), decision_messages.Signed)
    return signed_messages.verify_from_host(message, purpose, trust.CA, kind)


def _host_target(name: str, purpose: str, example: msgspec.Struct) -> Target:
    def check(taken: tuple[certificates.HostCertificate, Any], _data: bytes) -> None:
        again = signed_messages.sign_payload(taken[1], purpose, trust.HOST_KEY, taken[0].pem)
        assert signed_messages.verify_from_host(again, purpose, trust.CA, type(example)) == taken

    signed = signed_messages.sign_payload(example, purpose, trust.HOST_KEY, trust.CERTIFICATE)
    return Target(
        name,
        lambda data: _from_host(data, purpose, type(example)),
        REFUSALS,
        lambda: [msgspec.json.encode(signed)],
        check,
        _re_sign(purpose, trust.HOST_KEY),
    )


def _from_service(data: bytes) -> decision_messages.TaskForHosts:
    message = decision_messages.decode(wire_messages.on_the_bus(data), decision_messages.Signed)
    return signed_messages.verify_from_service(
        message, signing.TASK, SIGNERS, decision_messages.TaskForHosts
    )


def _task_seeds() -> list[bytes]:
    task = decision_messages.TaskForHosts(
        task=wire_messages.TASK_EXAMPLE, hosts=("h1",), given_s=1.8e9
    )
    return [msgspec.json.encode(signed_messages.sign_payload(task, signing.TASK, trust.CA_KEY))]


def _parse_table(data: bytes) -> hash_ring.Ring:
    sent = decision_messages.decode(wire_messages.on_the_bus(data), decision_messages.RingTable)
    return message_signing.verify_table(sent, SIGNERS)


def _table_seeds() -> list[bytes]:
    seeds = []
    for table in wire_messages.RING.seeds():
        signature = signed_messages.signature_of(signing.TABLE, table, trust.CA_KEY)
        epoch = json.loads(table)["epoch"]
        seeds.append(
            msgspec.json.encode(decision_messages.RingTable(epoch, table.decode(), signature))
        )
    return seeds


SIGNED_SAMPLE = _host_target("signed_sample", signing.SAMPLE, wire_messages.SAMPLE_EXAMPLE)
SIGNED_TRACE = _host_target("signed_trace", signing.TRACE, wire_messages.TRACE_EXAMPLE)
SIGNED_TASK = Target(
    "signed_task",
    _from_service,
    REFUSALS,
    _task_seeds,
    fix_checksums=_re_sign(signing.TASK, trust.CA_KEY),
)
SIGNED_TABLE = Target(
    "signed_table",
    _parse_table,
    (*REFUSALS, errors.RingFormatError),
    _table_seeds,
    fix_checksums=_re_sign(signing.TABLE, trust.CA_KEY, "table"),
    max_bytes=2000,
    time_limit_s=wire_messages.RING.time_limit_s,
    floor_bytes=wire_messages.RING.floor_bytes,
)

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
GRANT_S = 1.8e9
_ASKED = image_grants.GrantRequest("h1", IMAGE, GRANT_S)


def _use_grant(data: bytes) -> image_grants.ImageGrant:
    """Send the gateway a grant with the host's proof, if there is something to prove."""
    headers = {image_grants.GRANT_HEADER: base64.urlsafe_b64encode(data).decode()}
    target = image_grants.target_of(f"/v1/images/{IMAGE}/file", "bytes=0-9")
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        grant = msgspec.json.decode(data, type=decision_messages.Signed)
        headers |= image_grants.headers_of(grant, target, trust.HOST_KEY, GRANT_S)
    return image_grants.verify_use(headers, target, SIGNERS, {"h2": 1 << 40}, GRANT_S)


def _grant_seeds() -> list[bytes]:
    certificate = certificates.read_host_certificate(trust.CERTIFICATE, trust.CA)
    made = image_grants.new_grant(_ASKED, certificate, trust.CA_KEY, GRANT_S)
    return [msgspec.json.encode(made)]


def _check_grant(taken: image_grants.ImageGrant, _data: bytes) -> None:
    assert abs(taken.issued_s - GRANT_S) <= image_grants.LIFETIME_S + image_grants.SKEW_S
    assert taken.host != "h2"


SIGNED_GRANT_REQUEST = _host_target("signed_grant_request", signing.IMAGE_GRANT_WANTED, _ASKED)
IMAGE_GRANT = Target(
    "image_grant",
    _use_grant,
    REFUSALS,
    _grant_seeds,
    _check_grant,
    _re_sign(signing.IMAGE_GRANT, trust.CA_KEY),
)

ALL = (
    SIGNED_SAMPLE,
    SIGNED_TRACE,
    SIGNED_TASK,
    SIGNED_TABLE,
    SIGNED_GRANT_REQUEST,
    IMAGE_GRANT,
)
