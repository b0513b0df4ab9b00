# SPDX-License-Identifier: Apache-2.0
"""Interface of providers of switch loads, and their loader."""

import abc
import dataclasses
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


@dataclasses.dataclass(eq=False)
class LoadsUnknown(errors.AcstorError):
    """The loads of the switches are unknown now."""

    where: str
    why: str
    text = "{where} does not report the loads of the switches: {why}"


class HostLoad(NamedTuple):
    """A host's location and traffic without chunks, in bytes a second."""

    location: str
    bytes_s: float


class SwitchLoads(abc.ABC):
    """Provider of the switches' loads; ``own``: its option group, None without options."""

    def __init__(self, own: Any = None) -> None:
        self.own = own

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return the options of the group ``switch_loads_<name>``."""
        return []

    @abc.abstractmethod
    def read_levels(self, hosts: Mapping[ids.HostId, HostLoad]) -> threshold.Levels:
        """Return the switches of each level, those next to the hosts first, within TIMEOUT_S.

        :raises LoadsUnknown: the loads are unknown now; the thresholds stay
        """


def load(name: str, conf: cfg.ConfigOpts) -> SwitchLoads:
    """Return a provider; Unusable if it is not installed or its options are invalid."""
    namespace = decision_conf.SWITCH_LOADS_NAMESPACE
    try:
        kind: Any = stevedore.DriverManager(namespace, name).driver
    except exception.NoMatches as e:
        known = ", ".join(sorted(stevedore.ExtensionManager(namespace).names()))
        raise errors.Unusable(
            "[acstor_decision] switch_loads", f"{name!r} is not installed", f"Installed: {known}"
        ) from e
    made: SwitchLoads = kind(conf[f"switch_loads_{name}"]) if kind.options() else kind()
    return made
