# SPDX-License-Identifier: Apache-2.0
"""Targets that decide on trust: certificates, requests, keys, Glance's records.

Certificates and requests are DER that the issuing key signs again after each damage; otherwise only
the first check would ever run.

"""

import base64
import json
import pathlib
import re
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.controller import notifications
from acstor_glance.prepare import format_check
from tests.fakes import qcow2_files
from tests.security.fuzz import formats
from tests.security.fuzz import wire_messages
from tests.security.fuzz.target import Target

HOST = ids.HostId("h1")
SIGNATURE_BYTES = 64


def _key(first: int) -> bytes:
    """Return a constant key that protects nothing."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(first, first + 32)))
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


CA_KEY, HOST_KEY = _key(1), _key(100)
CA = (pathlib.Path(__file__).parent / "ca.pem").read_bytes()
"""Of CA_KEY.  Kept like the host's: a new one would have another number each time."""
CERTIFICATE = (pathlib.Path(__file__).parent / "host.pem").read_bytes()
"""Of HOST_KEY."""


def _der(pem: bytes) -> bytes:
    found = re.search(rb"-----BEGIN [A-Z ]+-----(.*?)-----END", pem, re.DOTALL)
    assert found
    return base64.b64decode(found[1])


def _as_pem(data: bytes, label: str) -> bytes:
    """Return PEM as it is, and anything else as the DER of one."""
    if data.startswith(b"--"):
        return data
    body = base64.encodebytes(data)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label.encode(), body, label.encode())


def _sign(data: bytearray, key: bytes) -> None:
    """Sign the content of an X.509 certificate or request, if ``data`` resembles one."""
    if data[4:6] != b"\x30\x82" or len(data) < 8 + SIGNATURE_BYTES:
        return
    stop = 8 + int.from_bytes(data[6:8], "big")
    if stop + SIGNATURE_BYTES <= len(data):
        signature = signing.read_key(key).sign(bytes(data[4:stop]))
        data[-SIGNATURE_BYTES:] = signature


def _check_certificate(taken: certificates.HostCertificate, _data: bytes) -> None:
    assert ids.parse_host_id(taken.host) == taken.host
    again = certificates.read_host_certificate(taken.pem, CA)
    assert again[:3] == taken[:3]
    for now_s in (0.0, 1.8e9, 4e9):
        certificates.time_fault(taken, now_s, 0.0)


HOST_CERTIFICATE = Target(
    "host_certificate",
    lambda data: certificates.read_host_certificate(data, CA),
    (errors.NotAuthenticated,),
    lambda: [_der(CERTIFICATE), CERTIFICATE, _der(CA)],
    _check_certificate,
    lambda data: _sign(data, CA_KEY),
)
CERTIFICATE_REQUEST = Target(
    "certificate_request",
    lambda data: certificates.request_key(_as_pem(data, "CERTIFICATE REQUEST")),
    (errors.NotAuthenticated,),
    lambda: [
        certificates.request(HOST, HOST_KEY),
        _der(certificates.request(HOST, HOST_KEY)),
    ],
    lambda key, _data: len(certificates.fingerprint(key)) and None,
    lambda data: _sign(data, HOST_KEY),
)
AUTHORITIES = Target(
    "authorities",
    lambda data: certificates.read_ca(_as_pem(data, "CERTIFICATE")),
    (errors.NotAuthenticated,),
    lambda: [CA, CA + CA, _der(CA)],
)
SIGNERS = Target(
    "signers",
    signing.read_public_keys,
    (errors.NotAuthenticated,),
    lambda: [signing.public_pem(CA_KEY), signing.public_pem(CA_KEY) + signing.public_pem(HOST_KEY)],
)


def _read_record(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise wire_messages.NotJson from e
    if not isinstance(record, dict):
        raise wire_messages.NotJson
    return record


def _check_image(image: image_record.Image) -> None:
    for kind in artefacts.Kind:
        artefacts.pointer_of(image, kind)
        artefacts.why_foreign(image, image, kind, "p1", 1)
    artefacts.state_of(image)
    artefacts.kind_of(image)
    artefacts.is_artefact(image, "p1")
    assert artefacts.revision_of(image) >= 0
    assert image.size_bytes >= 0
    assert image_record.parse_os_hash(image.os_hash.algo, image.os_hash.value.hex()) == (
        image.os_hash
    )
    image_record.why_not_served(image)


def _check_record(record: dict[str, Any], _data: bytes) -> None:
    """Use every property of a record; only its ID may raise."""
    try:
        image = image_record.Image.from_record(record)
    except ValueError:  # its ID is invalid
        image = image_record.Image()
    _check_image(image)
    for event in notifications.EVENTS:
        for image_id in notifications.image_ids_of(event, record):
            assert ids.parse_image_id(image_id) == image_id


IMAGE_RECORD = Target(
    "image_record",
    _read_record,
    (wire_messages.NotJson,),
    lambda: [
        json.dumps(
            {
                "id": formats.IMAGE,
                "owner": "p1",
                "status": "active",
                "size": 1024,
                "disk_format": "raw",
                "container_format": "bare",
                "os_hash_algo": "sha256",
                "os_hash_value": "00ff",
                artefacts.KIND: "chunk_map",
                artefacts.OF_IMAGE: formats.IMAGE,
                artefacts.OS_HASH_ALGO: "sha256",
                artefacts.OS_HASH_VALUE: "00ff",
                artefacts.FORMAT: "1",
                artefacts.REVISION: "7",
                artefacts.STATE: "ready",
                artefacts.STATE_OF: formats.IMAGE,
                artefacts.Kind.CHUNK_MAP.pointer: formats.IMAGE,
                "properties": {artefacts.OF_IMAGE: formats.IMAGE},
            }
        ).encode()
    ],
    _check_record,
)
RAW_FORMAT = Target(
    "raw_format",
    format_check.why_not_raw,
    (),
    lambda: [
        b"QFI\xfb\0\0\0\3" + bytes(504),
        b"KDMV" + bytes(508),
        bytes(510) + b"\x55\xaa",
        bytes(510) + b"\x55\xaaEFI PART" + bytes(504),
        b"conectix" + bytes(504),
        b"vhdxfile" + bytes(504),
        bytes(32769) + b"CD001" + bytes(100),
        b"LUKS\xba\xbe\0\1" + bytes(600),
    ],
    max_bytes=1 << 16,
)
QCOW2_FORMAT = Target(
    "qcow2_format",
    format_check.why_not_qcow2,
    (),
    lambda: [*RAW_FORMAT.seeds(), qcow2_files.File(cluster_bits=9, size=512).pack()],
    max_bytes=1 << 16,
)

ALL = (
    HOST_CERTIFICATE,
    CERTIFICATE_REQUEST,
    AUTHORITIES,
    SIGNERS,
    IMAGE_RECORD,
    RAW_FORMAT,
    QCOW2_FORMAT,
)
