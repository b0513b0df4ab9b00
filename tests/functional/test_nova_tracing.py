# SPDX-License-Identifier: Apache-2.0
"""Traces of commands with ``--os-profile``: real Nova, Glance, gateway and agents."""

import re
import uuid
from collections.abc import Iterator

import pytest

from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import client
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import traces

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]


@pytest.fixture(scope="module")
def gateway(compute_lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Return a gateway beside Glance; both send spans, as Nova's API does."""
    with compute_lab.glance.changed(traces.OPTIONS), compute_lab.nova.api.changed(traces.OPTIONS):
        with acstor_gateway.running(compute_lab, auth_cache_s=60) as beside:
            yield beside


@pytest.fixture(scope="module")
def cluster(
    openstack_lab: cloud.Cloud, gateway: acstor_gateway.Gateway
) -> Iterator[nova_hosts.NovaHosts]:
    """Return the two compute hosts, whose Nova uses the gateway and sends spans."""
    more = {"acstor": {"gateway_url": f"http://127.0.0.1:{gateway.port}"}}
    with nova_hosts.running(openstack_lab, more=ini.merged(more, traces.OPTIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def spans(cluster: nova_hosts.NovaHosts) -> Iterator[traces.Spans]:
    with traces.received(cluster.lab.rabbitmq) as found:
        yield found


def traced(lab: cloud.Cloud, *words: str) -> tuple[str, str]:
    """Run a command with --os-profile; return the trace's ID and the output."""
    done = client.openstack(lab, "admin", *words, "--os-profile", traces.KEY)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    found = re.search(r"Trace ID: ([0-9a-f-]{36})", said)
    assert found is not None, said
    return found[1], done.stdout


@pytest.mark.nightly
def test_traces_of_boot_and_snapshot_contain_spans_of_acstor(cluster, spans):
    host, image_id = cluster.hosts[0], cluster.images.new()
    name = f"traced-{uuid.uuid4()}"
    flavor = cluster.flavor("tiny")
    where = ("--host", host.name, "--os-compute-api-version", "2.96")
    what = ("--image", image_id, "--flavor", flavor, "--no-network")
    trace_id, _ = traced(cluster.lab, "server", "create", *where, *what, "--wait", name)
    server = nova_hosts.Server(cluster, cluster.client.find_server(name).id, image_id)
    try:
        assert server.lies_on_mirror()
        [link] = spans.wait_for(trace_id, "acstor_mirror_link")
        assert link.attributes["kwargs"] == f"image={image_id}"
        calls = spans.wait_for(trace_id, "acstor_agent_call")
        assert link in spans.parents(calls[0])
        around = [one.service for one in spans.parents(link)]
        assert {"nova-nova-compute", "nova-osapi_compute"} <= set(around)
        assert spans.wait_for(trace_id, "acstor_mirror_readable")
        nova_moves.qemu_io(server, "write -P 7 1M 100k")
        traced(cluster.lab, "server", "image", "create", "--wait", name)
        # In any trace: threads of Nova 34 keep that of a former request.
        [merged] = spans.wait_for(None, "acstor_merge")
        assert merged.service == "acstor-gateway"
        around = [one.service for one in spans.parents(merged)]
        assert {"acstor-gateway", "nova-nova-compute", "nova-osapi_compute"} <= set(around)
        requests = [one for one in spans.found if merged in spans.parents(one)]
        assert "glance-api" in {one.service for one in requests}, "the gateway's upload"
    finally:
        server.delete()


def test_gateway_traces_only_reads_with_a_valid_hmac(cluster, spans, gateway):
    from osprofiler import profiler  # any client's
    from osprofiler import web

    image_id = cluster.images.new()
    session = cluster.lab.session("acstor")
    url = f"{gateway.url}/v1/images/{image_id}/file"
    for key in ("another key", traces.KEY, traces.KEY):
        made = profiler.init(key)
        headers = {"Range": "bytes=0-1023", **web.get_trace_id_headers()}
        profiler.clean()
        answer = session.get(url, headers=headers)
        assert len(answer.content) == 1024
        if key != traces.KEY:
            untraced = made.get_base_id()
            continue
        [read] = spans.wait_for(made.get_base_id(), "acstor_range_read")
        [lookup] = spans.wait_for(made.get_base_id(), "acstor_permission_lookup")
        [stored] = spans.wait_for(made.get_base_id(), "acstor_store_read")
        assert read in spans.parents(lookup)
        assert stored.attributes["kwargs"] == "store=fs"
        assert spans.results[read.span_id] == "bytes=1024"
        assert spans.results[lookup.span_id] == "cached=True"
    assert untraced not in {one.trace_id for one in spans.found}
    assert session.get_token() not in str(spans.found) + str(spans.results)
