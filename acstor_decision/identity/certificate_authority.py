# SPDX-License-Identifier: Apache-2.0
"""The cloud's certificate authority, and the keys that sign tables and tasks.

Hosts receive a new key before its first use, and trust the previous one until all its signatures
have expired, so a renewal needs no work on hosts; only a stolen key is replaced at once.
"""

import logging
import pathlib
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_decision import conf as decision_conf
from acstor_decision.core import enrolment_rules
from acstor_decision.db import database
from acstor_decision.db import json_columns
from acstor_decision.db import models
from acstor_decision.identity import enrolment_records
from acstor_decision.identity import trust_state

LOG = logging.getLogger(__name__)

CA = "ca"
SIGNER = "signer"
CA_LIFE_S = 10 * 366 * 86400
FORMER_TRUSTED_S = 30 * 86400
"""How long a previous key is trusted beyond the lifetime of its last signature."""
STOLEN_S = 0.0  # end of the trust in a stolen key: before any clock's time
_LIMITS = enrolment_rules.EnrolmentLimits()


class IssuedCertificate(NamedTuple):
    """A certificate and the keys that its host needs, in PEM."""

    certificate: bytes
    ca: bytes
    signers: bytes
    not_after_s: float  # end of the certificate
    now_s: float  # the service's clock


