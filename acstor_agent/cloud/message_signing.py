# SPDX-License-Identifier: Apache-2.0
"""Signs messages; verifies v-node tables before it parses them, since any bus client can send."""

import logging
from typing import Any

import msgspec

from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.util import log_once
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

LOG = logging.getLogger(__name__)

NO_SIGNERS = "this host has no keys to verify signatures (signers.pem)"


def verify_table(
    sent: decision_messages.RingTable, signers: identity_files.Signers
) -> hash_ring.Ring:
    """Verify and decode a table; a large one takes seconds.

    :raises errors.NotAuthenticated: it is not signed by the service, or the epoch differs
    :raises errors.RingFormatError: it is malformed
    """
    what = f"v-node table {sent.epoch}"
    if not signers:
        raise errors.NotAuthenticated(what, NO_SIGNERS)
    data = sent.table.encode()
    signed_messages.check_signature(signers, signing.TABLE, data, sent.signature)
    table = hash_ring.decode(data, what)
    if table.epoch != sent.epoch:
        raise errors.NotAuthenticated(what, f"the signature is for epoch {table.epoch}")
    return table


class MessageSigner:
    """Signs messages of this host."""

    def __init__(self, files: identity_files.IdentityFiles) -> None:
        self._files = files
        self._fault = log_once.LogOnce(LOG)

    def sign_message(self, payload: msgspec.Struct, purpose: str) -> dict[str, Any] | None:
        """Return the signed message; None if this host has no certificate."""
        identity = self._files.current_credentials()
        if identity.certificate is None:
            self._fault.log_warning(
                "no samples and boot traces are sent: this host has no certificate "
                f"({self._files.files.certificate})"
            )
            return None
        self._fault.log_warning("")
        signed = signed_messages.sign_payload(
            payload, purpose, identity.key, identity.certificate.pem
        )
        return decision_messages.encode(signed)
