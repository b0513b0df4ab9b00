# SPDX-License-Identifier: Apache-2.0
import pytest
from matplotlib import figure

from acstor_common.wire.peer import peer_wire
from evaluation.papers import experiment
from evaluation.papers import s0
from evaluation.papers import s0_beyond
from evaluation.papers import s0_compute
from evaluation.papers import s0_distributed
from evaluation.papers import s0_jitter
from evaluation.papers import s0_news
from evaluation.papers import s0_news_end
from evaluation.papers import s0_patterns as played
from evaluation.papers import s0_virtual
from tests.fakes import announced

WHOLE, QUICK = experiment.Scale.WHOLE, experiment.Scale.QUICK


@pytest.mark.parametrize("one", s0.PAPER.experiments, ids=lambda one: one.key)
def test_experiment_without_outcomes_has_no_rows_and_no_pairs(one):
    assert one.key.startswith("S0-") and one.paper == "S0"
    assert not [row for row in one.rows({}) if getattr(row, "ours", None) is not None]
    assert not one.pairs({})
    for scale in (WHOLE, QUICK):
        names = [case.name for case in one.cases(scale)]
        assert len(set(names)) == len(names) and (names or scale is QUICK)


# Table 1


def test_delay_of_a_chunk_counts_from_its_first_reader():
    guests = [{1: 10.0, 2: 11.0, 9: 0.0}, {1: 10.5, 2: 15.5}, {1: 12.5}]
    assert s0_jitter.delays(guests) == [1.5, 4.5]
    assert s0_jitter.distribution([1.5, 4.5, 0.0, 5.1]) == [1, 0, 1, 0, 0, 1, 1]


def test_row_of_table_1_has_the_complete_distribution():
    got = {
        "shared_chunks": 10,
        "distribution": [0, 2, 0, 0, 0, 3, 5],
        "over_long": 8,
        "over_news": 9,
    }
    first, second = s0_jitter.rows({"4 guests": got})
    assert first.ours == 0.8 and "4-5 s: 3" in first.what and second.ours == 0.9
    s0_jitter.draw(figure.Figure(), {"4 guests": got})


# Figures 5 and 6, table 3


def striped(mean, least=0.2, by_homes=0.0):
    rate = {"min": least, "mean": mean, "max": 0.6}
    return {"took_s": 9.0, "rate": rate, "received": {"source": 1.0, "home": by_homes}}


def test_gain_over_a_striped_repository_is_compared_with_the_paper():
    name = s0_distributed.name
    found = {
        name("Sync-Same", s0_distributed.STRIPED, 8): striped(0.25),
        name("Sync-Same", played.BY_512, 8): striped(0.5, 0.5),
        name("Sync-Disjoint", s0_distributed.STRIPED, 8): striped(0.5),
        name("Sync-Disjoint", played.ACSTOR, 8): striped(0.49),
        name("Sync-Disjoint", played.BY_512, 8): striped(0.4, by_homes=0.25),
        name("Sync-Disjoint", s0_distributed.AT_SOURCE, 8): striped(0.45),
    }
    rows = [row for row in s0_distributed.rows(found) if row.part == "Table 3"]
    judged = [row for row in rows if row.goal is not None]
    assert [row.verdict for row in judged] == ["beaten", "reached", "missed"]
    assert [round(row.ratio, 2) for row in judged] == [2.0, 0.98, 0.8]
    carried = [row for row in rows if "data carried per link" in row.what]
    assert [round(row.ratio, 2) for row in carried] == [2.0, 0.98, 1.03, 0.9]
    assert "1.29 times the bytes of striped, for 0.80 times" in carried[2].what
    s0_distributed.draw(figure.Figure(), found)
    for case in found:
        rest = {name: got for name, got in found.items() if name != case}
        s0_distributed.rows(rest)
        s0_distributed.draw(figure.Figure(), rest)


def test_striped_baseline_is_paired():
    name = s0_distributed.name
    both = {
        name(pattern, way, 8): striped(0.5)
        for pattern in s0_distributed.PATTERNS
        for way in (s0_distributed.STRIPED, "striped again")
    }
    pairs = {"Sync-Same, striped": [9.0, 9.0], "Sync-Disjoint, striped": [9.0, 9.0]}
    assert s0_distributed.pairs(both) == pairs
    del both["Sync-Same, striped again, 8"]
    assert [*s0_distributed.pairs(both)] == ["Sync-Disjoint, striped"]


# Virtual time


def test_goals_in_virtual_time_apply_to_32_hosts():
    got = {"completion": 2.0, "slowest_over_fastest": 1.2, "source_ratio": 1.0, "chunks": 190}
    rows = s0_virtual.rows({s0_virtual.name(8, 50.0): got, s0_virtual.name(32, 12.5): got})
    assert [row.verdict for row in rows] == ["shown", "shown", "beaten", "missed"]


# Computing, advertisements, beyond


def test_computing_readers_are_compared_with_direct_and_with_computing_alone():
    found = {way: {"completion_s": 8.0} for way in s0_compute.WAYS} | {
        played.DIRECT: {"completion_s": 24.0}
    }
    first, second, *_ = s0_compute.rows(found)
    assert first.ratio == 3.0 and second.ratio == 2.0
    assert s0_compute.pairs(found) == {"direct": [24.0, 8.0]}


def test_advertisements_by_tcp_are_compared_with_datagrams():
    cost = {"cpu_us": 1.0, "bytes": 20.0, "lost_share": 0.0}
    full = {"lost_share": 0.0, "mean_wait_s": 0.2, "full_share": 0.9}
    found = {
        "cost, tcp": cost,
        "cost, udp": cost | {"cpu_us": 8.0},
        "full link, tcp": full,
        "full link, udp": full | {"lost_share": 0.01},
    }
    cpu, sent, lost, waited = s0_news.rows(found)
    assert cpu.ratio == 8.0 and sent.ratio == 1.0 and waited.ratio == 1.0
    assert lost.baseline == 0.01 and lost.ratio is None  # without losses there is no quotient
    assert len(s0_news.rows({"cost, tcp": cost})) == 0


def test_chunks_are_advertised_once_in_order():
    batches = [*s0_news_end._gathered(25, 0.0, 10)]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert [n for batch in batches for n in batch] == [*range(1, 26)]
    assert peer_wire.encode(peer_wire.Advertise(announced.alone(*batches[0])))


def test_bad_host_is_compared_with_healthy_ones_unless_a_read_failed():
    well = {"took_s": 4.0, "fault": "", "invalid_chunks": 0, "source_ratio": 1.0}
    found = {
        s0_beyond.HEALTHY: well,
        s0_beyond.HEALTHY_AGAIN: well | {"took_s": 6.0},
        "lying": well | {"took_s": 10.0, "invalid_chunks": 3},
        "frozen": well | {"fault": "host 0: EIO", "took_s": 0.0},
    }
    by_state = {row.what.split()[5].rstrip(":"): row for row in s0_beyond.rows(found)}
    assert by_state["lying"].ratio == 2.0 and "3 wrong chunks" in by_state["lying"].what
    assert by_state["frozen"].ours is None
    assert s0_beyond.pairs(found) == {"healthy": [4.0, 6.0]}
