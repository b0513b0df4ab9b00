# SPDX-License-Identifier: Apache-2.0
"""Switch loads from a file that an operator or a script writes."""

import pathlib
from collections.abc import Mapping

import msgspec
from oslo_config import cfg

from acstor_common.model import ids
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base

LONGEST_BYTES = 1 << 20


class _Switch(msgspec.Struct, forbid_unknown_fields=True):
    traffic: float
    capacity: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    levels: list[list[_Switch]]


class StaticLoads(base.SwitchLoads):
    """Reads the file in every collection."""

    @staticmethod
    def options() -> list[cfg.Opt]:
        """Return the option of the file."""
        return [
            cfg.StrOpt(
                "file",
                default="/etc/acstor/switches.json",
                help="JSON file with the switches of each level, those beside the hosts first: "
                '{"levels": [[{"traffic": 1e9, "capacity": 1e10}], []]}, in any unit.',
            )
        ]

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return the loads in the file.

        :raises base.LoadsUnknown: it is missing or malformed
        """
        path = pathlib.Path(self.own.file)
        try:
            with path.open("rb") as file:
                found = msgspec.json.decode(file.read(LONGEST_BYTES), type=_File)
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as e:
            raise base.LoadsUnknown(str(path), str(e)) from e
        return [
            [threshold.SwitchLoad(switch.traffic, switch.capacity) for switch in level]
            for level in found.levels
        ]
