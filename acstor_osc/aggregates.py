# SPDX-License-Identifier: Apache-2.0
"""Hosts of a host aggregate in Nova."""

from typing import Any
from typing import NamedTuple

from osc_lib import exceptions

from acstor_osc import client

PAGE_HOSTS = 10_000  # the API's largest page
MAX_HOSTS = 1000  # the API accepts as many hosts in one request
SKIPPED = "skipped: it sends no samples"


class AggregateHosts(NamedTuple):
    """Hosts of an aggregate: those that send samples, and the others."""

    up: list[str]
    down: list[str]


def find_hosts(
    manager: Any, api: client.Client, name: str, page_hosts: int = PAGE_HOSTS
) -> AggregateHosts:
    """Return the hosts of an aggregate; ``name`` is its ID or its name in Nova.

    :raises exceptions.CommandError: no host of it sends samples, or it has too many hosts
    """
    found = manager.sdk_connection.compute.find_aggregate(name, ignore_missing=False)
    wanted = sorted(set(found.hosts or ()))
    silent = _list_silent(api, wanted, page_hosts)
    up = [host for host in wanted if host not in silent]
    if not up:
        raise exceptions.CommandError(
            f"no host of aggregate {name} sends samples: is acstor-agent running there? "
            f"(openstack aggregate show {name}; openstack acstor host list)"
        )
    if len(up) > MAX_HOSTS:
        raise exceptions.CommandError(
            f"aggregate {name} has {len(up)} hosts that send samples, and one request takes "
            f"{MAX_HOSTS}: use smaller aggregates, or omit --aggregate for all hosts"
        )
    return AggregateHosts(up, [host for host in wanted if host in silent])


def _list_silent(api: client.Client, wanted: list[str], page_hosts: int) -> set[str]:
    silent, marker = set(wanted), ""
    while True:
        page = api.get("/v1/hosts", {"limit": page_hosts, "marker": marker})["hosts"]
        silent.difference_update(host["host"] for host in page if host["state"] != "silent")
        if len(page) < page_hosts:
            return silent
        marker = page[-1]["host"]