class CertificateAuthority:
    """The certificate authority; methods raise DatabaseError, and Unusable for bad files."""

    def __init__(
        self,
        own: cfg.ConfigOpts.GroupAttr,
        store: database.Database,
        clock: clocks.Clock = time,
        limits: enrolment_rules.EnrolmentLimits = _LIMITS,
    ) -> None:
        self._own, self._store, self._clock, self._limits = own, store, clock, limits
        self.enrolment: str = own.enrolment
        self.certificate_lifetime_s: int = own.certificate_lifetime_s

    # Keys

    def load_trust_state(self) -> trust_state.TrustState:
        """Return the current trust state; create missing keys."""
        signer = _in_use(self._keys(SIGNER), self._clock.time()).secret_key.encode()
        hosts = {row.host: row for row in self._store.list_enrolments()}
        return trust_state.TrustState(self.authority_chain(), self.signer_keys(), signer, hosts)

    def signer_keys(self) -> bytes:
        """Return the public keys of signers (PEM)."""
        rows = self._trusted_keys(SIGNER)
        return b"".join(signing.public_pem(row.secret_key.encode()) for row in rows)

    def authority_chain(self) -> bytes:
        """Return the authorities that hosts trust (PEM), the issuing one first."""
        if self._own.ca_dir:
            return self._own_ca(pathlib.Path(self._own.ca_dir, certificates.CA_FILE))
        return b"".join(row.certificate.encode() for row in self._trusted_keys(CA))

    def _own_ca(self, path: pathlib.Path) -> bytes:
        bundle = _file(path)
        try:
            certificates.read_ca(bundle)
        except errors.NotAuthenticated as e:
            raise errors.Unusable(f"[acstor_decision] ca_dir: {path}", e.why) from e
        return bundle

    def issuing_authority(self) -> certificates.Authority:
        """Return the issuing authority."""
        if not self._own.ca_dir:
            row = _in_use(self._keys(CA), self._clock.time())
            return certificates.Authority(row.certificate.encode(), row.secret_key.encode())
        bundle = self.authority_chain()
        key = _file(pathlib.Path(self._own.ca_dir, certificates.CA_KEY_FILE))
        try:
            return certificates.Authority(bundle, key)
        except errors.NotAuthenticated as e:
            raise errors.Unusable(f"[acstor_decision] ca_dir = {self._own.ca_dir}", e.why) from e

    def list_keys(self, kind: str) -> list[models.AuthorityKey]:
        """Return the keys of a kind, the newest first; create the first one."""
        return self._keys(kind)

    def _keys(self, kind: str) -> list[models.AuthorityKey]:
        found = self._store.authority_keys(kind)
        if not found:
            now_s = self._clock.time()
            found = self._store.authority_keys(kind, lambda: _made(kind, now_s, now_s))
            LOG.info("the %s's key %d is in the database", kind, found[0].number)
        return found

    def _trusted_keys(self, kind: str) -> list[models.AuthorityKey]:
        """Return the keys that hosts trust: the current one, then others, newest first."""
        rows, now_s = self._keys(kind), self._clock.time()
        first = _in_use(rows, now_s)
        others = [row for row in _trusted(rows, now_s) if row.number != first.number]
        return [first, *filter(_is_readable, others)][: self._limits.keys]

    def renew_key(self, kind: str, *, at_once: bool) -> models.AuthorityKey:
        """Create a new key.

        :param at_once: use it now and revoke the previous ones, which are stolen; hosts without it
            are cut off until they enrol again
        :raises errors.Unusable: too many keys are trusted
        """
        now_s = self._clock.time()
        if not at_once:
            _check_keys(_trusted(self._keys(kind), now_s), self._limits.keys)
        from_s = now_s if at_once else now_s + self.certificate_lifetime_s
        until_s = STOLEN_S if at_once else from_s + self.certificate_lifetime_s + FORMER_TRUSTED_S
        return self._store.add_authority_key(kind, lambda: _made(kind, now_s, from_s), until_s)

    def sign_payload(self, payload: msgspec.Struct, purpose: str) -> decision_messages.Signed:
        """Return ``payload`` signed with the current key."""
        rows = self._keys(SIGNER)
        return signed_messages.sign_payload(
            payload, purpose, _in_use(rows, self._clock.time()).secret_key.encode()
        )

    # Hosts

    def enrol_host(
        self, host: ids.HostId, user_id: str, address: str, csr: bytes, proof: str
    ) -> IssuedCertificate:
        """Issue a certificate to a host, or record that it waits.

        :param csr: PEM
        :param proof: signature over ``csr`` (base64, purpose ``renewal``) by the key of the current
            certificate; empty: none
        :raises enrolment_rules.EnrolmentRefused: the host gets no certificate now
        :raises errors.NotAuthenticated: the signature of ``csr`` is wrong
        """
        asked = enrolment_records.read_request(user_id, csr, proof)
        authority, now_s = self.issuing_authority(), self._clock.time()
        if enrolment_records.is_name_free(self._store.get_enrolment(host)):
            self._check_quota(host, user_id)
        certificate = b""

        def work(row: models.Enrolment | None) -> models.Enrolment:
            nonlocal certificate
            certificate = b""
            if self._must_wait(row, host, asked):
                return enrolment_records.record_request(row, host, asked, address, now_s)
            row = row or enrolment_records.new_row(host)
            enrolment_records.check_rate(row, now_s, self._limits.least_interval_s)
            at_s = max(int(now_s), row.revoked_before_s + certificates.BACKDATE_S)
            lifetime_s = self.certificate_lifetime_s
            certificate = authority.issue_certificate(csr, host, at_s, lifetime_s)
            enrolment_records.bind_key(row, asked, address, max(now_s, at_s), at_s + lifetime_s)
            return row

        row = self._store.change_enrolment(host, work)
        if not certificate:
            raise enrolment_records.refusal(enrolment_rules.Verdict.WAIT, host)
        return IssuedCertificate(
            certificate, self.authority_chain(), self.signer_keys(), row.not_after_s or 0.0, now_s
        )

    def _must_wait(
        self, row: models.Enrolment | None, host: str, asked: enrolment_rules.CertificateRequest
    ) -> bool:
        """Return whether a request waits for an operator; may raise EnrolmentRefused."""
        is_automatic = self.enrolment == "automatic"
        known = enrolment_records.known_enrolment(row)
        verdict = enrolment_rules.decide_request(known, asked, is_automatic=is_automatic)
        if verdict not in (enrolment_rules.Verdict.WAIT, enrolment_rules.Verdict.ISSUE):
            raise enrolment_records.refusal(verdict, host, row)
        return verdict is enrolment_rules.Verdict.WAIT

    def _check_quota(self, host: str, user_id: str) -> None:
        bound, which = self._store.exceeded_quota(
            user_id, self._limits, self._clock.time(), trust_state.REVOCATION_KEPT_S
        )
        if bound:
            raise enrolment_rules.EnrolmentRefused(
                host,
                enrolment_rules.Verdict.NO_ROOM,
                f"the limit of {bound} hosts {which} is reached; an operator has to delete records "
                f"of decommissioned hosts (openstack acstor host forget NAME), or to allow this "
                f"one (openstack acstor host allow {host} --fingerprint ...)",
            )

    def allow_host(
        self, host: ids.HostId, fingerprint: str = "", user_id: str = ""
    ) -> models.Enrolment:
        """Allow a host to enrol once; existing certificates become invalid.

        :param fingerprint: of the allowed key; empty: the key of the waiting request, or any
        :param user_id: the allowed Keystone user; empty: that of the waiting request, or any
        """
        now_s = self._clock.time()

        def work(row: models.Enrolment | None) -> models.Enrolment:
            row = row or enrolment_records.new_row(host)
            enrolment_records.allow_host(row, fingerprint, user_id, now_s)
            return row

        return self._store.change_enrolment(host, work)

    def revoke_host(self, host: ids.HostId) -> models.Enrolment:
        """Invalidate a host's certificates, and refuse new ones until it is allowed again."""
        now_s = self._clock.time()

        def work(row: models.Enrolment | None) -> models.Enrolment:
            row = row or enrolment_records.new_row(host)
            enrolment_records.invalidate_certificates(row, now_s)
            row.state = enrolment_rules.EnrolmentState.REVOKED
            return row

        return self._store.change_enrolment(host, work)

    def delete_host(self, host: ids.HostId) -> bool:
        """Delete a gone host, free its name, end its certificates; return whether it was known.

        :raises enrolment_rules.EnrolmentRefused: it still sends samples
        """
        now_s = self._clock.time()
        row = self._store.get_host(host)
        if row and (row.seen_s or 0.0) >= now_s - decision_conf.silent_after_s(self._own):
            raise enrolment_rules.EnrolmentRefused(
                host,
                None,
                "it still sends samples; stop its agent, or revoke it (openstack acstor host "
                f"revoke {host}), and retry when it is silent",
            )
        return self._store.forget_host(host, lambda row: enrolment_records.release_name(row, now_s))


