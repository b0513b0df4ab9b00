# SPDX-License-Identifier: Apache-2.0
"""The two orders of a queue always hold the same requests."""

import hypothesis
from hypothesis import strategies as st

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue

STREAM = requests.Stream(requests.Klass.GUEST, "a")


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10), st.booleans()), max_size=60),
    st.integers(0, 30),
)
def test_queue_agrees_with_a_linear_search(steps: list[tuple[int, float, bool]], head: int) -> None:
    queue = request_queue.RequestQueue()
    inside: dict[requests.DiskRequest, float] = {}
    for offset, deadline_s, removes in steps:
        request = requests.DiskRequest(STREAM, offset, 1)
        queue.add(request, deadline_s)
        inside[request] = deadline_s
        if removes:
            gone = min(inside, key=lambda r: (r.offset - head) ** 2)
            queue.remove(gone)
            del inside[gone]
    assert list(queue) == list(inside)
    places = sorted(request.offset for request in inside)
    assert sorted(r.offset for r in queue.iter_nearest(head)) == places
    distances = [abs(r.offset - head) for r in queue.iter_nearest(head)]
    assert distances == sorted(distances)
    upward = [r.offset for r in queue.iter_ascending(head)]
    assert upward == [p for p in places if p >= head] + [p for p in places if p < head]
    oldest = queue.earliest_deadline()
    assert (oldest is None) == (not inside)
    if oldest is not None:
        assert inside[oldest] == min(inside.values())
        assert queue.first_overdue(inside[oldest]) is not None
        assert queue.first_overdue(inside[oldest] - 0.001) is None
