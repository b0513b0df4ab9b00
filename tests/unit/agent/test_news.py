# SPDX-License-Identifier: Apache-2.0
"""What peers tell unasked: which copies may go says the home of a chunk, and nobody else."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.images import news
from acstor_common import ids
from tests.fakes import one_host

H2, H3 = ids.HostId("h2"), ids.HostId("h3")
DATA = one_host.image_bytes(6 * one_host.CHUNK)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path) as made:
        made.add(DATA)
        yield made


async def test_home_of_a_chunk_may_say_that_a_copy_goes_first_and_nobody_else(host):
    image = await host.mirrors.attach(one_host.IMAGE)
    await image.read(0, len(DATA))
    of_h2 = {image.map.cid(number) for number in (1, 4)}
    host.chunks.home_of = lambda want: H2 if want.cid in of_h2 else H3
    heard = news.News(host.chunks, host.mirrors, host.cache)
    demoted = []
    host.cache.demote = lambda cid: demoted.append(cid) or True
    everything = [ids.oid_of(image.map.cid(number)) for number in range(6)]
    heard.listened_to(actions.Heard(H2, (), (*everything, ids.Oid(7))))
    assert set(demoted) == of_h2 and host.chunks.counters.demoted == 2
