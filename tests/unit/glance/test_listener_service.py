# SPDX-License-Identifier: Apache-2.0
"""Requests of operators, as the listener keeps them."""

from acstor_glance.controller import listener_service


def test_request_that_is_tried_again_and_again_stays_in_its_trace_for_few_attempts() -> None:
    request = listener_service.PreparationRequest(is_forced=True, trace={"X-Trace-Info": "x"})
    traced = 0
    for _ in range(3 * listener_service.MAX_TRACED):
        traced += bool(request.trace)
        request = request.next_attempt()
    assert traced == listener_service.MAX_TRACED
    assert request.is_forced
