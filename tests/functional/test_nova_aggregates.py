# SPDX-License-Identifier: Apache-2.0
"""Images pre-seeded on the hosts of an aggregate: by Nova's own API, and by the CLI.

Nova, its two compute hosts and their agents are real, and so are the decision service and its API.

"""

import contextlib
import json
import uuid
from collections.abc import Iterator

import pytest

from acstor_common.identity import identity_files
from acstor_osc import aggregates
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import decision
from tests.lab import identities
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_decision

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

LINK_MBIT = 1000
SMALL_CACHE_BYTES = nova_hosts.IMAGE_BYTES // 2
JOINED = {"keep_images": "host", "traffic_interfaces": "eth0", "link_mbit": LINK_MBIT}


@contextlib.contextmanager
def aggregate(cluster: nova_hosts.NovaHosts, *members: nova_hosts.Host) -> Iterator[str]:
    """Create a host aggregate for a block, and yield its name."""
    made = cluster.client.create_aggregate(name=f"aggregate-{uuid.uuid4()}")
    try:
        for host in members:
            cluster.client.add_host_to_aggregate(made, host.name)
        yield made.name
    finally:
        for host in members:
            cluster.client.remove_host_from_aggregate(made, host.name)
        cluster.client.delete_aggregate(made)


def is_pre_seeded(host: nova_hosts.Host, image_id: str) -> bool:
    """Return whether a host has an image fully cached and pinned."""
    image = host.agent.status()["images"].get(image_id)
    if not image or image["cached_bytes"] < nova_hosts.IMAGE_BYTES:
        return False
    return bool(image["fill"]["is_pinned"] and image["fill"]["state"] == "fully_cached")


def test_nova_cache_request_pre_seeds_and_pins_without_a_download(cluster):
    image_id, host = cluster.images.new(), cluster.hosts[1]
    with (
        nova_hosts.agent_options(host, keep_images="host"),
        aggregate(cluster, host) as name,
    ):
        found = cluster.client.find_aggregate(name)
        cluster.client.aggregate_precache_images(found, [image_id])
        runs.wait_for(
            lambda: is_pre_seeded(host, image_id),
            nova_hosts.DEADLINE_S,
            "the image",
            host.agent.log,
        )
        assert host.is_mirrored(image_id)
    assert cluster.images.downloads(image_id) == 0
    assert cluster.images.range_bytes(image_id) <= nova_hosts.IMAGE_BYTES + nova_hosts.MIB


def test_nova_cache_request_refused_by_the_agent_is_logged_as_an_error(cluster):
    image_id, host = cluster.images.new(), cluster.hosts[1]
    small = {"keep_images": "host", "cache_limit_bytes": SMALL_CACHE_BYTES}
    with nova_hosts.agent_options(host, **small), aggregate(cluster, host) as name:
        found = cluster.client.find_aggregate(name)
        cluster.client.aggregate_precache_images(found, [image_id])
        failed = f"Failed to cache image {image_id}"
        runs.wait_for(
            lambda: failed in host.compute.log(),
            nova_hosts.DEADLINE_S,
            failed,
            host.compute.log,
        )
        assert not is_pre_seeded(host, image_id)
    assert cluster.images.downloads(image_id) == 0


@pytest.fixture
def decision_service(cluster, tmp_path) -> Iterator[decision.Instance]:
    """Run a decision service with its REST API; the first host sends it samples."""
    lab, host = cluster.lab, cluster.hosts[0]
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    broker = {"DEFAULT": {"transport_url": lab.rabbitmq.url}}
    often = {tuned.COLLECTION_S: decision.COLLECTION_S}
    with contextlib.ExitStack() as stack:
        instance = decision.Instance(tmp_path, "one", lab.rabbitmq.url, connection)
        stack.enter_context(instance)
        api = acstor_decision.DecisionApi(lab, tmp_path / "api", connection)
        stack.callback(api.stop)
        api.start()
        identity = host.agent.identity
        stack.callback(lambda: identity_files.write(identity, identities.issue(host.name)))
        decision.manage(instance.config_file, "authority", "issue", host.name, "--out", identity)
        stack.enter_context(
            nova_hosts.agent_options(host, constants=often, sections=broker, **JOINED)
        )
        api.wait_ready()
        api.register()
        runs.wait_for(
            lambda: "silent" not in states(cluster),
            decision.JOIN_DEADLINE_S,
            "samples",
            instance.log,
        )
        yield instance


def states(cluster: nova_hosts.NovaHosts) -> str:
    """Return the states of the hosts that the decision service knows."""
    words = ("host", "list", "-f", "value", "-c", "State")
    return acstor_decision.openstack(cluster.lab, "admin", *words).stdout or "silent"


@pytest.mark.nightly
def test_command_pre_seeds_on_the_hosts_of_an_aggregate_that_are_up(cluster, decision_service):
    image_id, (first, second) = cluster.images.new(), cluster.hosts
    words = ("image", "pre-seed", image_id, "--wait", "--aggregate")

    def pre_seed(name: str) -> tuple[str, str]:
        done = acstor_decision.openstack(cluster.lab, "admin", *words, name, "-f", "json")
        return done.stdout, done.stderr

    with aggregate(cluster, second) as name:
        assert f"no host of aggregate {name} sends samples" in pre_seed(name)[1]
    with aggregate(cluster, first, second) as name:
        out, err = pre_seed(name)
        assert json.loads(out) == [
            {"Host": first.name, "Task": "pre_seed: done, 100 %"},
            {"Host": second.name, "Task": aggregates.SKIPPED},
        ], err
    assert is_pre_seeded(first, image_id)
    assert "No Aggregate found for nothing" in pre_seed("nothing")[1]
