# SPDX-License-Identifier: Apache-2.0
"""Chooses a soak's next action: a pure function of a random source and the state."""

import random
from collections.abc import Mapping
from typing import NamedTuple

WEIGHTS: Mapping[str, int] = {
    "build": 24,
    "boot-guest": 3,
    "delete": 12,
    "snapshot": 6,
    "hard-reboot": 6,
    "stop-and-start": 5,
    "rebuild": 3,
    "live-migrate": 5,
    "upload": 4,
    "delete-image": 4,
    "kill-worker": 2,
    "upgrade-agent": 3,
    "reboot-host": 1,
}
"""Relative frequency of each action: a day of a cloud with rare host restarts."""
NEED_SERVER = frozenset(
    {"delete", "snapshot", "hard-reboot", "stop-and-start", "rebuild", "live-migrate"}
)
MAX_SERVERS = 8
MAX_IMAGES = 5
MIN_IMAGES = 2


class Population(NamedTuple):
    """How many servers and images exist."""

    servers: int
    images: int


def next_action(rng: random.Random, there: Population) -> str:
    """Return the name of the next action.

    >>> next_action(random.Random(1), Population(0, 0))
    'upload'
    >>> next_action(random.Random(1), Population(MAX_SERVERS + 1, 3))
    'delete'
    """
    if there.images < MIN_IMAGES:
        return "upload"
    if there.servers > MAX_SERVERS:
        return "delete"
    left_out = set() if there.servers else set(NEED_SERVER)
    left_out |= {"upload"} if there.images >= MAX_IMAGES else set()
    left_out |= {"delete-image"} if there.images <= MIN_IMAGES else set()
    names = [name for name in WEIGHTS if name not in left_out]
    return rng.choices(names, [WEIGHTS[name] for name in names])[0]
