# SPDX-License-Identifier: Apache-2.0
"""Rules of enrolment: decides whether a host gets a certificate.

A host's name belongs to the Keystone user and the key that enrolled it first, until an operator
changes it. So a stolen password gives no other host's name and, without the key, not its own.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.ring import hash_ring


class EnrolmentLimits(NamedTuple):
    """Limits of enrolments and of the authority's keys."""

    hosts: int = 65_536  # known hosts, four times those of a v-node table
    per_user: int = hash_ring.MAX_HOSTS  # hosts that one Keystone user enrolled or requested
    unseen_per_user: int = 1024  # a user's hosts without a sample, against a stolen password
    least_waiting_s: float = 3600.0  # at a limit, records that waited longer are deleted
    least_interval_s: float = 1.0  # time between two certificates of a host
    keys: int = signing.MAX_PUBLIC_KEYS  # trusted keys of a kind; hosts accept no more


class EnrolmentState(enum.StrEnum):
    """State of a host's enrolment; the values are stored in the database."""

    WAITING = "waiting"  # waits for an operator's approval
    ALLOWED = "allowed"  # an operator allowed it to enrol once
    ENROLLED = "enrolled"  # it has, or had, a certificate
    REVOKED = "revoked"  # gets no certificate; existing ones are invalid
    FORGOTTEN = "forgotten"  # its name is free; existing certificates are invalid


class Verdict(enum.StrEnum):
    """Decision on a request; the values are stored and appear in metrics."""

    ISSUE = "issue"  # the host now belongs to this user and key
    WAIT = "wait"  # an operator must allow it
    REVOKED = "revoked"
    OTHER_USER = "other_user"  # the host belongs to another user
    OTHER_KEY = "other_key"  # the request does not prove possession of the host's key
    NOT_LET_IN = "not_let_in"  # an operator allowed another key
    NOT_ALLOWED = "not_allowed"  # allowed_hosts excludes the name
    TOO_OFTEN = "too_often"  # its last certificate is too recent
    NO_ROOM = "no_room"  # its user, or the cloud, has too many names
    MALFORMED = "malformed"  # the request is malformed


@dataclasses.dataclass(eq=False)
class EnrolmentRefused(errors.AcstorError):
    """A request about a host was refused; ``why`` tells the requester what to do."""

    host: str
    verdict: Verdict | None
    why: str
    text = "host {host}: {why}"


@dataclasses.dataclass(frozen=True)
class KnownEnrolment:
    """The enrolment of a host, as the service knows it."""

    state: EnrolmentState
    user_id: str = ""  # the user who enrolled it or asked first; empty: any user
    keys: tuple[str, ...] = ()  # its public keys; a request must prove one of them; empty: any
    fingerprint: str = ""  # of the only key that an operator allowed; empty: any


@dataclasses.dataclass(frozen=True)
class CertificateRequest:
    """A certificate request whose own signature has been verified."""

    user_id: str
    key: str
    fingerprint: str
    is_proven_by: Callable[[str], bool]  # whether the owner of a public key signed the request


def decide_request(
    known: KnownEnrolment | None, asked: CertificateRequest, *, is_automatic: bool
) -> Verdict:
    """Return the verdict on a request; ``is_automatic``: no operator must approve a new host."""
    if known is None or known.state is EnrolmentState.FORGOTTEN:
        return Verdict.ISSUE if is_automatic else Verdict.WAIT
    if known.state is EnrolmentState.REVOKED:
        return Verdict.REVOKED
    if known.user_id and known.user_id != asked.user_id:
        return Verdict.OTHER_USER
    if known.fingerprint and known.fingerprint != asked.fingerprint:
        return Verdict.NOT_LET_IN
    if known.keys and not _has_one(known.keys, asked):
        return Verdict.OTHER_KEY
    if known.state is EnrolmentState.WAITING and not is_automatic:
        return Verdict.WAIT
    return Verdict.ISSUE


def _has_one(keys: tuple[str, ...], asked: CertificateRequest) -> bool:
    return asked.key in keys or any(asked.is_proven_by(key) for key in keys)
