# SPDX-License-Identifier: Apache-2.0
"""Signed messages on the bus; the signature is verified before the payload is parsed.

A host's message contains its certificate; hosts get the service's public keys at enrolment.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.wire import decision_messages

_T = TypeVar("_T", bound=msgspec.Struct)


def sign_payload(
    payload: msgspec.Struct, purpose: str, key_pem: bytes, certificate_pem: bytes = b""
) -> decision_messages.Signed:
    """Sign ``payload`` for a purpose of :mod:`signing`; "" as certificate: the decision service."""
    data = msgspec.json.encode(payload)
    signature = signature_of(purpose, data, key_pem)
    return decision_messages.Signed(data.decode(), signature, certificate_pem.decode())


def signature_of(purpose: str, data: bytes, key_pem: bytes) -> str:
    """Return the signature of ``data`` in base64."""
    return base64.b64encode(signing.sign(key_pem, purpose, data)).decode()


def check_signature(
    signers: Iterable[signing.PublicKey], purpose: str, data: bytes, signature: str
) -> None:
    """Verify a base64 signature of ``data``, or raise NotAuthenticated."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError) as e:
        raise errors.NotAuthenticated(f"a signature ({purpose})", "it is not base64") from e
    signing.verify(signers, purpose, data, raw)


def verify_from_service(
    message: decision_messages.Signed,
    purpose: str,
    signers: Iterable[signing.PublicKey],
    kind: type[_T],
) -> _T:
    """Verify and return a payload of the decision service.

    :raises errors.NotAuthenticated: not signed by it for this purpose
    :raises errors.RemoteProtocolError: the payload is no ``kind``
    """
    data = message.payload.encode()
    check_signature(signers, purpose, data, message.signature)
    return _decoded(data, kind, "the decision service")


def verify_from_host(
    message: decision_messages.Signed, purpose: str, ca_pem: bytes, kind: type[_T]
) -> tuple[certificates.HostCertificate, _T]:
    """Return a host's certificate and payload; errors as of :func:`verify_from_service`.

    The caller checks expiry and revocation, and that the payload names this host.
    """
    certificate = certificates.read_host_certificate(message.certificate.encode(), ca_pem)
    data = message.payload.encode()
    check_signature([certificate.public_key], purpose, data, message.signature)
    return certificate, _decoded(data, kind, certificate.host)


def _decoded(data: bytes, kind: type[_T], sender: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as e:
        raise errors.RemoteProtocolError(sender, str(e)) from e
