# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core import link_compression


def test_compression_that_shrinks_much_pays_on_faster_links():
    of_link = link_compression.LinkCompression()
    assert not of_link.is_worthwhile(150e6)
    gain_bytes_s = link_compression.SPEED_BYTES_S * (1 - link_compression.SHARE)
    assert not of_link.is_worthwhile(gain_bytes_s)
    for _ in range(100):
        assert of_link.record_trial(65536, 6553, took_s=65536 / 200e6)
    assert of_link.is_worthwhile(150e6)
    assert not of_link.is_worthwhile(190e6)


def test_slow_compression_pays_on_slow_links_only():
    of_link = link_compression.LinkCompression()
    for _ in range(100):
        of_link.record_trial(65536, 32768, took_s=65536 / 20e6)
    assert of_link.is_worthwhile(9e6)
    assert not of_link.is_worthwhile(12.5e6)


def test_share_at_the_limit_and_a_time_of_zero_are_accepted():
    of_link = link_compression.LinkCompression()
    assert of_link.record_trial(1000, 900, took_s=1000 / 200e6)
    assert of_link.record_trial(65536, 100, took_s=0.0)
    assert of_link.is_worthwhile(1e9)


@pytest.mark.parametrize(("trials", "skipped"), [(1, 1), (2, 2), (3, 4), (7, 64), (9, 64)])
def test_incompressible_responses_double_those_sent_plain_up_to_a_limit(trials, skipped):
    of_link = link_compression.LinkCompression()
    for _ in range(trials):
        while not of_link.begin_response():
            pass
        of_link.record_trial(65536, 65536, took_s=0.001)
    plain = 0
    while not of_link.begin_response():
        plain += 1
    assert plain == skipped


def test_compressible_chunk_ends_the_doubling():
    of_link = link_compression.LinkCompression()
    for compressed in (65536, 65536, 65536, 30000, 65536):
        while not of_link.begin_response():
            pass
        of_link.record_trial(65536, compressed, took_s=0.001)
    assert [of_link.begin_response() for _ in range(2)] == [False, True]
