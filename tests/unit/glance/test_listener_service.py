# SPDX-License-Identifier: Apache-2.0
"""Operators' requests in the listener."""

from acstor_glance.controller import listener_service


def test_retried_request_keeps_its_trace_for_few_attempts() -> None:
    request = listener_service.PreparationRequest(is_forced=True, trace={"X-Trace-Info": "x"})
    traced = 0
    for _ in range(3 * listener_service.MAX_TRACED):
        traced += bool(request.trace)
        request = request.next_attempt()
    assert traced == listener_service.MAX_TRACED
    assert request.is_forced
