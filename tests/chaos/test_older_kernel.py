# SPDX-License-Identifier: Apache-2.0
"""Dying workers and relays, where the kernel cannot resend requests to the next worker.

The agent sees an older kernel version; all else is real.

"""

import contextlib
import pathlib
import random
import shutil
import signal
import subprocess
import time
import uuid

import pytest

from tests.fakes import descriptor_keeper
from tests.fakes import disk_writers
from tests.fakes import hosts
from tests.fakes import managed_agent
from tests.lab import agents

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


def test_killed_workers_fail_no_read_behind_a_relay(managed):
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


def test_repeatedly_killed_relays_fail_no_read(managed):
    with managed.reading() as readers:
        for killed in range(3):
            relay, worker = managed.children()
            hosts.kill(relay)
            serves = " serves "
            hosts.wait_until(lambda: managed.log().count(serves) > killed + 1, "it", DEADLINE_S)  # noqa: B023
            assert {relay, worker}.isdisjoint(managed.children())
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert managed.log().count("the relay ended") == 3


def test_repeatedly_killed_relays_lose_no_write(managed, tmp_path):
    plain = tmp_path / "plain"
    shutil.copyfile(managed.truth, plain)
    made = agents.request(
        managed.folder / "control.sock", "make-disk", disk_id=str(uuid.uuid4()),
        image_id=managed.image_id, size_bytes=managed_agent.IMAGE_BYTES,
    )  # fmt: skip
    path = pathlib.Path(made["path"])
    rng = random.Random(2)
    with disk_writers.Writer(path, plain, seed=1) as writer:
        for killed in range(4):
            time.sleep(rng.uniform(0.05, 0.4))
            hosts.kill(*rng.sample(managed.children(), rng.choice((1, 2))), managed.children()[0])
            serves = " serves "
            hosts.wait_until(lambda: managed.log().count(serves) > killed + 1, "it", DEADLINE_S)  # noqa: B023
        hosts.wait_until(lambda: writer.writes() > 30, "writes", DEADLINE_S)
        tally = writer.stop()
    assert (tally.error, tally.wrong) == ("", [])
    subprocess.run(["cmp", path, plain], check=True, timeout=DEADLINE_S)


def test_kill_of_all_processes_at_once_fails_no_read(managed):
    """As a service manager does with the rest of a unit whose main process was killed."""
    with managed.reading() as readers:
        for _ in range(2):
            relay, worker = managed.children()
            hosts.kill(relay)
            hosts.kill(worker)
            managed.end(signal.SIGKILL)
            managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert managed.log().count("taking over the mount") == 2
