# SPDX-License-Identifier: Apache-2.0
import types

from acstor_agent.core import counters
from acstor_agent.core.boot import load_record


def test_each_frame_of_a_boot_image_counts_once():
    record = load_record.LoadRecord(began_s=5.0)
    one = types.SimpleNamespace(cid=b"1", stored_bytes=100)
    two = types.SimpleNamespace(cid=b"2", stored_bytes=30)
    record.frame_arrived(one, counters.Origin.PEER)
    record.frame_arrived(one, counters.Origin.SOURCE)
    record.frame_arrived(two, counters.Origin.SOURCE)
    assert record.bytes == {counters.Origin.PEER: 100, counters.Origin.SOURCE: 30}
    assert (record.began_s, record.head_s, record.ended_s) == (5.0, 0.0, 0.0)
