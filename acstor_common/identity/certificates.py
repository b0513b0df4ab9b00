# SPDX-License-Identifier: Apache-2.0
"""Host certificates: X.509 (RFC 5280), Ed25519, one name.

The host's ID is the only DNS subjectAltName: no fallback to the common name, no second name.
Expiry is checked apart from the chain, because hosts continue for a while with expired
certificates.  Validity begins BACKDATE_S before the issue to allow for clock skew; revocations
account for it.
"""

import datetime
from typing import Final
from typing import NamedTuple

from cryptography import exceptions
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509 import oid

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.model import ids

BACKDATE_S: Final = 300
GRACE_S: Final = 7 * 86400
"""Time for which an expired certificate is accepted: renewal may fail for a weekend.

The decision service and Glance's listener use the same value."""
CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key.pem"  # file names of an authority's certificate and key in its folder
MAX_CERTIFICATE_BYTES: Final = 16 * 1024
MAX_BUNDLE_BYTES: Final = 256 * 1024
_USES: Final = {
    oid.ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth",
    oid.ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth",
}
"""Extended key usages of hosts, which are both ends of connections."""
_SEQUENCE: Final = b"\x30"  # first byte of a certificate in DER; PEM never begins with it

_CaKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_Unreadable = (
    ValueError,
    TypeError,
    exceptions.UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

new_key = signing.new_key


class HostCertificate(NamedTuple):
    """A certificate that the cloud's authority issued to a host; times are of the wall clock."""

    host: ids.HostId
    not_before_s: int  # BACKDATE_S before the issue
    not_after_s: int
    public_key: ed25519.Ed25519PublicKey
    pem: bytes


def request(host: ids.HostId, key: bytes) -> bytes:
    """Return a certificate request (PKCS 10, PEM), or raise NotAuthenticated."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    names = x509.SubjectAlternativeName([x509.DNSName(host)])
    csr = builder.add_extension(names, critical=True).sign(signing.read_key(key), None)
    return csr.public_bytes(serialization.Encoding.PEM)


def request_key(csr_pem: bytes) -> ed25519.Ed25519PublicKey:
    """Return the key that signed a certificate request, or raise NotAuthenticated."""
    what = "a certificate request"
    try:
        csr = x509.load_pem_x509_csr(_bounded(csr_pem, MAX_CERTIFICATE_BYTES, what))
        key, is_signed = csr.public_key(), csr.is_signature_valid
    except _Unreadable as e:
        raise errors.NotAuthenticated(what, "it is not a PKCS #10 request in PEM") from e
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise errors.NotAuthenticated(what, "its key is not an Ed25519 key")
    if not is_signed:
        raise errors.NotAuthenticated(what, "its own key did not sign it")
    return key


def fingerprint(key: ed25519.Ed25519PublicKey) -> str:
    """Return the SHA-256 of a key's SubjectPublicKeyInfo in hex."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return digest.finalize().hex()


class Authority:
    """A certificate authority, which issues host certificates; its key is Ed25519, EC or RSA.

    :raises errors.NotAuthenticated: no authority's certificate, or not of this key
    """

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        self._certificate = read_ca(certificate_pem)[0]
        self._key = _read_ca_key(key_pem)
        if self._certificate.public_key() != self._key.public_key():
            raise errors.NotAuthenticated(
                "a certificate authority", "its key does not match its certificate"
            )
        self.certificate_pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        self.key_pem = key_pem

    @classmethod
    def create(cls, name: str, now_s: float, valid_s: int) -> "Authority":
        """Return a new authority with a new key."""
        key_pem = new_key()
        key = signing.read_key(key_pem)
        subject = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), now_s, valid_s)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        builder = builder.add_extension(_usage(is_ca=True), critical=True)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = builder.add_extension(authority_key, critical=False)
        certificate = builder.sign(key, None)
        return cls(certificate.public_bytes(serialization.Encoding.PEM), key_pem)

    def issue_certificate(
        self, csr_pem: bytes, host: ids.HostId, now_s: float, valid_s: int
    ) -> bytes:
        """Return a host's certificate (PEM) for the key of a request, ignoring its names."""
        key = request_key(csr_pem)
        builder = _builder(x509.Name([]), self._certificate.subject, key, now_s, valid_s)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(is_ca=False), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(_USES)), critical=False)
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(ours, critical=False)
        is_plain = isinstance(self._key, ed25519.Ed25519PrivateKey)
        certificate = builder.sign(self._key, None if is_plain else hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ed25519.Ed25519PublicKey, now_s: float, valid_s: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(_datetime(int(now_s) - BACKDATE_S))
    builder = builder.not_valid_after(_datetime(int(now_s) + valid_s))
    ours = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.add_extension(ours, critical=False)


def _datetime(at_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _read_ca_key(key_pem: bytes) -> _CaKey:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except _Unreadable as e:
        raise errors.NotAuthenticated("a key", "it is not a PEM key without a password") from e
    if not isinstance(key, _CaKey):
        raise errors.NotAuthenticated("a key", "it is neither an Ed25519, EC nor RSA key")
    return key


def _bounded(data: bytes, limit: int, what: str) -> bytes:
    if len(data) > limit:
        raise errors.NotAuthenticated(what, f"{len(data)} bytes, at most {limit} are accepted")
    return data


def read_ca(ca_pem: bytes) -> list[x509.Certificate]:
    """Return the authorities' certificates in a file, in order, or raise NotAuthenticated."""
    what = "certificates of authorities"
    try:
        found = x509.load_pem_x509_certificates(_bounded(ca_pem, MAX_BUNDLE_BYTES, what))
        authorities = [_is_ca(certificate) for certificate in found]
    except _Unreadable as e:
        raise errors.NotAuthenticated(what, "they are not X.509 certificates in PEM") from e
    if not all(authorities):
        raise errors.NotAuthenticated(what, "one of them is not a CA certificate")
    for certificate in found:
        _check_uses(certificate, what)
    return found


def _check_uses(certificate: x509.Certificate, what: str) -> None:
    """Check that a certificate allows both ends; otherwise OpenSSL closes connections silently."""
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if missing := [name for use, name in _USES.items() if use not in uses]:
        whose = certificate.subject.rfc4514_string() or "a certificate without a name"
        why = f"the extended key usage of {whose} lacks {' and '.join(missing)}"
        raise errors.NotAuthenticated(what, why)


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def described(certificate: x509.Certificate) -> str:
    """Return a certificate's subject, validity and fingerprint in one line."""
    return (
        f"{certificate.subject.rfc4514_string() or 'without a name'}  valid from "
        f"{certificate.not_valid_before_utc:%Y-%m-%d} until "
        f"{certificate.not_valid_after_utc:%Y-%m-%d}  SHA-256 "
        f"{certificate.fingerprint(hashes.SHA256()).hex()}"
    )


def read_host_certificate(pem_or_der: bytes, ca_pem: bytes) -> HostCertificate:
    """Parse a host's certificate; check its chain and name, not its time.

    :param ca_pem: trusted authorities; one of them must be the direct issuer
    :raises errors.NotAuthenticated: malformed, other issuer, not one name, not Ed25519, bad usage
    """
    what = "a host's certificate"
    try:
        certificate = _load(_bounded(pem_or_der, MAX_CERTIFICATE_BYTES, what))
        return _host_certificate(certificate, read_ca(ca_pem))
    except _Unreadable as e:
        raise errors.NotAuthenticated(what, "it is not a readable X.509 certificate") from e


def _load(pem_or_der: bytes) -> x509.Certificate:
    # Decide by the first byte: DER may embed another certificate's PEM, which TLS did not check.
    if pem_or_der.startswith(_SEQUENCE):
        return x509.load_der_x509_certificate(pem_or_der)
    return x509.load_pem_x509_certificate(pem_or_der)


def _host_certificate(
    certificate: x509.Certificate, authorities: list[x509.Certificate]
) -> HostCertificate:
    what = "a host's certificate"
    if not any(_is_issued_by(certificate, ca) for ca in authorities):
        raise errors.NotAuthenticated(what, "none of the trusted authorities issued it")
    if _is_ca(certificate):
        raise errors.NotAuthenticated(what, "it is a CA certificate")
    _check_uses(certificate, what)
    key = certificate.public_key()
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise errors.NotAuthenticated(what, "its key is not an Ed25519 key")
    return HostCertificate(
        _host_of(certificate),
        int(certificate.not_valid_before_utc.timestamp()),
        int(certificate.not_valid_after_utc.timestamp()),
        key,
        certificate.public_bytes(serialization.Encoding.PEM),
    )


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, exceptions.InvalidSignature, exceptions.UnsupportedAlgorithm):
        return False
    return True


def _host_of(certificate: x509.Certificate) -> ids.HostId:
    what = "a host's certificate"
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise errors.NotAuthenticated(what, "it has no subjectAltName") from None
    if len(names) != 1 or not isinstance(name := names[0], x509.DNSName):
        raise errors.NotAuthenticated(what, f"{len(names)} names, exactly one DNS name is allowed")
    try:
        return ids.parse_host_id(name.value)
    except ValueError as e:
        raise errors.NotAuthenticated(what, str(e)) from e


def time_fault(certificate: HostCertificate, now_s: float, grace_s: float) -> str:
    """Return why a certificate is not valid now; "" if it is, or ended up to ``grace_s`` ago."""
    early_s = certificate.not_before_s - now_s
    if early_s > 0:
        return (
            f"valid from {_datetime(certificate.not_before_s):%Y-%m-%d %H:%M:%S} UTC on, "
            f"{_span(early_s)} from now: one of the two clocks is wrong"
        )
    late_s = now_s - certificate.not_after_s
    if late_s > grace_s:
        return (
            f"valid until {_datetime(certificate.not_after_s):%Y-%m-%d %H:%M:%S} UTC, "
            f"{_span(late_s)} ago: it was not renewed, or one of the two clocks is wrong"
        )
    return ""


def _span(seconds: float) -> str:
    """Format a duration in a fitting unit.

    >>> _span(59), _span(3600), _span(23 * 3600 + 1), _span(3 * 86400)
    ('59 s', '60 min', '23 h', '72 h')
    """
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (96 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def refused_before(revoked_s: float) -> int:
    """Return the ``not_before_s`` below which a revocation at ``revoked_s`` applies."""
    return int(revoked_s) + 1 - BACKDATE_S


def is_revoked(certificate: HostCertificate, revoked: dict[str, int]) -> bool:
    """Return whether a v-node table's ``revoked`` covers this certificate."""
    return certificate.not_before_s < revoked.get(certificate.host, 0)
