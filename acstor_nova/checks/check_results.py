# SPDX-License-Identifier: Apache-2.0
"""Results of the checks of a compute host."""

import dataclasses
import enum


class Level(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    what: str
    level: Level
    detail: str
    remedy: str = ""
