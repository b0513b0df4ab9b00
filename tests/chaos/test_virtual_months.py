# SPDX-License-Identifier: Apache-2.0
"""Two weeks of months in virtual time, and its detection of faults."""

import errno
import os

import pytest

from acstor_agent.engine.data_structures import negative_cache
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.chaos import table_sizes
from tests.chaos import virtual
from tests.chaos import virtual_faults
from tests.chaos import virtual_months
from tests.fakes import memory_network

pytestmark = pytest.mark.allow_log(r".")  # everything breaks
HELLO = peer_wire.Hello(ids.HostId("h2"), peer_wire.ConnectionClass.DEMAND, 1)


def test_two_weeks_break_no_guarantee():
    world, error = virtual_months.play(4, days=14, hosts=5)
    assert error is None, f"{virtual.causes(error)} {world.trace[-20:]}"
    assert world.reads > 50
    assert 14 * 4 < world.host_days < 14 * 5.1
    assert any(".core.context." in path for path in world.sizes)
    assert world.done.keys() & {fault.__name__ for fault in virtual_months.FAULTS}


def test_replaced_image_stays_pinned_on_no_host():
    world, error = virtual_months.play(24, days=5, hosts=4)
    assert error is None, virtual.causes(error)
    pinned = [set(host.pins.list_pins()) for host in world.hosts.values()]
    assert any(pinned) and all(found <= world.images.keys() for found in pinned)


def test_table_that_grows_each_month_is_detected(tmp_path):
    world = virtual_months.Months(1, tmp_path, days=60)
    world.day = 60
    world.sizes["h1.some_table"] = [50, 55, 60, 50, 55, 60, 50, 55, 60, 50, 55, 60]
    world.must_not_grow()
    world.sizes["h1.other_table"] = [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200]
    with pytest.raises(virtual.Broken, match="other_table"):
        world.must_not_grow()


def test_sizes_have_each_table_of_an_object_by_its_path():
    denials = negative_cache.NegativeCache(60.0)
    before = sum(table_sizes.sizes(denials).values())
    for number in range(5):
        denials.record_denial(number, 0.0)
    after = table_sizes.sizes(denials)
    assert sum(after.values()) >= before + 5
    assert all(path.startswith("._") for path in after)


def test_hosts_of_another_protocol_version_do_not_understand_each_other():
    network = {"h1": 1}

    def receive() -> list[peer_wire.Message]:
        memory_network._here.set("h2")
        receiver = peer_receiver.Receiver("h1", peer_wire.FROM_CLIENT)
        return receiver.feed_bytes(b"".join(frames))

    with virtual_faults.peer_versions(network):
        memory_network._here.set("h1")
        frames = peer_wire.encode(HELLO)
        with pytest.raises(errors.OtherVersion):
            receive()
        network["h2"] = 1
        assert receive() == [HELLO]
    memory_network._here.set("")


def test_full_disk_fails_writes_and_broken_disk_reads_of_its_host_only(tmp_path):
    found = {}
    for name in ("h1", "h2", "h3"):
        (tmp_path / name).mkdir()
        found[name] = os.open(tmp_path / name / "slab", os.O_RDWR | os.O_CREAT)
        os.pwritev(found[name], [b"chunk"], 0)
    broken = {"h1": errno.ENOSPC, "h2": errno.EIO}
    with virtual_faults.failing_disks(tmp_path, broken):
        with pytest.raises(OSError, match="No space"):
            os.pwritev(found["h1"], [b"other"], 0)
        assert os.preadv(found["h1"], [bytearray(5)], 0) == 5
        with pytest.raises(OSError, match="Input/output"):
            os.preadv(found["h2"], [bytearray(5)], 0)
        assert os.pwritev(found["h3"], [b"other"], 0) == 5
    for fd in found.values():
        os.close(fd)
