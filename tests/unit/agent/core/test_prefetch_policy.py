# SPDX-License-Identifier: Apache-2.0
"""Rules for prefetching boot images: the operator's mode, and the projects served."""

import pytest

from acstor_agent import conf
from acstor_agent.core.boot import prefetch_policy
from acstor_common.model import ids
from acstor_common.util import token_buckets

Mode = prefetch_policy.Mode
OURS, THEIRS = (ids.ScopeKey(bytes([n]) * 32) for n in (1, 2))


@pytest.mark.parametrize(
    ("mode", "is_open", "has_former", "takes"),
    [
        (Mode.NONE, True, True, False),
        (Mode.BOOTED, True, False, False),
        (Mode.BOOTED, True, True, True),
        (Mode.BOOTED, False, True, True),
        (Mode.ALL, True, False, True),
        (Mode.ALL, False, False, False),
        (Mode.ALL, False, True, True),
    ],
)
def test_mode_decides_which_hosts_prefetch_a_boot_image(mode, is_open, has_former, takes):
    assert prefetch_policy.is_for(mode, is_open=is_open, has_former=has_former) is takes


def test_each_value_of_the_option_is_a_mode():
    [option] = [option for option in conf.OPTS if option.dest == "prefetch_boot_images"]
    assert [value for value, _ in option.type.choices.items()] == list(Mode)
    assert Mode(option.default) is Mode.NONE


@pytest.mark.parametrize(
    ("keys", "formers", "is_served"),
    [
        ((), [], True),
        ((), [(OURS,)], True),
        ((OURS,), [(OURS,)], True),
        ((OURS,), [(), (OURS, THEIRS)], True),
        ((OURS,), [(THEIRS, OURS)], False),  # a base image of another project does not count
        ((OURS,), [()], False),
        ((OURS,), [], False),
    ],
)
def test_private_image_is_prefetched_if_its_project_has_an_earlier_one(keys, formers, is_served):
    assert prefetch_policy.is_served(keys, formers) is is_served


@pytest.mark.parametrize("hosts", [0, 1, 999, 10**6])
def test_start_of_prefetches_is_spread_over_a_bounded_time(hosts):
    spread_s = prefetch_policy.spread_s(hosts)
    assert spread_s <= prefetch_policy.LONGEST_SPREAD_S
    assert (
        spread_s * prefetch_policy.BEGIN_PER_S == hosts
        or spread_s == prefetch_policy.LONGEST_SPREAD_S
    )


def test_daily_prefetch_limit_allows_a_full_burst_then_refills():
    buckets = token_buckets.TokenBuckets[None](prefetch_policy.daily(1000), 1)
    assert buckets.try_take(None, 1000, 0.0)
    assert not buckets.try_take(None, 500, prefetch_policy.DAY_S / 2 - 1)
    assert buckets.try_take(None, 500, prefetch_policy.DAY_S / 2)
    assert not buckets.try_take(None, 1, prefetch_policy.DAY_S / 2)
    assert not buckets.try_take(None, 1001, 100 * prefetch_policy.DAY_S)
