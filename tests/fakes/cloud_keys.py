# SPDX-License-Identifier: Apache-2.0
"""A cloud's certificate authority and signing key.

The project's own code makes them, as in the decision service.
"""

import datetime
import pathlib
import time

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import oid

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from tests.lab import identities

DAY_S = 86_400


class CloudKeys:
    """A certificate authority and a signing key.

    :param now_s: creation time
    """

    def __init__(self, now_s: float | None = None) -> None:
        self.now_s = time.time() if now_s is None else now_s
        self.authority = certificates.Authority.create("a test", self.now_s, 365 * DAY_S)
        self.signing_key = signing.new_key()

    @property
    def signers(self) -> bytes:
        """The public signing key, PEM."""
        return signing.public_pem(self.signing_key)

    def host(
        self, name: str, now_s: float | None = None, valid_s: int = DAY_S
    ) -> identity_files.IdentitySet:
        """Return a host's identity files, with a certificate issued at ``now_s``."""
        issued_s = self.now_s if now_s is None else now_s
        return identities.issue(
            name, self.authority, now_s=issued_s, valid_s=valid_s, signers=self.signers
        )

    def give(self, state_dir: pathlib.Path, name: str) -> identity_files.IdentitySet:
        """Write a host's identity files into its state folder."""
        state_dir.mkdir(parents=True, exist_ok=True)
        made = self.host(name)
        identity_files.write(state_dir / "identity", made)
        return made

    def table(
        self, table: hash_ring.Ring, reported: int | None = None
    ) -> decision_messages.RingTable:
        """Return a table as the decision service sends it.

        :param reported: epoch of the message; None: the table's
        """
        data = hash_ring.encode(table)
        signature = signed_messages.signature_of(signing.TABLE, data, self.signing_key)
        return decision_messages.RingTable(
            table.epoch if reported is None else reported, data.decode(), signature
        )

    def task(
        self,
        task: decision_messages.ImageTask,
        *hosts: str,
        given_s: float | None = None,
        purpose: str = signing.TASK,
    ) -> decision_messages.Signed:
        """Return a task as the decision service sends it.

        :param hosts: its addressees; none: all hosts
        """
        at_s = time.time() if given_s is None else given_s
        given = decision_messages.TaskForHosts(task=task, hosts=hosts, given_s=at_s)
        return signed_messages.sign_payload(given, purpose, self.signing_key)

    def wanted(
        self, wanted: decision_messages.ImageWanted, request: int = 1, given_s: float | None = None
    ) -> decision_messages.Signed:
        """Return a request to prepare an image as the decision service sends it."""
        at_s = time.time() if given_s is None else given_s
        sent = decision_messages.ImageWantedAt(wanted=wanted, request=request, given_s=at_s)
        return signed_messages.sign_payload(sent, signing.IMAGE_WANTED, self.signing_key)


def own_authority(*uses: x509.ObjectIdentifier) -> tuple[bytes, bytes]:
    """Return an operator's CA certificate and key (PEM), made by cryptography alone.

    :param uses: its extended key usage
    """
    key_pem = signing.new_key()
    key = signing.read_key(key_pem)
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, "own")])
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, now, end)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    made = builder.sign(key, None).public_bytes(serialization.Encoding.PEM)
    return made, key_pem
