# SPDX-License-Identifier: Apache-2.0
"""Provider without switches, so that homes may be anywhere."""

from collections.abc import Mapping

from acstor_common.model import ids
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base


class NoLoads(base.SwitchLoads):
    """Reports no switches."""

    def read_levels(self, hosts: Mapping[ids.HostId, base.HostLoad]) -> threshold.Levels:
        """Return no levels."""
        return ()
