# SPDX-License-Identifier: Apache-2.0
"""Switch loads from ``/etc/acstor/switches.json``, which an operator or a script writes.

It has the switches of each level, those beside the hosts first, in any unit::

    {"levels": [[{"traffic": 1e9, "capacity": 1e10}], []]}
"""

import pathlib
from collections.abc import Mapping

import msgspec

from acstor_common.model import ids
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base

PATH = "/etc/acstor/switches.json"
LONGEST_BYTES = 1 << 20


class _Switch(msgspec.Struct, forbid_unknown_fields=True):
    traffic: float
    capacity: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    levels: list[list[_Switch]]


class StaticLoads(base.SwitchLoads):
    """Reads the file in every collection."""

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return the loads in the file, or raise LoadsUnknown."""
        path = pathlib.Path(PATH)
        try:
            with path.open("rb") as file:
                found = msgspec.json.decode(file.read(LONGEST_BYTES), type=_File)
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as e:
            raise base.LoadsUnknown(str(path), str(e)) from e
        return [
            [threshold.SwitchLoad(switch.traffic, switch.capacity) for switch in level]
            for level in found.levels
        ]
