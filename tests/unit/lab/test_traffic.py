# SPDX-License-Identifier: Apache-2.0
import statistics

import pytest

from tests.lab import traffic


@pytest.mark.parametrize("hosts", [6, 8, 16, 40])
def test_loads_have_the_requested_mean_and_spread(hosts):
    loads = traffic.loads(hosts, 0.56, 1.2)
    assert len(loads) == hosts and 0 <= min(loads) and max(loads) <= 1.9
    assert statistics.mean(loads) == pytest.approx(0.56)
    assert statistics.pstdev(loads) / statistics.mean(loads) == pytest.approx(1.2)


@pytest.mark.parametrize(("hosts", "mean", "cv"), [(2, 0.56, 1.2), (16, 1.5, 1.2), (16, 0.1, 9)])
def test_impossible_loads_are_refused(hosts, mean, cv):
    with pytest.raises(ValueError, match="cannot have"):
        traffic.loads(hosts, mean, cv)
