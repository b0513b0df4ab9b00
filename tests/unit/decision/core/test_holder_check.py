# SPDX-License-Identifier: Apache-2.0
import types

import pytest

from acstor_decision.core import holder_check

KNOWN = {"h1": "10.0.0.1:7201", "h2": "10.0.0.2:7201", "local": "127.0.0.1:7201"}


def fault(owner: str, host: str, address: str) -> str:
    fine = types.SimpleNamespace(host="h2", address="10.0.0.2:7204")
    holder = types.SimpleNamespace(host=host, address=address)
    return holder_check.holder_fault(owner, [fine, holder], KNOWN, lambda name: name != "stranger")


@pytest.mark.parametrize(
    ("owner", "host", "address"),
    [
        ("h1", "h2", "10.0.0.2:9999"),
        ("h1", "silent", "10.0.0.3:7204"),  # its agent has reported no address yet
        ("local", "local", "127.0.0.1:7204"),
        ("unknown", "silent", "127.0.0.1:7204"),
    ],
)
def test_host_may_name_enrolled_holders_at_their_addresses(owner, host, address):
    assert fault(owner, host, address) == ""


@pytest.mark.parametrize(
    ("owner", "host", "address", "why"),
    [
        ("h1", "stranger", "10.0.0.4:7204", "stranger at 10.0.0.4:7204 has not enrolled here"),
        ("h1", "h2", "10.0.0.9:7204", "h2 at 10.0.0.9:7204 reports the address 10.0.0.2:7201"),
        ("h1", "silent", "127.0.0.1:7204", "has a loopback address, which would be h1 itself"),
    ],
)
def test_host_may_not_name_strangers_other_addresses_or_itself(owner, host, address, why):
    assert why in fault(owner, host, address)
