# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies

from acstor_agent.engine.data_structures import negative_cache
from acstor_common.model import ids

CIDS = [ids.cid_of(bytes([n])) for n in range(6)]
HOSTS = [ids.HostId(f"h{n}") for n in range(4)]
NO = strategies.tuples(
    strategies.sampled_from(CIDS),
    strategies.sampled_from(HOSTS),
    strategies.floats(0, 4, allow_nan=False),
)


@given(strategies.lists(NO, max_size=60), strategies.integers(1, 12))
def test_only_hosts_that_denied_recently_are_skipped(said, limit):
    """Denials may be forgotten, but a chunk counts as absent only if all hosts denied it lately."""
    known, truth, now_s = negative_cache.HostDenials(limit), {}, 0.0
    for cid, host, after_s in said:
        now_s += after_s
        known.record_denial(cid, host, now_s)
        truth[cid, host] = now_s
        of_one = max(sum(1 for c, _ in truth if c == one) for one in CIDS)
        assert len(known) <= max(limit, of_one)
    for cid in CIDS:
        for host in set(HOSTS) - set(known.hosts_to_ask(cid, HOSTS, now_s)):
            assert now_s - truth[cid, host] < negative_cache.REMEMBER_S


def test_oldest_denials_are_forgotten_first():
    known = negative_cache.HostDenials(limit=4)
    for cid in CIDS[:3]:
        for host in HOSTS[:2]:
            known.record_denial(cid, host, 0.0)
    assert [known.hosts_to_ask(cid, HOSTS[:2], 1.0) for cid in CIDS[:3]] == [HOSTS[:2], [], []]
