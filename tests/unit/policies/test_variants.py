# SPDX-License-Identifier: Apache-2.0
"""Variants as an agent loads them: by the entry points of the distribution acstor-policies."""

import pathlib
import tomllib
import types

import pytest

from acstor_agent import policies
from acstor_agent import settings
from acstor_agent.core.images import readahead
from acstor_common import errors
from acstor_policies import variants
from acstor_policies.variants import Variant

FOLDER = pathlib.Path(variants.__file__).parent
KINDS = {
    "topology": {Variant.NO_ADVERTISEMENTS, Variant.ADVERTISE_NEAREST, Variant.ADVERTISE_FULL},
    "prefetcher": {
        Variant.NO_PREFETCH,
        Variant.UNBOUNDED_PREFETCH,
        Variant.PREFETCH_BY_LIMIT,
        Variant.HOMES_KEEP,
    },
    "read_ahead": {Variant.NO_READ_AHEAD, Variant.READ_AHEAD_BY_UNITS, Variant.HOMES_KEEP},
    "identity_scheme": {Variant.BY_PLACE, Variant.BY_OID},
    "disk_schedulers": {Variant.LINUX_DISK_SCHEDULERS},
    "cache_order": {Variant.CACHE_LFU, Variant.CACHE_FIFO},
    "may_refer": {Variant.NO_REFERRALS},
    "may_hedge": {Variant.NO_HEDGES},
    "may_ask_source_first": {Variant.NO_SOURCE_FIRST},
    "gives_copy_hints": {Variant.NO_COPY_HINTS},
    "homes_keep": {Variant.HOMES_KEEP},
    "lockstep_scheme": {Variant.RING},
}


def own(*chosen):
    return types.SimpleNamespace(
        variants=[str(name) for name in chosen], read_deadline_s=0.0, lost_after_s=900.0
    )


def test_each_variant_is_an_entry_point():
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    found = project["entry-points"][policies.NAMESPACE]
    at = {name: f"acstor_policies.variants:{name.name}" for name in Variant}
    assert found == {str(name): place for name, place in at.items()}


def test_each_variant_changes_only_policies_of_its_kind():
    usual = policies.Policies()
    changed = {kind: set() for kind in policies.Policies._fields}
    for variant in Variant:
        for kind, value in policies.load((str(variant),))._asdict().items():
            if value != getattr(usual, kind):
                changed[kind].add(variant)
    assert changed == KINDS


def test_exchange_gets_its_own_policies():
    made = settings.exchange_settings(
        own(
            "no-hedges", "no-source-first", "no-copy-hints", "ring", "homes-keep", "advertise-full"
        ),
        has_others=True,
        max_source_reads=3,
    )
    assert not (made.may_hedge or made.may_ask_source_first or made.copies_limit)
    assert made.learns_ring and made.homes_keep
    assert made.topology is variants.ADVERTISE_FULL["topology"]


@pytest.mark.parametrize(
    ("chosen", "is_ahead"),
    [((), True), (("no-read-ahead",), False), (("homes-keep",), False)],
)
def test_variants_turn_read_ahead_off(chosen, is_ahead):
    ahead = settings.make_read_ahead(own(*chosen), readahead.LOCAL)
    ranges = [ahead.predict_range(number << 17, 1 << 17, 0.0) for number in range(64)]
    assert any(stop > start for start, stop in ranges) == is_ahead


@pytest.mark.parametrize(
    "both",
    [
        ("advertise-full", "no-advertisements"),
        ("no-prefetch", "unbounded-prefetch"),
        ("prefetch-by-limit", "unbounded-prefetch"),
        ("no-read-ahead", "read-ahead-by-units"),
        ("no-referrals", "ring"),
        ("by-oid", "by-place"),
        ("homes-keep", "read-ahead-by-units"),
        ("homes-keep", "unbounded-prefetch"),
        ("cache-fifo", "cache-lfu"),
    ],
)
def test_variants_that_change_one_policy_differently_are_refused(both):
    policies.load((both[0], "no-hedges"))
    with pytest.raises(errors.Unusable, match=f"variants: {both[0]} and {both[1]} exclude"):
        settings.load_policies(own(*both))


def test_variants_that_change_one_policy_alike_can_be_combined():
    assert policies.load(("homes-keep", "no-prefetch", "no-read-ahead")).homes_keep


def test_variant_that_is_not_installed_is_refused():
    with pytest.raises(errors.Unusable, match="variants: cache-random: no such variant"):
        settings.load_policies(own("no-hedges", "cache-random"))
