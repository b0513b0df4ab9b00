# SPDX-License-Identifier: Apache-2.0
"""The keys of a cloud in the test's hands: an authority, and what the decision service signs with.

Everything is made with the project's own code, as the decision service makes it.
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
    """An authority and a signing key.

    :param now_s: when all of it was made
    """

    def __init__(self, now_s: float | None = None) -> None:
        self.now_s = time.time() if now_s is None else now_s
        self.authority = certificates.Authority.create("a test", self.now_s, 365 * DAY_S)
        self.signing_key = signing.new_key()

    @property
    def signers(self) -> bytes:
        """The public half of the signing key, PEM."""
        return signing.public_pem(self.signing_key)

    def host(
        self, name: str, now_s: float | None = None, valid_s: int = DAY_S
    ) -> identity_files.IdentitySet:
        """Return what the files of a host hold, with a certificate issued at ``now_s``."""
        issued_s = self.now_s if now_s is None else now_s
        return identities.issue(
            name, self.authority, now_s=issued_s, valid_s=valid_s, signers=self.signers
        )

    def give(self, state_dir: pathlib.Path, name: str) -> identity_files.IdentitySet:
        """Put the files of a host in its state folder, which is made if it is not there."""
        state_dir.mkdir(parents=True, exist_ok=True)
        made = self.host(name)
        identity_files.write(state_dir / "identity", made)
        return made

    def table(self, table: hash_ring.Ring, told: int | None = None) -> decision_messages.RingTable:
        """Return a table as the decision service sends it.

        :param told: the epoch beside it, if not its own
        """
        data = hash_ring.encode(table)
        signature = signed_messages.signature_of(signing.TABLE, data, self.signing_key)
        return decision_messages.RingTable(
            table.epoch if told is None else told, data.decode(), signature
        )

    def task(
        self,
        task: decision_messages.ImageTask,
        *hosts: str,
        given_s: float | None = None,
        purpose: str = signing.TASK,
    ) -> decision_messages.Signed:
        """Return a task as the decision service gives it.

        :param hosts: whom it is for; all if there are none
        """
        at_s = time.time() if given_s is None else given_s
        given = decision_messages.TaskForHosts(task=task, hosts=hosts, given_s=at_s)
        return signed_messages.sign_payload(given, purpose, self.signing_key)

    def wanted(
        self, wanted: decision_messages.ImageWanted, request: int = 1, given_s: float | None = None
    ) -> decision_messages.Signed:
        """Return a request to prepare an image as the decision service gives it."""
        at_s = time.time() if given_s is None else given_s
        sent = decision_messages.ImageWantedAt(wanted=wanted, request=request, given_s=at_s)
        return signed_messages.sign_payload(sent, signing.IMAGE_WANTED, self.signing_key)


def own_authority(*uses: x509.ObjectIdentifier) -> tuple[bytes, bytes]:
    """Return certificate and key (PEM) of an operator's authority, made as the project does not.

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
