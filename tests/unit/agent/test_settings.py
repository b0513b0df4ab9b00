# SPDX-License-Identifier: Apache-2.0
"""What options become."""

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
def test_an_address_that_nobody_could_use_is_not_told_to_others(address, fault):
    own = types.SimpleNamespace(peer_address=address, peer_listen="10.0.0.1:7201")
    with pytest.raises(errors.Unusable, match=rf"peer_address: .*it is {fault}"):
        settings.reachable_at(own)
    assert settings.reachable_at(types.SimpleNamespace(**vars(own) | {"peer_address": ""}))