def _file(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise errors.Unusable(f"[acstor_decision] ca_dir: {path}", e.strerror or str(e)) from e


def _made(kind: str, now_s: float, from_s: float) -> models.AuthorityKey:
    if kind == CA:
        made = certificates.Authority.create("acstor", now_s, CA_LIFE_S)
        key, certificate = made.key_pem, made.certificate_pem
    else:
        key, certificate = signing.new_key(), b""
    return models.AuthorityKey(
        secret_key=key.decode(), certificate=certificate.decode(), made_s=now_s, signs_from_s=from_s
    )


def _in_use(rows: Sequence[models.AuthorityKey], now_s: float) -> models.AuthorityKey:
    """Return the newest trusted, undamaged key whose time has come; else the oldest."""
    trusted = _trusted(rows, now_s) or rows
    usable = [row for row in trusted if _is_readable(row) and _can_sign(row)] or trusted
    return next((row for row in usable if row.signs_from_s <= now_s), usable[-1])


def _is_readable(row: models.AuthorityKey) -> bool:
    if row.kind == CA:
        return _is_sound(row, "certificate", lambda: certificates.read_ca(row.certificate.encode()))
    return _is_sound(row, "secret_key", lambda: signing.read_key(row.secret_key.encode()))


def _can_sign(row: models.AuthorityKey) -> bool:
    certificate, key = row.certificate.encode(), row.secret_key.encode()
    return row.kind != CA or _is_sound(
        row, "secret_key", lambda: certificates.Authority(certificate, key)
    )


def _is_sound(row: models.AuthorityKey, column: str, read: Callable[[], object]) -> bool:
    try:
        read()
    except errors.NotAuthenticated as e:
        where = f"authority_keys.{column} of {row.kind}, {row.number}"
        json_columns.log_damage(where, e, "absent")
        return False
    return True


def _check_keys(trusted: Sequence[models.AuthorityKey], limit: int) -> None:
    if len(trusted) < limit:
        return
    ends = [row.trusted_until_s for row in trusted if row.trusted_until_s is not None]
    first_s = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(ends, default=0.0)))
    raise errors.Unusable(
        f"the {trusted[0].kind}'s keys",
        f"{len(trusted)} are trusted at this time, and hosts accept no more",
        f"Retry after {first_s} UTC, when trust in one of them ends; --stolen ends it at once",
    )


def _trusted(rows: Sequence[models.AuthorityKey], now_s: float) -> list[models.AuthorityKey]:
    return [row for row in rows if row.trusted_until_s is None or row.trusted_until_s > now_s]
