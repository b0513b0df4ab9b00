# SPDX-License-Identifier: Apache-2.0
"""The interface of what knows how busy the switches are, and how one is found.

:meth:`SwitchLoads.read_levels` answers within ``TIMEOUT_S`` or raises
:class:`LoadsUnknown`; then the thresholds stay as they are.
"""

import abc
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import stevedore
from oslo_config import cfg
from stevedore import exception

from acstor_common import errors
from acstor_common.model import ids
from acstor_decision import conf as decision_conf
from acstor_decision.core import threshold

TIMEOUT_S = 2.0


class LoadsUnknown(errors.AcstorError):
    """How busy the switches are cannot be said now."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"{self.where} does not say how busy the switches are: {self.why}"


class HostLoad(NamedTuple):
    """One host as its samples show it.

    :param bytes_s: what it sent and received without chunks, in bytes a second
    """

    location: str
    bytes_s: float


class SwitchLoads(abc.ABC):
    """Something that knows how busy the switches are.

    :param own: the values of its option group; nothing if it has no options
    """

    def __init__(self, own: Any = None) -> None:
        self.own = own

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return its options; they are in the group ``switch_loads_<name>``."""
        return []

    @abc.abstractmethod
    def read_levels(self, hosts: Mapping[ids.HostId, HostLoad]) -> threshold.Levels:
        """Return the switches of each level, those beside the hosts first.

        :raises LoadsUnknown: they cannot be had now
        """


def load(name: str, conf: cfg.ConfigOpts) -> SwitchLoads:
    """Return the plug-in of that name.

    :raises errors.Unusable: there is none, or its options make no sense
    """
    namespace = decision_conf.SWITCH_LOADS_NAMESPACE
    try:
        kind: Any = stevedore.DriverManager(namespace, name).driver
    except exception.NoMatches as e:
        known = ", ".join(sorted(stevedore.ExtensionManager(namespace).names()))
        raise errors.Unusable(
            "[acstor_decision] switch_loads", f"{name!r} is not installed", f"There are: {known}"
        ) from e
    made: SwitchLoads = kind(conf[f"switch_loads_{name}"]) if kind.options() else kind()
    return made
