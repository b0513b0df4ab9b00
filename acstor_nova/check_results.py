# SPDX-License-Identifier: Apache-2.0
"""What a look at a compute host may give, good and bad."""

import dataclasses
import enum


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one look at one thing gave.

    :param remedy: what the operator can do
    """

    what: str
    level: Level
    detail: str
    remedy: str = ""
