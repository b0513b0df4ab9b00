# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core.cloud import certificate_renewal
from acstor_common.identity import certificates
from tests.fakes import cloud_keys

NOW_S = 1_800_000_000.0


def certificate(valid_s):
    keys = cloud_keys.CloudKeys(NOW_S)
    made = keys.host("h1", valid_s=valid_s)
    return certificates.read_host_certificate(made.certificate, made.ca)


@pytest.mark.parametrize("valid_s", [30, 3600, 86_400])
def test_certificate_is_renewed_before_two_thirds_of_its_lifetime(valid_s):
    made = certificate(valid_s)
    assert certificate_renewal.due_s(made, 0.0) == pytest.approx(NOW_S + valid_s * 2 / 3)
    assert certificate_renewal.due_s(made, 1.0) == pytest.approx(NOW_S + valid_s * (2 / 3 - 0.1))


def test_retry_delays_grow_with_jitter_up_to_a_maximum():
    waits = [certificate_renewal.retry_s(failures, 0.5) for failures in range(1, 40)]
    assert waits == sorted(waits)
    assert waits[-1] == certificate_renewal.RETRY_LONGEST_S
    assert certificate_renewal.retry_s(3, 0.0) == pytest.approx(15.0)
    assert certificate_renewal.retry_s(3, 1.0) == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("off_s", "said"),
    [(0.0, ""), (59.0, ""), (-59.0, ""), (61.0, "61 s ahead of"), (-86_400.0, "86400 s behind")],
)
def test_clock_fault_reports_the_offset(off_s, said):
    assert said in certificate_renewal.clock_fault(off_s)
    assert bool(certificate_renewal.clock_fault(off_s)) == bool(said)
