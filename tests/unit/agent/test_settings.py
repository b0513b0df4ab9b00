# SPDX-License-Identifier: Apache-2.0
"""Values that derive from options."""

import grp
import types

import pytest

from acstor_agent import settings
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
def test_listen_address_that_peers_cannot_reach_is_refused(address, fault):
    with pytest.raises(errors.Unusable, match=rf"peer_listen: .*it is {fault}"):
        settings.reachable_at(types.SimpleNamespace(peer_listen=address))
    assert settings.reachable_at(types.SimpleNamespace(peer_listen="10.0.0.1:7201"))


def own(*chosen):
    return types.SimpleNamespace(variants=[str(variant) for variant in chosen])


@pytest.mark.parametrize(
    ("deadline_s", "timeout_s", "place_s"),
    [(0.0, 30.0, 10.0), (3.0, 3.0, 1.0), (90.0, 30.0, 30.0)],
)
def test_reply_and_provider_timeouts_follow_the_read_deadline(deadline_s, timeout_s, place_s):
    options = types.SimpleNamespace(read_deadline_s=deadline_s)
    assert settings.reply_timeout_s(options) == timeout_s
    assert settings.provider_timeout_s(options) == pytest.approx(place_s)


def test_control_socket_group_is_the_configured_or_the_default_one():
    def gid(group, default=settings.CONTROL_GROUP):
        return settings.control_gid(types.SimpleNamespace(control_group=group), default)

    daemons = grp.getgrnam("daemon").gr_gid
    assert gid("daemon") == gid(str(daemons)) == daemons
    assert gid(None, "nogroup") == grp.getgrnam("nogroup").gr_gid
    assert gid(None, "no-such-group") is None


def test_group_may_be_an_unknown_numeric_id():
    assert settings.group_id("42436") == 42436
    with pytest.raises(KeyError):
        settings.group_id(str(settings.LARGEST_GID + 1))


def test_exchange_settings_take_the_read_limit_of_the_source():
    options = types.SimpleNamespace(**vars(own()), peer_timeout_s=5.0, lost_after_s=0.0)
    options.read_deadline_s = 0.0
    assert (
        settings.exchange_settings(options, has_others=False, max_source_reads=3).max_source_reads
        == 3
    )
