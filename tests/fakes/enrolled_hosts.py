# SPDX-License-Identifier: Apache-2.0
"""Hosts enrolled in a decision service's database, which sign their messages."""

import weakref
from collections.abc import Callable
from collections.abc import MutableMapping
from typing import ClassVar

from oslo_config import cfg

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority
from tests.fakes import manual_clock


class EnrolledHosts:
    """Hosts that enrol at first use; caches their keys by database.

    :param wall: the clock of the service
    """

    _by_database: ClassVar[MutableMapping[database.Database, dict[str, tuple[bytes, bytes]]]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(
        self, conf: cfg.ConfigOpts, store: database.Database, wall: Callable[[], float]
    ) -> None:
        self.keeper = certificate_authority.CertificateAuthority(
            conf.acstor_decision, store, manual_clock.FunctionClock(wall)
        )
        self._identities = self._by_database.setdefault(store, {})

    def identity(self, host: str) -> tuple[bytes, bytes]:
        """Return a host's key and certificate; enrol the host at first use."""
        if host not in self._identities:
            self.enrol(host)
        return self._identities[host]

    def enrol(self, host: str) -> certificate_authority.IssuedCertificate:
        """Enrol a host with a new key."""
        key, name = certificates.new_key(), ids.parse_host_id(host)
        request = certificates.request(name, key)
        issued = self.keeper.enrol_host(name, "user", "10.0.0.9", request, "")
        self._identities[host] = key, issued.certificate
        return issued

    def sealed(self, sample: decision_messages.Sample, by: str = "") -> decision_messages.Signed:
        """Return a host's sample, signed by that host or by ``by``."""
        return signed_messages.sign_payload(
            sample, signing.SAMPLE, *self.identity(by or sample.host)
        )
