# SPDX-License-Identifier: Apache-2.0
"""What options become."""

import grp
import types

import pytest

from acstor_agent import settings
from acstor_agent.core import experiments
from acstor_agent.core.experiments import Variant
from acstor_agent.core.images import readahead
from acstor_agent.core.images import unit_readahead
from acstor_agent.engine import identity
from acstor_agent.engine import neighbours
from acstor_agent.engine.gossip import unmatched_prefetch
from acstor_common import errors


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("0.0.0.0:7201", "unspecified"),
        ("[::]:7201", "unspecified"),
        ("224.0.0.1:7201", "multicast"),
        ("169.254.169.254:7201", "link-local"),
        ("[fe80::1]:7201", "link-local"),
    ],
)
def test_an_address_that_nobody_could_use_is_not_told_to_others(address, fault):
    with pytest.raises(errors.Unusable, match=rf"peer_listen: .*it is {fault}"):
        settings.reachable_at(types.SimpleNamespace(peer_listen=address))
    assert settings.reachable_at(types.SimpleNamespace(peer_listen="10.0.0.1:7201"))


def own(*chosen):
    return types.SimpleNamespace(variants=[str(variant) for variant in chosen])


def test_each_variant_changes_what_it_says_and_nothing_else():
    def everything(options):
        made = settings.exchange(
            types.SimpleNamespace(**vars(options), read_deadline_s=0.0, lost_after_s=900.0),
            has_others=True,
            source_places=3,
        )
        return {
            "advertise": made.topology,
            "copies": made.copies_limit,
            "hedges": made.may_hedge,
            "ring": made.learns_ring,
            "homes keep": made.homes_keep,
            "source first": made.may_ask_source_first,
            "referrals": settings.may_refer(options),
            "prefetch": settings.unmatched_limit(options),
            "prefetch rule": settings.prefetch_rule(options),
            "ahead": type(settings.read_ahead(options)),
            "ahead of 64 reads": fetched_ahead(options),
            "names": type(settings.identity_scheme(options)),
            "cache": settings.cache_policy(options),
        }

    usual = everything(own())
    changed = {
        variant: {name: now for name, now in everything(own(variant)).items() if now != usual[name]}
        for variant in Variant
    }
    assert changed.pop(Variant.NO_READ_AHEAD) == {"ahead of 64 reads": 0}
    by_units = changed.pop(Variant.READ_AHEAD_BY_UNITS)
    assert by_units.pop("ahead") is unit_readahead.UnitAhead
    assert usual["ahead"] is readahead.ReadAhead and usual["ahead of 64 reads"] > 0
    assert changed == {
        Variant.NO_ADVERTISEMENTS: {"advertise": None},
        Variant.ADVERTISE_NEAREST: {"advertise": neighbours.Topology.NEAREST},
        Variant.ADVERTISE_FULL: {"advertise": neighbours.Topology.FULL},
        Variant.NO_PREFETCH: {"prefetch": 0},
        Variant.UNBOUNDED_PREFETCH: {"prefetch": None},
        Variant.PREFETCH_BY_LIMIT: {"prefetch rule": unmatched_prefetch.UnmatchedPrefetcher},
        Variant.NO_REFERRALS: {"referrals": False},
        Variant.NO_HEDGES: {"hedges": False},
        Variant.NO_SOURCE_FIRST: {"source first": False},
        Variant.NO_COPY_HINTS: {"copies": 0},
        Variant.RING: {"ring": True},
        Variant.BY_PLACE: {"names": identity.ByPlace},
        Variant.BY_OID: {"names": identity.ByOid},
        Variant.HOMES_KEEP: {"homes keep": True, "prefetch": 0, "ahead of 64 reads": 0},
        Variant.CACHE_LFU: {"cache": "lfu"},
        Variant.CACHE_FIFO: {"cache": "fifo"},
    }
    assert set(experiments.MEANINGS) == set(Variant)


def fetched_ahead(options):
    """Return what is fetched ahead of one who reads 8 MiB in order."""
    ahead = settings.read_ahead(options)
    ranges = [ahead.read(number << 17, 1 << 17, 0.0) for number in range(64)]
    return sum(stop - start for start, stop in ranges)


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
def test_variants_that_exclude_each_other_are_refused(both):
    experiments.check([both[0], "no-hedges"])
    with pytest.raises(errors.Unusable, match=f"variants: {both[0]} and {both[1]} exclude"):
        experiments.check(both)


@pytest.mark.parametrize(
    ("deadline_s", "patience_s", "place_s"),
    [(0.0, 30.0, 10.0), (3.0, 3.0, 1.0), (90.0, 30.0, 30.0)],
)
def test_look_ups_end_before_nova_gives_the_agent_up(deadline_s, patience_s, place_s):
    options = types.SimpleNamespace(read_deadline_s=deadline_s)
    assert settings.patience_s(options) == patience_s
    assert settings.place_timeout_s(options) == pytest.approx(place_s)


def test_socket_is_for_the_group_that_is_named_or_for_the_one_of_the_package(monkeypatch):
    def gid(group):
        return settings.control_gid(types.SimpleNamespace(control_group=group))

    daemons = grp.getgrnam("daemon").gr_gid
    assert gid("daemon") == gid(str(daemons)) == daemons
    monkeypatch.setattr(settings, "CONTROL_GROUP", "nogroup")
    assert gid(None) == grp.getgrnam("nogroup").gr_gid
    monkeypatch.setattr(settings, "CONTROL_GROUP", "no-such-group")
    assert gid(None) is None


def test_group_may_be_a_number_that_no_group_here_has():
    assert settings.group_id("42436") == 42436
    with pytest.raises(KeyError):
        settings.group_id(str(settings.LARGEST_GID + 1))


def test_source_places_are_those_that_the_source_has():
    options = types.SimpleNamespace(**vars(own()), peer_timeout_s=5.0, lost_after_s=0.0)
    options.read_deadline_s = 0.0
    assert settings.exchange(options, has_others=False, source_places=3).source_places == 3
