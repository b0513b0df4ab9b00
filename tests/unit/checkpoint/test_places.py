# SPDX-License-Identifier: Apache-2.0
"""Nobody takes the places of others."""

from acstor_checkpoint import places
from acstor_common import ids
from acstor_common import vault_paths


def test_an_address_has_few_places_and_gets_them_back() -> None:
    all_of_them = places.Places()
    taken = [
        all_of_them.unauthenticated("10.0.0.1")
        for _ in range(places.UNAUTHENTICATED_OF_ADDRESS + 1)
    ]
    assert taken == [True] * places.UNAUTHENTICATED_OF_ADDRESS + [False]
    assert all_of_them.unauthenticated("10.0.0.2")
    all_of_them.unauthenticated_left("10.0.0.1")
    assert all_of_them.unauthenticated("10.0.0.1")


def test_all_strangers_together_have_a_limit() -> None:
    all_of_them = places.Places()
    taken = [all_of_them.unauthenticated(f"10.0.0.{n}") for n in range(places.UNAUTHENTICATED + 1)]
    assert taken.count(True) == places.UNAUTHENTICATED
    with all_of_them.host(ids.HostId("h1")) as has_place:
        assert has_place  # those have others


def test_a_host_has_few_places_and_gets_them_back() -> None:
    all_of_them = places.Places()
    held = [all_of_them.host(ids.HostId("h1")) for _ in range(vault_paths.CONNECTIONS_OF_HOST + 1)]
    got = [one.__enter__() for one in held]
    assert got == [True] * vault_paths.CONNECTIONS_OF_HOST + [False]
    for one in held:
        one.__exit__(None, None, None)
    with all_of_them.host(ids.HostId("h1")) as has_place:
        assert has_place
