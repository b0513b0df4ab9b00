# SPDX-License-Identifier: Apache-2.0
"""Grants: a host may read one image through the gateway, for some minutes.

A host requests a grant from the decision service on the message bus; the service signs it for the
key of the host's certificate.  Each request to the gateway has the grant, and a proof signed by
that key: a copied grant is of no use to other hosts, and a copied request only for some minutes.
:func:`verify_use` limits sizes before anything is decoded.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Annotated
from typing import Final

import msgspec

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

REQUEST_GRANT: Final = "request_image_grant"
GRANT_HEADER: Final = "X-Acstor-Grant"
PROOF_HEADER: Final = "X-Acstor-Proof"
HOST_ROLE: Final = "acstor-host"
"""Role in Keystone of an agents' user that reads by grants."""

LIFETIME_S: Final = 600.0
PROOF_AGE_S: Final = 120.0
SKEW_S: Final = 60.0
"""Tolerated difference of the clocks of decision service and gateway."""
MAX_HEADER: Final = 2048
_PROOF = re.compile(r"([0-9]{1,12}) ([A-Za-z0-9+/]{86}==)")
_HOST = Annotated[str, msgspec.Meta(max_length=255)]


class _HostAndImage(msgspec.Struct, frozen=True):
    host: _HOST
    image_id: str

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        ids.parse_image_id(self.image_id)


class GrantRequest(_HostAndImage, frozen=True):
    """A host's request for a grant, which it signs."""

    sent_s: decision_messages.Moment


class ImageGrant(_HostAndImage, frozen=True, kw_only=True):
    """The permission to read an image and its artefacts, for one host."""

    host_key: Annotated[str, msgspec.Meta(max_length=512)]  # PEM, of the host's certificate
    issued_s: decision_messages.Moment
    expires_s: decision_messages.Moment


class GrantResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The decision service's response, which it signs; ``host`` and ``sent_s`` of the request."""

    host: str
    sent_s: float
    grant: decision_messages.Signed | None = None
    why: Annotated[str, msgspec.Meta(max_length=1024)] = ""  # of a refusal; then there is no grant
    is_transient: bool = False  # a later request may be granted


def new_grant(
    request: GrantRequest, certificate: certificates.HostCertificate, signer: bytes, now_s: float
) -> decision_messages.Signed:
    """Return a signed grant for an authenticated request; ``signer`` is a private key."""
    grant = ImageGrant(
        image_id=request.image_id,
        host=certificate.host,
        host_key=signing.pem_of(certificate.public_key),
        issued_s=now_s,
        expires_s=now_s + LIFETIME_S,
    )
    return signed_messages.sign_payload(grant, signing.IMAGE_GRANT, signer)


def headers_of(
    grant: decision_messages.Signed, target: str, key_pem: bytes, now_s: float
) -> dict[str, str]:
    """Return the headers of a request; ``key_pem`` is the private key of the certificate."""
    text = base64.urlsafe_b64encode(msgspec.json.encode(grant)).decode()
    at_s = int(now_s)
    signed = _signed_bytes(grant, target, at_s)
    proof = signed_messages.signature_of(signing.IMAGE_GRANT_USE, signed, key_pem)
    return {GRANT_HEADER: text, PROOF_HEADER: f"{at_s} {proof}"}


def target_of(path: str, byte_range: str) -> str:
    """Return the signed part of a GET: the path from ``/v1/`` on, and ``Range`` or ""."""
    return f"GET {path} {byte_range}"


def _signed_bytes(grant: decision_messages.Signed, target: str, at_s: int) -> bytes:
    return f"{at_s}\n{grant.signature}\n{target}".encode()


def verify_use(
    headers: Mapping[str, str],
    target: str,
    signers: Iterable[signing.PublicKey],
    revoked: Mapping[str, int],
    now_s: float,
) -> ImageGrant:
    """Return the grant of a request for ``target`` after all checks but that of the image.

    :param revoked: as in a v-node table
    :raises errors.NotAuthenticated: it does not permit this host this request now
    :raises errors.RemoteProtocolError: it is malformed
    """
    signed = _decoded(headers.get(GRANT_HEADER, ""))
    grant = signed_messages.verify_from_service(signed, signing.IMAGE_GRANT, signers, ImageGrant)
    what = f"the grant of {grant.host} for image {grant.image_id}"
    if fault := _why_not_valid(grant, revoked, now_s):
        raise errors.NotAuthenticated(what, fault)
    found = _PROOF.fullmatch(headers.get(PROOF_HEADER, "")[:MAX_HEADER])
    if found is None:
        raise errors.NotAuthenticated(what, "there is no proof of the host's key")
    at_s = int(found[1])
    if abs(now_s - at_s) > PROOF_AGE_S:
        raise errors.NotAuthenticated(what, f"its proof is {now_s - at_s:.0f} s old")
    keys = signing.read_public_keys(grant.host_key.encode())
    data = _signed_bytes(signed, target, at_s)
    signed_messages.check_signature(keys, signing.IMAGE_GRANT_USE, data, found[2])
    return grant


def _why_not_valid(grant: ImageGrant, revoked: Mapping[str, int], now_s: float) -> str:
    if grant.issued_s > now_s + SKEW_S:
        return f"it begins {grant.issued_s - now_s:.0f} s from now: one of the two clocks is wrong"
    expires_s = min(grant.expires_s, grant.issued_s + LIFETIME_S)
    if now_s > expires_s + SKEW_S:
        return f"it expired {now_s - expires_s:.0f} s ago"
    # A revocation covers certificates that begin before it, and they are backdated.
    if grant.issued_s - certificates.BACKDATE_S < revoked.get(grant.host, 0):
        return "the host was revoked"
    return ""


def _decoded(text: str) -> decision_messages.Signed:
    if len(text) > MAX_HEADER:
        raise errors.RemoteProtocolError("a caller", f"its grant has {len(text)} characters")
    try:
        data = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
        found = msgspec.json.decode(data, type=decision_messages.Signed)
        found.payload.encode()
    except (binascii.Error, ValueError, RecursionError) as e:
        raise errors.RemoteProtocolError("a caller", f"its grant is malformed: {e}") from e
    return found
