# SPDX-License-Identifier: Apache-2.0
"""Precedence of checkpoint intervals, and their refresh from the decision service."""

import itertools

import pytest

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.schedule import server_schedule
from acstor_common import errors
from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids
from tests.fakes import manual_clock

INSTANCE = ids.parse_image_id("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")


def server(spec):
    specs = {} if spec is None else {checkpoint_intervals.NAME: spec}
    return domain_xml.Server(
        INSTANCE, "p", domain_xml.RootDisk("vda", "/disk", INSTANCE), specs, False
    )


def test_server_interval_precedes_flavor_aggregate_and_host():
    said = itertools.product((None, 0, 400), (None, "0", "300", "soon"), (None, 0, 200), (0, 100))
    for of_server, spec, of_host, default_s in said:
        reported = nova_intervals.Intervals(
            of_host, {} if of_server is None else {INSTANCE: of_server}
        )
        words = None if spec in (None, "soon") else int(spec)
        wanted = next(one for one in (of_server, words, of_host, default_s) if one is not None)
        assert server_schedule.interval_s(server(spec), reported, default_s) == wanted


@pytest.mark.parametrize(("default_s", "wanted_s"), [(1, 30), (-1, 0), (1 << 40, 30 * 86_400)])
def test_interval_is_bounded(default_s, wanted_s):
    assert (
        server_schedule.interval_s(server(None), nova_intervals.Intervals(), default_s) == wanted_s
    )


class Service:
    def __init__(self):
        self.now_s, self.asked, self.answer = 1000.0, 0, nova_intervals.Intervals(600)
        self.known = nova_intervals.NovaIntervals(
            self.ask, manual_clock.FunctionClock(lambda: self.now_s)
        )

    def ask(self, _failing):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_intervals_are_fetched_at_once_and_then_periodically():
    service = Service()
    for later_s, asked in ((0, 1), (nova_intervals.EVERY_S - 1, 1), (1, 2)):
        service.now_s += later_s
        assert (
            service.known.current_intervals() == nova_intervals.Intervals(600)
            and service.asked == asked
        )


@pytest.mark.expect_log("stay as they are")
@pytest.mark.parametrize(
    "failure",
    [errors.DecisionUnreachable("bus", "gone"), errors.NotAuthenticated("answer", "forged")],
)
def test_intervals_stay_while_the_service_is_unreachable(failure):
    service = Service()
    service.known.current_intervals()
    service.answer = failure
    for asked in (2, 3):
        service.now_s += nova_intervals.EVERY_S
        assert (
            service.known.current_intervals() == nova_intervals.Intervals(600)
            and service.asked == asked
        )
        assert service.known.current_intervals() and service.asked == asked
    service.answer = nova_intervals.Intervals()
    service.now_s += nova_intervals.RETRY_S
    assert service.known.current_intervals() == nova_intervals.Intervals()


def test_intervals_are_empty_without_a_service():
    assert nova_intervals.NovaIntervals(None).current_intervals() == nova_intervals.Intervals()
