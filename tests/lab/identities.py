# SPDX-License-Identifier: Apache-2.0
"""The lab's certificate authority, which issues every agent's certificate.

A host with identity files from a decision service or a test keeps them.
"""

import functools
import pathlib
import time

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import ids

VALID_S = 86_400


@functools.cache
def authority() -> certificates.Authority:
    """Return the authority of all agents of this process."""
    return certificates.Authority.create("the lab", time.time(), VALID_S)


def issue(
    name: str,
    issuer: certificates.Authority | None = None,
    age_s: float = 0.0,
    *,
    now_s: float | None = None,
    valid_s: int = VALID_S,
    signers: bytes = b"",
) -> identity_files.IdentitySet:
    """Return a host's identity files.

    :param issuer: the authority; None: the lab's
    :param age_s: age of the certificate
    :param now_s: the current time; None: this machine's
    :param signers: the public keys that the host trusts
    """
    issuer = issuer or authority()
    host, key = ids.parse_host_id(name), certificates.new_key()
    issued_s = (time.time() if now_s is None else now_s) - age_s
    certificate = issuer.issue_certificate(certificates.request(host, key), host, issued_s, valid_s)
    return identity_files.IdentitySet(issuer.certificate_pem, certificate, key, signers)


def give(state_dir: pathlib.Path, name: str) -> None:
    """Write a host's identity files to its state folder, unless it has some."""
    state_dir.mkdir(parents=True, exist_ok=True)
    if not (state_dir / "identity").exists():
        identity_files.write(state_dir / "identity", issue(name))
