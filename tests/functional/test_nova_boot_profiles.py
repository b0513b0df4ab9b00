# SPDX-License-Identifier: Apache-2.0
"""A server's flavor names its boot profile: real Nova, a real guest, the trace of its boot."""

import uuid

import msgspec
import pytest

from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_nova import boot_profile
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import guest_files
from tests.lab import runs
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, pytest.mark.nightly]

BOOTED_S = 300.0
IDLE_S = 20.0


def test_boot_is_recorded_with_the_profile_of_the_flavor(cluster, lab_image):
    client, host = cluster.client, cluster.hosts[0]
    with lab_image.raw.open("rb") as data:
        image_id = cluster.images.map(cluster.images.add(data))
    name = f"database-{uuid.uuid4()}"
    flavor = client.create_flavor(name=name, ram=384, vcpus=1, disk=4)
    client.create_flavor_extra_specs(flavor, {boot_profile.EXTRA_SPEC: "database"})
    traces = host.agent.folder / "state/traces"
    try:
        with (
            nova_hosts.agent_options(host, constants={tuned.RECORD_IDLE_S: IDLE_S}),
            cluster.server(image_id, host, name) as server,
        ):
            booted = lambda: guest_files.MARKER in server.console()  # noqa: E731
            runs.wait_for(booted, BOOTED_S, "the login prompt", server.console)
            of_image = f"{image_id}-*.actrace"
            is_recorded = lambda: any(traces.glob(of_image))  # noqa: E731
            runs.wait_for(is_recorded, BOOTED_S, "the trace", host.agent.log)
    finally:
        client.delete_flavor(flavor)
    [path] = traces.glob(of_image)
    recorded = msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace)
    assert recorded.profile_key == ids.profile_key_of("database")
