# SPDX-License-Identifier: Apache-2.0
"""Validation of the model: measured figures, and computed ones that a unit test compares."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from acstor_simulator import simulation
from acstor_simulator.gain import gain_estimate

NOVA_S = 4.0  # Nova's own time for a server on that machine; not in the model
ONE_HOST = gain_estimate.CloudParameters(
    hosts=1,
    racks=1,
    link_gbit=0.1,
    uplink_gbit=0.1,
    store_gbit=0.1,
    images=1,
    image_gb=2.2,
    data_gb=3.5,
    boots_a_day=1,
    boot_s=27.0,
    boot_mb=58.0,
    busy_percent=0.0,
)
"""Benchmark P12, with an emulated guest."""
FOUR_HOSTS = gain_estimate.CloudParameters(
    hosts=4,
    racks=1,
    link_gbit=0.1,
    uplink_gbit=0.1,
    store_gbit=0.1,
    images=1,
    image_gb=0.089,
    data_gb=0.286,
    boots_a_day=4,
    boot_s=70.0,
    boot_mb=58.0,
    busy_percent=0.0,
)
"""``tools/demo.sh --compare``; the guest's boot time is fitted."""


class Measurement(NamedTuple):
    """One measured figure; ``of`` extracts its modelled value from a result."""

    what: str
    unit: str
    measured: float
    modelled: float
    parameters: gain_estimate.CloudParameters
    policy: str
    of: Callable[[simulation.Result], float]

    @property
    def relative_error(self) -> float:
        """Return the model's relative error."""
        return self.modelled / self.measured - 1


def _active_s(result: simulation.Result) -> float:
    return max(result.ready_s) + NOVA_S


def _login_s(result: simulation.Result) -> float:
    return max(result.boot_s)


def _boot_mb(result: simulation.Result) -> float:
    return sum(result.storage_rates[:60]) / gain_estimate.MB


_SMALL = dataclasses.replace(ONE_HOST, image_gb=0.63, data_gb=2.0)
_RAW = dataclasses.replace(ONE_HOST, image_gb=2.1, data_gb=2.1)
FIGURES = (
    Measurement("One host, 2.2 GB: active", "s", 199, 199.2, ONE_HOST, "nova", _active_s),
    Measurement("One host, 0.63 GB: active", "s", 64.5, 59.9, _SMALL, "nova", _active_s),
    Measurement("One host, 2.1 GB, raw: active", "s", 196, 190.3, _RAW, "nova", _active_s),
    Measurement("Four hosts: last login", "s", 117, 100.1, FOUR_HOSTS, "nova", _login_s),
    Measurement("Four hosts: out of the store", "MB", 358, 356.5, FOUR_HOSTS, "nova", _boot_mb),
    Measurement(
        "One host, 2.2 GB: out of the store", "MB", 35.8, 35.2, ONE_HOST, "today", _boot_mb
    ),
    Measurement("Four hosts: out of the store", "MB", 35, 33.8, FOUR_HOSTS, "today", _boot_mb),
)
