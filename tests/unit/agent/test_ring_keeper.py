# SPDX-License-Identifier: Apache-2.0
import json
import os

import pytest
import trio

from acstor_agent.cloud import ring_keeper
from acstor_common import errors


def table(epoch, *names):
    hosts = [
        {"host": name, "address": f"10.0.0.{n}:7201", "vnodes": 10} for n, name in enumerate(names)
    ]
    return json.dumps({"version": 1, "epoch": epoch, "hosts": hosts}).encode()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "ring-file.json"


@pytest.fixture
def keep(tmp_path, file):
    return lambda: ring_keeper.RingKeeper(tmp_path / "ring.json", file)


def replace(file, data):
    """Write a new file in the old one's place, as tools do."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, file)


def test_without_a_table_the_ring_is_empty(tmp_path):
    keeper = ring_keeper.RingKeeper(tmp_path / "ring.json", None)
    assert (keeper.current().epoch, keeper.current().hosts) == (0, ())


def test_file_is_read_at_the_start(keep, file):
    file.write_bytes(table(3, "h1", "h2"))
    assert keep().current().epoch == 3


def test_sent_table_outlives_the_worker(keep, file):
    assert keep().put(table(4, "h1")).epoch == 4
    assert [host.host for host in keep().current().hosts] == ["h1"]


def test_newer_of_file_and_sent_table_wins(keep, file):
    keep().put(table(4, "sent"))
    file.write_bytes(table(5, "written"))
    assert keep().current().hosts[0].host == "written"


@pytest.mark.expect_log("has epoch 3, older than 4 in use; not taken")
def test_older_file_does_not_win_over_a_sent_table(keep, file):
    keep().put(table(4, "sent"))
    file.write_bytes(table(3, "written"))
    assert keep().current().hosts[0].host == "sent"


def test_sent_table_must_be_newer(keep, file):
    keeper = keep()
    keeper.put(table(4, "h1"))
    for epoch in (3, 4):
        with pytest.raises(ValueError, match=f"epoch {epoch} is not higher than 4"):
            keeper.put(table(epoch, "h2"))
    assert keeper.current().hosts[0].host == "h1"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":2}', b"\xff" * 100])
def test_sent_rubbish_is_refused_and_not_kept(keep, tmp_path, data):
    keeper = keep()
    with pytest.raises(errors.RingFormatError):
        keeper.put(data)
    assert not (tmp_path / "ring.json").exists()


@pytest.mark.expect_log("ring.json.*the last table stays in use")
def test_kept_table_that_went_bad_does_not_keep_the_worker_from_starting(keep, tmp_path, file):
    (tmp_path / "ring.json").write_bytes(b"{")
    file.write_bytes(table(1, "h1"))
    assert keep().current().epoch == 1


async def test_file_is_followed(keep, file, nursery, autojump_clock):
    file.write_bytes(table(1, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch)
    replace(file, table(2, "h1", "h2"))
    await trio.sleep(1.1)
    assert keeper.current().epoch == 2
    file.unlink()
    nursery.cancel_scope.cancel()


@pytest.mark.expect_log("the last table stays in use")
async def test_file_that_goes_or_goes_bad_changes_nothing_and_is_said_once(
    keep, file, nursery, autojump_clock, watched_log
):
    file.write_bytes(table(2, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch)
    for change in (lambda: replace(file, b"{"), file.unlink):
        said = len(watched_log.messages)
        change()
        await trio.sleep(5)
        assert keeper.current().epoch == 2
        assert len(watched_log.messages) == said + 1
    replace(file, table(3, "h1"))
    await trio.sleep(1.1)
    assert keeper.current().epoch == 3
    nursery.cancel_scope.cancel()


@pytest.mark.expect_log("the epoch of a table that differs and is in use; not taken")
async def test_change_without_a_higher_epoch_is_not_taken_and_said(
    keep, file, nursery, autojump_clock
):
    file.write_bytes(table(2, "h1"))
    keeper = keep()
    nursery.start_soon(keeper.watch)
    replace(file, table(2, "h9"))
    await trio.sleep(1.1)
    assert keeper.current().hosts[0].host == "h1"
    nursery.cancel_scope.cancel()


def test_table_that_was_replaced_is_remembered_for_a_while(tmp_path):
    now = [100.0]
    keeper = ring_keeper.RingKeeper(tmp_path / "ring.json", None, 60.0, lambda: now[0])
    keeper.put(table(1, "h1"))
    assert keeper.former() is None  # there was none before
    keeper.put(table(2, "h2"))
    assert keeper.former().epoch == 1
    keeper.put(table(3, "h3"))
    assert keeper.former().epoch == 2  # one former table, the last
    now[0] += 59.9
    assert keeper.former().epoch == 2
    now[0] += 0.1
    assert keeper.former() is None


def test_table_that_was_refused_makes_no_former_one(tmp_path):
    keeper = ring_keeper.RingKeeper(tmp_path / "ring.json", None, 60.0)
    keeper.put(table(2, "h2"))
    with pytest.raises(ValueError, match="not higher"):
        keeper.put(table(1, "h1"))
    assert keeper.former() is None


def test_former_table_can_be_turned_off(tmp_path):
    keeper = ring_keeper.RingKeeper(tmp_path / "ring.json", None, 0.0)
    keeper.put(table(1, "h1"))
    keeper.put(table(2, "h2"))
    assert keeper.former() is None
