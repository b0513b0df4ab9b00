# SPDX-License-Identifier: Apache-2.0
"""Workers that die, and a relay that does, where the kernel cannot give requests to the next one.

The agent is shown an older version of the kernel; all else is real.
"""

import contextlib
import random
import time

import pytest

from tests.fakes import descriptor_keeper
from tests.fakes import hosts
from tests.fakes import managed_agent

pytestmark = hosts.needs_fuse

DEADLINE_S = managed_agent.DEADLINE_S


@pytest.fixture
def managed(tmp_path):
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(descriptor_keeper.DescriptorKeeper(tmp_path / "notify"))
        made = managed_agent.ManagedAgent(tmp_path, keeper, kernel=managed_agent.OLDER_KERNEL)
        made.start()
        stack.callback(made.clean_up)
        yield made


def test_worker_killed_again_and_again_costs_no_read(managed):
    rng = random.Random(1)
    relay, _ = managed.children()
    with managed.reading() as readers:
        for killed in range(3):
            time.sleep(rng.uniform(0.02, 0.5))
            hosts.kill(managed.children()[-1])
            serves = " serves "
            hosts.wait_until(lambda: managed.log().count(serves) > killed + 1, "it", DEADLINE_S)  # noqa: B023
        time.sleep(0.5)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 50
    assert managed.children()[0] == relay


def test_relay_that_dies_is_replaced(managed):
    relay, worker = managed.children()
    hosts.kill(relay)
    hosts.wait_until(lambda: worker not in managed.children(), "the end", DEADLINE_S)
    assert managed.mirror.read_bytes() == managed.truth.read_bytes()
    assert "the relay has ended" in managed.log()
    assert relay not in managed.children()
