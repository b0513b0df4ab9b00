# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of a run of the lab: it gives every agent its certificate.

A host that has files already, from a decision service or from a test, keeps
them.
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
    """Return the authority of all agents that this process runs."""
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
    """Return what the files of a host hold.

    :param issuer: another authority than the lab's
    :param age_s: how long ago the certificate was issued
    :param now_s: by another clock than that of this machine
    :param signers: the public keys that it believes
    """
    issuer = issuer or authority()
    host, key = ids.parse_host_id(name), certificates.new_key()
    issued_s = (time.time() if now_s is None else now_s) - age_s
    certificate = issuer.issue_certificate(certificates.request(host, key), host, issued_s, valid_s)
    return identity_files.IdentitySet(issuer.certificate_pem, certificate, key, signers)


def give(state_dir: pathlib.Path, name: str) -> None:
    """Put the files of a host in its state folder, if there are none."""
    state_dir.mkdir(parents=True, exist_ok=True)
    if not (state_dir / "identity").exists():
        identity_files.write(state_dir / "identity", issue(name))
