# SPDX-License-Identifier: Apache-2.0
"""Whether a host gets a certificate: the rules, without keys, clock and database.

The one rule: a host's name belongs to who enrolled it first, a Keystone user and a
key, until an operator says otherwise.  Whoever steals the password of one host's
user can therefore neither take the name of another host nor, without its key, that
of this one.
"""

import dataclasses
import enum
from collections.abc import Callable

from acstor_common import errors


class EnrolmentState(enum.StrEnum):
    """What a host is to the authority; the values stand in the database."""

    WAITING = "waiting"  # it asked, and an operator has to allow it
    ALLOWED = "allowed"  # an operator lets it enrol once, anew or for the first time
    ENROLLED = "enrolled"  # it has, or had, a certificate
    REVOKED = "revoked"  # it gets none, and those that it has count no more
    FORGOTTEN = "forgotten"  # its name is free again; those that it had count no more


class Verdict(enum.StrEnum):
    """What becomes of a request; the values are names in metrics and in the database."""

    ISSUE = "issue"  # a certificate, and from now on the host is this user with this key
    WAIT = "wait"  # an operator has to allow it
    REVOKED = "revoked"
    OTHER_USER = "other_user"  # the host is another user's
    OTHER_KEY = "other_key"  # nothing proves that who asks has the host's key
    NOT_LET_IN = "not_let_in"  # an operator has named another key
    NOT_ALLOWED = "not_allowed"  # no host of this name may join
    TOO_OFTEN = "too_often"  # it was given one just now
    NO_ROOM = "no_room"  # its user, or the cloud, has too many names
    MALFORMED = "malformed"  # it is no request


class EnrolmentRefused(errors.AcstorError):
    """A host does not get what is asked for it.

    :param verdict: on a request for a certificate; None: something else was asked
    :param why: for the one who asks: what he can do
    """

    def __init__(self, host: str, verdict: Verdict | None, why: str) -> None:
        super().__init__(host, verdict, why)
        self.host, self.verdict, self.why = host, verdict, why

    def __str__(self) -> str:
        return f"host {self.host}: {self.why}"


@dataclasses.dataclass(frozen=True)
class KnownEnrolment:
    """What is known of a host.

    :param user_id: who enrolled it, or asked first; empty: whoever comes
    :param keys: its public keys, of which it has to have one; empty: any
    :param fingerprint: of the one key that an operator lets in; empty: any
    """

    state: EnrolmentState
    user_id: str = ""
    keys: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class CertificateRequest:
    """A request for a certificate, whose own signature has been checked.

    :param key: the public key that it is for
    :param fingerprint: of that key
    :param is_proven_by: says whether the owner of a public key has signed the request
    """

    user_id: str
    key: str
    fingerprint: str
    is_proven_by: Callable[[str], bool]


def decide_request(
    known: KnownEnrolment | None, asked: CertificateRequest, *, is_automatic: bool
) -> Verdict:
    """Return what becomes of a request.

    :param known: None: nobody has spoken of this host yet
    :param is_automatic: a new host needs nobody's leave
    """
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
    """Say whether the request is for a key that the host has already, or signed with one."""
    return asked.key in keys or any(asked.is_proven_by(key) for key in keys)
