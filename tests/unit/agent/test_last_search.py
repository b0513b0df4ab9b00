# SPDX-License-Identifier: Apache-2.0
"""The search on all hosts for what the source has not got any more."""

import logging

import pytest
import trio

from acstor_agent.chunks import last_search
from acstor_agent.chunks import want as want_
from acstor_agent.core.exchange import denials
from acstor_common import errors
from acstor_common import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DATA = b"x" * 100
WHY = errors.ChunkMissing("the chunk", "Glance", "there is no such image")


def want(number=0):
    return want_.Want(IMAGE, number * 65536, 100, ids.cid_of(DATA + bytes([number])))


class Hosts:
    """Hosts that have a chunk, deny it, or are silent; and the search among them."""

    def __init__(self, nursery, count, lost_after_s=0.0):
        self.names = [ids.HostId(f"h{n}") for n in range(1, count + 1)]
        self.holders, self.silent, self.left_alone, self.withheld = set(), set(), set(), set()
        self.asked, self.at_once, self.most = [], 0, 0
        self.search = last_search.LastSearch(
            nursery,
            hosts=lambda: self.names,
            left_alone=lambda: self.left_alone,
            ask=self._ask,
            clock=trio.current_time,
            lost_after_s=lost_after_s,
        )

    async def _ask(self, host, wanted):
        self.asked.append(host)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await trio.sleep(0.01)
        finally:
            self.at_once -= 1
        if host in self.withheld:
            raise errors.ChunkRefused(str(wanted), host, "WITHHELD")
        if host in self.silent:
            raise errors.SourceUnreachable(str(wanted), host, "no answer")
        if host not in self.holders:
            raise errors.ChunkMissing(str(wanted), host)
        return DATA


@pytest.fixture
def hosts(nursery):
    return Hosts(nursery, 40)


async def test_any_host_that_has_it_gives_it(hosts, autojump_clock):
    hosts.holders.add("h33")
    assert await hosts.search.find(want(), WHY) == DATA
    assert hosts.most == last_search.HOSTS_AT_ONCE


@pytest.mark.expect_log("bytes of it are lost")
async def test_it_is_lost_when_all_have_denied_it_and_they_are_not_asked_again_at_once(
    hosts, autojump_clock, caplog
):
    for _ in range(5):
        with pytest.raises(errors.ChunkLost, match="no such image"):
            await hosts.search.find(want(), WHY)
        await trio.sleep(1)
    assert sorted(hosts.asked) == sorted(hosts.names)
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1
    await trio.sleep(denials.REMEMBER_S)
    hosts.holders.add("h5")
    assert await hosts.search.find(want(), WHY) == DATA


@pytest.mark.parametrize("kind", ["silent", "left_alone", "withheld"])
@pytest.mark.expect_log("bytes of it are lost")
async def test_host_that_says_nothing_leaves_hope_and_is_asked_again(hosts, autojump_clock, kind):
    getattr(hosts, kind).add("h7")
    with pytest.raises(errors.SourceUnreachable, match=r"from h7.*Glance has not got it"):
        await hosts.search.find(want(), WHY)
    hosts.asked.clear()
    with pytest.raises(errors.SourceUnreachable):
        await hosts.search.find(want(), WHY)
    assert hosts.asked == ([] if kind == "left_alone" else ["h7"])
    getattr(hosts, kind).clear()
    with pytest.raises(errors.ChunkLost):
        await hosts.search.find(want(), WHY)


@pytest.mark.expect_log("bytes of it are lost")
async def test_alone_the_sources_word_is_enough(nursery):
    with pytest.raises(errors.ChunkLost):
        await Hosts(nursery, 0).search.find(want(), WHY)


@pytest.mark.expect_log("bytes of it are lost")
async def test_many_who_want_many_lost_chunks_ask_few_hosts_at_a_time(hosts, autojump_clock):
    lost = []

    async def one(number):
        with pytest.raises(errors.ChunkLost):
            await hosts.search.find(want(number), WHY)
        lost.append(number)

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(30):
            for _ in range(3):
                nursery.start_soon(one, number)
    assert len(lost) == 90
    assert len(hosts.asked) == 30 * len(hosts.names)
    assert hosts.most <= last_search.HOSTS_AT_ONCE * last_search.CHUNKS_AT_ONCE
    assert len(hosts.asked) / (trio.current_time() - began_s) < 1000


async def test_fault_of_one_question_leaves_hope(hosts, nursery, autojump_clock, monkeypatch):
    async def fail(host, wanted):
        raise errors.RemoteProtocolError(host, "nonsense")

    monkeypatch.setattr(hosts.search, "_ask", fail)
    with pytest.raises(errors.SourceUnreachable, match="h1, h2, h3, …"):
        await hosts.search.find(want(), WHY)


@pytest.mark.expect_log("bytes of it cannot be had")
@pytest.mark.expect_log("bytes of it are lost")
async def test_nothing_is_lost_before_the_source_has_said_so_for_long(
    nursery, autojump_clock, caplog
):
    hosts = Hosts(nursery, 2, lost_after_s=900)
    began_s = trio.current_time()
    while trio.current_time() - began_s < 899:
        with pytest.raises(errors.SourceUnreachable, match=r"from Glance.*no such image"):
            await hosts.search.find(want(), WHY)
        await trio.sleep(2)
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert 10 < len(warnings) < 20
    await trio.sleep(2)
    for number in (0, 1):
        with pytest.raises(errors.ChunkLost):
            await hosts.search.find(want(number), WHY)
    hosts.search.source_gave(IMAGE)
    with pytest.raises(errors.SourceUnreachable):
        await hosts.search.find(want(), WHY)


@pytest.mark.expect_log("bytes of it cannot be had")
@pytest.mark.expect_log("bytes of it are lost")
async def test_host_that_has_left_the_table_leaves_hope_for_a_while(nursery, autojump_clock):
    """It may only start anew, and have all of the image."""
    hosts = Hosts(nursery, 3, lost_after_s=900)
    with pytest.raises(errors.SourceUnreachable):
        await hosts.search.find(want(), WHY)
    for _ in range(440):
        await trio.sleep(2)
        with pytest.raises(errors.SourceUnreachable):
            await hosts.search.find(want(), WHY)
    gone = hosts.names.pop()
    for _ in range(440):
        await trio.sleep(2)
        with pytest.raises(errors.SourceUnreachable, match=rf"{gone}|from Glance"):
            await hosts.search.find(want(), WHY)
    await trio.sleep(30)
    with pytest.raises(errors.ChunkLost):
        await hosts.search.find(want(), WHY)


@pytest.mark.expect_log("bytes of it are lost")
async def test_nothing_is_lost_before_there_is_a_table_where_one_is_to_come(hosts, autojump_clock):
    names, hosts.names = hosts.names, None
    with pytest.raises(errors.SourceUnreachable, match="no v-node table yet"):
        await hosts.search.find(want(), WHY)
    hosts.names = names
    with pytest.raises(errors.ChunkLost):
        await hosts.search.find(want(), WHY)
