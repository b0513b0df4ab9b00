# SPDX-License-Identifier: Apache-2.0
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from tests.fakes import cloud_keys

NOW_S = 1_800_000_000.5
DAY_S = 86400
HOST = ids.HostId("Compute_1.rack-3")
CA = certificates.Authority.create("test", NOW_S, 10 * DAY_S)
OTHER_CA = certificates.Authority.create("test", NOW_S, 10 * DAY_S)
KEY = certificates.new_key()
CSR = certificates.request(HOST, KEY)
CERT = CA.issue_certificate(CSR, HOST, NOW_S, DAY_S)


SERVER, CLIENT = oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH
ANY = oid.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


def made_by_hand(*extensions: x509.ExtensionType, common_name: str = "") -> bytes:
    """Return a certificate of the authority with only these extensions."""
    names = [x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)] if common_name else []
    issuer = x509.load_pem_x509_certificate(CA.certificate_pem).subject
    now = datetime.datetime.fromtimestamp(int(NOW_S), datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer, x509.Name(names), signing.read_key(KEY).public_key(), 7, now, now
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signing.read_key(CA.key_pem), None).public_bytes(serialization.Encoding.PEM)


def names(*wanted: x509.GeneralName) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(wanted)


def test_certificate_names_its_host():
    read = certificates.read_host_certificate(CERT, CA.certificate_pem)
    assert read.host == HOST and read.pem == CERT
    assert read.not_before_s == int(NOW_S) - certificates.BACKDATE_S
    assert read.not_after_s == int(NOW_S) + DAY_S
    assert read.public_key == signing.read_key(KEY).public_key()


def test_der_certificate_is_read_like_pem():
    der = ssl.PEM_cert_to_DER_cert(CERT.decode())
    read = certificates.read_host_certificate(der, CA.certificate_pem)
    assert read == certificates.read_host_certificate(CERT, CA.certificate_pem)


def test_nested_certificate_is_ignored():
    """An operator's own authority may copy data of a request into extensions."""
    inner = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.1"), b"\n" + CERT)
    outer = made_by_hand(names(x509.DNSName("other")), inner)
    der = ssl.PEM_cert_to_DER_cert(outer.decode())
    assert CERT in der
    assert certificates.read_host_certificate(der, CA.certificate_pem).host == "other"


def test_certificate_of_any_authority_in_the_bundle_is_trusted():
    bundle = OTHER_CA.certificate_pem + CA.certificate_pem
    assert certificates.read_host_certificate(CERT, bundle).host == HOST


def test_host_name_comes_from_the_authority_and_not_from_the_request():
    issued = CA.issue_certificate(CSR, ids.HostId("h2"), NOW_S, DAY_S)
    assert certificates.read_host_certificate(issued, CA.certificate_pem).host == "h2"


@pytest.mark.parametrize(
    ("pem", "ca", "why"),
    [
        (CERT, OTHER_CA.certificate_pem, "none of the trusted authorities issued it"),
        (CERT, CERT, "is not a CA certificate"),
        (CERT, b"", "not X.509"),
        (CA.certificate_pem, CA.certificate_pem, "it is a CA certificate"),
        (made_by_hand(common_name=HOST), CA.certificate_pem, "no subjectAltName"),
        (
            made_by_hand(names(x509.DNSName("h1"), x509.DNSName("h2"))),
            CA.certificate_pem,
            "2 names, exactly one DNS name",
        ),
        (
            made_by_hand(names(x509.DNSName("h1"), x509.RFC822Name("a@b.c"))),
            CA.certificate_pem,
            "2 names",
        ),
        (
            made_by_hand(names(x509.DNSName("h1")), x509.ExtendedKeyUsage([SERVER])),
            CA.certificate_pem,
            "lacks clientAuth",
        ),
        (
            made_by_hand(names(x509.DNSName("h1")), x509.ExtendedKeyUsage([CLIENT])),
            CA.certificate_pem,
            "lacks serverAuth",
        ),
        (
            made_by_hand(names(x509.DNSName("h1")), x509.ExtendedKeyUsage([ANY])),
            CA.certificate_pem,
            "lacks serverAuth and clientAuth",
        ),
        (made_by_hand(names(x509.RFC822Name("h1"))), CA.certificate_pem, "one DNS name"),
        (made_by_hand(names(x509.DNSName("*.rack"))), CA.certificate_pem, "not a host id"),
        (made_by_hand(names(x509.DNSName("a/b"))), CA.certificate_pem, "not a host id"),
        (CERT + b" " * certificates.MAX_CERTIFICATE_BYTES, CA.certificate_pem, "at most"),
        (CERT, CA.certificate_pem * 1000, "at most"),
    ],
    ids=lambda value: value if isinstance(value, str) else "pem",  # keys differ in each process
)
def test_certificate_without_a_valid_host_is_refused(pem, ca, why):
    with pytest.raises(errors.NotAuthenticated, match=why):
        certificates.read_host_certificate(pem, ca)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_changed_certificate_byte_is_detected():
    der = bytearray(ssl.PEM_cert_to_DER_cert(CERT.decode()))
    unused_bits = len(der) - 64 - 1  # of the signature's BIT STRING
    for place in set(range(len(der))) - {unused_bits}:
        der[place] ^= 1
        with pytest.raises(errors.NotAuthenticated):
            certificates.read_host_certificate(bytes(der), CA.certificate_pem)
        der[place] ^= 1


