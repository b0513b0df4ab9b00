# SPDX-License-Identifier: Apache-2.0
"""Versions of the API that this client knows; each minor version only adds to the API."""

from osc_lib import exceptions

MAJOR = "1"
KNOWN = (f"{MAJOR}.0",)  # known versions, the oldest first
NEWEST = "latest"
OPTION = "--os-acstor-api-version"


def parse(text: str) -> str:
    """Return an option's version, 1: the newest of both sides; CommandError: it is unknown.

    >>> [parse(text) for text in ("latest", "1", "1.0")]
    ['1', '1', '1.0']
    """
    wanted = MAJOR if text == NEWEST else text
    if wanted not in (MAJOR, *KNOWN):
        raise exceptions.CommandError(
            f"{OPTION} {text[:32]}: this client supports {KNOWN[0]} to {KNOWN[-1]}, and {NEWEST}. "
            "A later one needs a later acstor[osc]"
        )
    return wanted


def version_to_send(asked: str, needed: str) -> str:
    """Return the version to request; CommandError: the user ``asked`` for less than ``needed``.

    >>> version_to_send("1", "1.8"), version_to_send("1.9", "1.8")
    ('1.8', '1.9')
    """
    if asked == MAJOR:
        return needed
    if _number(asked) < _number(needed):
        raise exceptions.CommandError(
            f"this needs version {needed} of the acstor API, but {OPTION} is {asked}"
        )
    return asked


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
