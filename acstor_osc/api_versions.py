# SPDX-License-Identifier: Apache-2.0
"""Versions of the API: those that this client knows, and the one that it asks for.

Minor versions only add to the API, so a command works with every version from the one that it needs
on.
"""

from osc_lib import exceptions

MAJOR = "1"
KNOWN = (f"{MAJOR}.0",)
"""Versions that this client knows, the oldest first."""
NEWEST = "latest"
OPTION = "--os-acstor-api-version"


def parse(text: str) -> str:
    """Return the version that an option asks for; 1: the newest that client and service know.

    :raises exceptions.CommandError: this client knows none that is called so

    >>> [parse(text) for text in ("latest", "1", "1.0")]
    ['1', '1', '1.0']
    """
    wanted = MAJOR if text == NEWEST else text
    if wanted not in (MAJOR, *KNOWN):
        raise exceptions.CommandError(
            f"{OPTION} {text[:32]}: this client knows {KNOWN[0]} to {KNOWN[-1]}, and {NEWEST}. A "
            "later one needs a later acstor[osc]"
        )
    return wanted


def version_to_send(asked: str, needed: str) -> str:
    """Return the version that the service is asked for.

    :param asked: for the whole call of ``openstack``, as :func:`parse` returns it
    :param needed: by the command, with the options that were given to it
    :raises exceptions.CommandError: an earlier version was asked for

    >>> version_to_send("1", "1.8"), version_to_send("1.9", "1.8")
    ('1.8', '1.9')
    """
    if asked == MAJOR:
        return needed
    if _number(asked) < _number(needed):
        raise exceptions.CommandError(
            f"this needs version {needed} of the acstor API, and {OPTION} asks for {asked}"
        )
    return asked


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
