# SPDX-License-Identifier: Apache-2.0
"""Detection of unknown options, which oslo.config ignores, in sections that are fully known."""

import difflib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from typing import NamedTuple

DEFAULT = "DEFAULT"
OURS = frozenset(
    {
        "acstor",
        "acstor_agent",
        "acstor_glance",
        "acstor_decision",
        "acstor_decision_api",
        "acstor_gateway",
        "enrolment",
    }
)
"""Sections of acstor's services; each service checks only its own."""
PREFIXES = ("acstor", "source_", "switch_loads_")
_OTHERS_HAVE_TOO = frozenset({"auth", "host", "instance", "workers"})
"""Names that other projects use in [DEFAULT] with another meaning."""
_LIKE = 0.75  # least similarity (:func:`difflib.SequenceMatcher.ratio`) of a suggested name

Known = Mapping[str, Set[str]]
"""Options known to this process, by section; names as :func:`plain` returns them."""


class UnknownOption(NamedTuple):
    """An unknown option, or an unknown section with empty ``option``."""

    file: str
    section: str
    option: str
    nearest: str

    def __str__(self) -> str:
        what = f"[{self.section}] {self.option}" if self.option else f"section [{self.section}]"
        meant = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.file}: there is no {what}, it is ignored{meant}"


def plain(name: str) -> str:
    """Return an option's name with underscores.

    >>> plain("control-socket")
    'control_socket'
    """
    return name.replace("-", "_")


def find_unknown(
    file: str, sections: Mapping[str, Set[str]], known: Known
) -> Iterator[UnknownOption]:
    """Yield unknown options in acstor's sections of a file.

    :param sections: the names in each section of the file

    >>> known = {"acstor": {"mount_point"}, "acstor_agent": {"cache_dir", "host"}}
    >>> given = {"acstor_agent": {"mount_point", "cache_dri", "host"}, "acstor_agnet": {"host"}}
    >>> for stray in find_unknown("a.conf", given, known):
    ...     print(stray)
    a.conf: there is no [acstor_agent] cache_dri, it is ignored; did you mean [acstor_agent] cache_dir?
    a.conf: there is no [acstor_agent] mount_point, it is ignored; did you mean [acstor] mount_point?
    a.conf: there is no section [acstor_agnet], it is ignored; did you mean [acstor_agent]?
    """  # noqa: E501  the message is one line
    for section, names in sections.items():
        own = section if section == DEFAULT else section.lower()
        if own == DEFAULT:
            yield from _in_default(file, names, known)
        elif own in known:
            unknown = sorted(name for name in names if plain(name) not in known[own])
            yield from (
                UnknownOption(file, section, name, _nearest(own, name, known)) for name in unknown
            )
        elif own not in OURS and _is_meant_for_us(own, known):
            yield UnknownOption(file, section, "", _like(own, known, "[{}]"))


def _in_default(file: str, names: Set[str], known: Known) -> Iterator[UnknownOption]:
    elsewhere = {name for section, own in known.items() if section in OURS for name in own}
    strange = elsewhere - known.get(DEFAULT, frozenset()) - _OTHERS_HAVE_TOO
    for name in sorted(name for name in names if plain(name) in strange):
        yield UnknownOption(file, DEFAULT, name, _nearest(DEFAULT, name, known))


def _is_meant_for_us(section: str, known: Known) -> bool:
    prefix = next((prefix for prefix in PREFIXES if section.startswith(prefix)), None)
    judged = prefix is not None and any(name.startswith(prefix) for name in known)
    return judged or bool(_like(section, {name: () for name in known if name in OURS}, "{}"))


def _nearest(section: str, name: str, known: Known) -> str:
    """Return the suggestion: the same name in another section, or a similar name."""
    wanted = plain(name)
    others = sorted(other for other in known if wanted in known[other] and other != DEFAULT)
    if others:
        return f"[{others[0]}] {wanted}"
    in_section = _like(wanted, known.get(section, ()), f"[{section}] {{}}")
    everywhere = {like: other for other in sorted(known) for like in known[other]}
    like = difflib.get_close_matches(wanted, everywhere, 1, _LIKE)
    return in_section or (f"[{everywhere[like[0]]}] {like[0]}" if like else "")


def _like(wanted: str, names: Mapping[str, object] | Set[str] | tuple[()], form: str) -> str:
    found = difflib.get_close_matches(wanted, list(names), 1, _LIKE)
    return form.format(found[0]) if found else ""