@pytest.mark.parametrize(
    ("late_s", "grace_s", "fault"),
    [
        (0, 0, ""),
        (-certificates.BACKDATE_S, 0, ""),
        (-23 * 3600, 0, "23 h from now: one of the two clocks is wrong"),
        (-23 * 3600, 7 * DAY_S, "valid from 2027-01-15 07:55:00 UTC on"),
        (DAY_S, 0, ""),
        (DAY_S + 90, 0, "valid until 2027-01-16 08:00:00 UTC, 90 s ago"),
        (DAY_S + 90, 100, ""),
        (8 * DAY_S, 6 * DAY_S, "7 days ago"),
    ],
)
def test_time_fault_names_the_difference(late_s, grace_s, fault):
    read = certificates.read_host_certificate(CERT, CA.certificate_pem)
    said = certificates.time_fault(read, int(NOW_S) + late_s, grace_s)
    assert fault in said and bool(said) == bool(fault)


def test_revocation_covers_only_certificates_issued_before_it():
    revoked = {HOST: certificates.refused_before(NOW_S)}
    read = certificates.read_host_certificate(CERT, CA.certificate_pem)
    assert certificates.is_revoked(read, revoked)
    later = CA.issue_certificate(CSR, HOST, NOW_S + 1, DAY_S)
    again = certificates.read_host_certificate(later, CA.certificate_pem)
    assert not certificates.is_revoked(again, revoked)
    assert not certificates.is_revoked(read, {"h2": revoked[HOST]})


@pytest.mark.parametrize("what", ["nothing", "ec", "unsigned"])
def test_request_without_a_valid_own_signature_is_refused(what):
    with pytest.raises(errors.NotAuthenticated, match="certificate request"):
        CA.issue_certificate(_bad_request(what), HOST, NOW_S, DAY_S)


def _bad_request(what: str) -> bytes:
    if what == "nothing":
        return b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
    if what == "ec":
        key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    der = bytearray(x509.load_pem_x509_csr(CSR).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)


def test_authority_needs_a_matching_certificate_and_key():
    again = certificates.Authority(CA.certificate_pem, CA.key_pem)
    assert certificates.read_host_certificate(
        again.issue_certificate(CSR, HOST, NOW_S, DAY_S), CA.certificate_pem
    )
    for certificate, key in (
        (CA.certificate_pem, OTHER_CA.key_pem),
        (CERT, KEY),
        (CA.certificate_pem, b"key"),
    ):
        with pytest.raises(errors.NotAuthenticated):
            certificates.Authority(certificate, key)


def test_operators_authority_may_have_another_key_type():
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, "an operator's")])
    now = datetime.datetime.fromtimestamp(int(NOW_S), datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7, now, now)
    builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    ca_pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    issued = certificates.Authority(ca_pem, key_pem).issue_certificate(CSR, HOST, NOW_S, DAY_S)
    assert certificates.read_host_certificate(issued, ca_pem).host == HOST


def test_authority_without_client_and_server_usage_is_refused():
    own = certificates.Authority(*cloud_keys.own_authority(CLIENT, SERVER))
    issued = own.issue_certificate(CSR, HOST, NOW_S, DAY_S)
    assert certificates.read_host_certificate(issued, own.certificate_pem).host == HOST
    with pytest.raises(errors.NotAuthenticated, match="usage of CN=own lacks clientAuth"):
        certificates.Authority(*cloud_keys.own_authority(SERVER))


def test_openssl_accepts_the_chain_in_strict_mode(tmp_path):
    """Python 3.13 requires key identifiers, usage and critical constraints by default."""
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    ca = certificates.Authority.create("test", now_s, DAY_S)
    (tmp_path / "cert.pem").write_bytes(ca.issue_certificate(CSR, HOST, now_s, DAY_S))
    (tmp_path / "key.pem").write_bytes(KEY)
    contexts = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=ca.certificate_pem.decode())
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    client = contexts[1].wrap_bio(to_client, to_server)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    seen = server.getpeercert(binary_form=True)
    assert certificates.read_host_certificate(seen, ca.certificate_pem).host == HOST


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_are_no_certificate_request_or_authority(garbage, is_pem):
    if is_pem:
        garbage = b"-----BEGIN CERTIFICATE-----\n" + garbage + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(errors.NotAuthenticated):
        certificates.read_host_certificate(garbage, CA.certificate_pem)
    with pytest.raises(errors.NotAuthenticated):
        certificates.read_host_certificate(CERT, garbage)
    with pytest.raises(errors.NotAuthenticated):
        certificates.request_key(garbage)
