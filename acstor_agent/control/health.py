# SPDX-License-Identifier: Apache-2.0
"""How this host does, in the few words that the decision service shows of each.

The one rule: it is taken from the agent's status, so that both say the same.
"""

import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_agent.core import lately
from acstor_common import decision_api
from acstor_common import version

FAILED = "failed reads"


class Health:
    """Sums up the agent's status.

    :param picture: returns it
    """

    def __init__(self, picture: Callable[[], dict[str, Any]]) -> None:
        self._picture, self._version = picture, version.installed()[:64]
        self._lately = lately.Lately(time.monotonic())

    def now(self) -> decision_api.HostHealth:
        """Return how the host does."""
        picture = self._picture()
        late = sorted(_late(picture), key=lambda one: -one["longest_s"])
        failed = sum(image["failed_reads"] for image in picture["images"].values())
        totals = {**picture["nova"]["fallbacks"], FAILED: failed}
        grown = self._lately.grown(time.monotonic(), totals)
        failed = grown.pop(FAILED, 0)
        troubles = sorted(picture["troubles"].items())[: decision_api.MAX_TROUBLES]
        return decision_api.HostHealth(
            version=self._version,
            waiting=sum(one["requests"] for one in late),
            longest_wait_s=late[0]["longest_s"] if late else 0.0,
            waits_for=next((one["why"] for one in late if one["why"]), "")[: decision_api.MAX_WHY],
            failed_reads=failed,
            fallbacks=dict(sorted(grown.items())[: decision_api.MAX_REASONS]),
            troubles={
                what[: decision_api.MAX_WHY]: decision_api.HostTrouble(
                    one["why"][: decision_api.MAX_WHY], max(0.0, one["since_s"])
                )
                for what, one in troubles
            },
        )


def _late(picture: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what waits for long, of each image and each disk."""
    for shown in (*picture["images"].values(), *picture["disks"].values()):
        if shown["waiting"] is not None:
            yield shown["waiting"]
