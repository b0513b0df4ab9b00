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


class State(enum.StrEnum):
    """What a host is to the authority; the values stand in the database."""

    WAITING = "waiting"  # it asked, and an operator has to allow it
    ALLOWED = "allowed"  # an operator lets it enrol once, anew or for the first time
    ENROLLED = "enrolled"  # it has, or had, a certificate
    REVOKED = "revoked"  # it gets none, and those that it has count no more


class Verdict(enum.Enum):
    """What becomes of a request."""

    ISSUE = enum.auto()  # a certificate, and from now on the host is this user with this key
    WAIT = enum.auto()  # an operator has to allow it
    REVOKED = enum.auto()
    OTHER_USER = enum.auto()  # the host is another user's
    OTHER_KEY = enum.auto()  # nothing proves that who asks has the host's key


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of a host.

    :param user_id: who enrolled it, or asked first; empty: whoever comes
    :param keys: its public keys, of which it has to have one; empty: any
    """

    state: State
    user_id: str = ""
    keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for a certificate, whose own signature has been checked.

    :param key: the public key that it is for
    :param is_proven_by: says whether the owner of a public key has signed the request
    """

    user_id: str
    key: str
    is_proven_by: Callable[[str], bool]


def judge(known: Known | None, asked: Asked, *, is_automatic: bool) -> Verdict:
    """Return what becomes of a request.

    :param known: None: nobody has spoken of this host yet
    :param is_automatic: a new host needs nobody's leave
    """
    if known is None:
        return Verdict.ISSUE if is_automatic else Verdict.WAIT
    if known.state is State.REVOKED:
        return Verdict.REVOKED
    if known.user_id and known.user_id != asked.user_id:
        return Verdict.OTHER_USER
    if known.keys and not _has_one(known.keys, asked):
        return Verdict.OTHER_KEY
    if known.state is State.WAITING and not is_automatic:
        return Verdict.WAIT
    return Verdict.ISSUE


def _has_one(keys: tuple[str, ...], asked: Asked) -> bool:
    """Say whether the request is for a key that the host has already, or signed with one."""
    return asked.key in keys or any(asked.is_proven_by(key) for key in keys)
