# SPDX-License-Identifier: Apache-2.0
"""What is signed on the message bus: sealing it and opening it again.

The one rule: nothing of a payload is read before its signature was checked, and what
is signed are the very bytes that were sent, never what they mean.

A host's payload comes with its certificate; what the decision service signs comes
without one, since its public keys (``signers.pem``) were handed over at enrolment.
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
    """Return ``payload`` as a message that proves who sent it.

    :param purpose: a constant of :mod:`acstor_common.identity.signing`
    :param certificate_pem: of the host that sends it; empty: the decision service does
    :raises errors.NotAuthenticated: the key cannot be used
    """
    data = msgspec.json.encode(payload)
    signature = signature_of(purpose, data, key_pem)
    return decision_messages.Signed(data.decode(), signature, certificate_pem.decode())


def signature_of(purpose: str, data: bytes, key_pem: bytes) -> str:
    """Return the signature of ``data`` as messages carry it, in base64."""
    return base64.b64encode(signing.sign(key_pem, purpose, data)).decode()


def check_signature(
    signers: Iterable[signing.PublicKey], purpose: str, data: bytes, signature: str
) -> None:
    """Return if one of the signers signed ``data`` for this purpose.

    :param signature: in base64
    :raises errors.NotAuthenticated: none of them did
    """
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
    """Return what the decision service sealed.

    :param signers: its public keys (:func:`signing.read_public_keys`)
    :raises errors.NotAuthenticated: it did not sign this, or not for this purpose
    :raises errors.RemoteProtocolError: it signed what is no ``kind``
    """
    data = message.payload.encode()
    check_signature(signers, purpose, data, message.signature)
    return _decoded(data, kind, "the decision service")


def verify_from_host(
    message: decision_messages.Signed, purpose: str, ca_pem: bytes, kind: type[_T]
) -> tuple[certificates.HostCertificate, _T]:
    """Return what a host sealed, and the certificate that says which host it is.

    Whether that certificate is too old or revoked, and whether the payload speaks of this host, is
    for the caller to look at.

    :param ca_pem: the authorities that are trusted
    :raises errors.NotAuthenticated: no host of theirs signed this, or not for this purpose
    :raises errors.RemoteProtocolError: it signed what is no ``kind``
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
