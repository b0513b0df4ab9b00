# SPDX-License-Identifier: Apache-2.0
"""Images at new locations, out of service, and back again, on a real Glance and a real agent."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from acstor_common import errors
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import image_server
from tests.lab import local
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]


def add_location(glance: uploads.Images, url: str) -> str:
    """Make a tenant's image of bytes that lie somewhere already; return its id.

    Only web servers: Glance takes no location in its file store from anybody.
    """
    image_id: str = glance.create().id
    body = {"url": url, "validation_data": {}}
    answer = glance.tenant.post(f"/images/{image_id}/locations", json=body)
    assert answer.status_code == 202, answer.text
    return image_id


def with_glance(
    glance: uploads.Images,
    folder: pathlib.Path,
    exported: local.ImageFolder,
    sources: str = "glance",
) -> Any:
    """Run an agent that reads from Glance, and if it is told to from a folder."""
    user = api.credentials(glance.lab.keystone.auth_url, "acstor")
    sections = {"source_glance": user}
    return local.agent(folder, exported, sources=sources, sections=sections)


def ensure(agent: agents.Agent, image_id: str) -> Any:
    return agents.request(agent.control_socket, "ensure", image_id=image_id)


@hosts.needs_fuse
def test_image_at_a_web_server_is_prepared_and_agents_are_told_that_it_has_no_ranges(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data = uploads.some_bytes(seed=41)
    (tmp_path / "bytes").write_bytes(data)
    # An address of the loopback that nobody else has: the server's port is always the same.
    web = local.LocalHost("web", "", f"127.77.{os.getpid() % 250}.7", tmp_path)
    with image_server.ImageServer(web, tmp_path) as server:
        changes = {
            "DEFAULT": {"enabled_backends": "fs:file,web:http"},
            "import_filtering_opts": {
                "allowed_hosts": f"[{web.address}]",
                "allowed_ports": f"[{image_server.PORT}]",
            },
        }
        with glance.lab.glance.changed(changes):
            listener = listen()
            image_id = add_location(glance, f"{server.url}/bytes")
            glance.wait_state(image_id)
            glance.check_chunk_map(image_id, data)
            exported = local.ImageFolder(tmp_path / "exported")
            with with_glance(glance, tmp_path / "first", exported) as agent:
                agent.wait_ready()
                with pytest.raises(errors.Unusable, match=r"no range reads .* copy-image"):
                    ensure(agent, image_id)
            # One host streams it for all.
            folder = exported.folder
            export = ("export", "--folder", str(folder))
            [row] = uploads.manage(listener, *export, image_id)
            assert row["outcome"] == "exported"
            assert (folder / f"{image_id}.raw").stat().st_mode & 0o777 == 0o640
            with with_glance(glance, tmp_path / "second", exported, "glance,file") as agent:
                agent.wait_ready()
                ensure(agent, image_id)
                assert agent.image_path(image_id).read_bytes() == data
            [row] = uploads.manage(listener, *export, image_id)
            assert row["outcome"] == "there"
            glance.delete(image_id)
            rows = uploads.manage(listener, *export)
            assert {"image": image_id, "outcome": "removed"} in rows
            assert list(folder.iterdir()) == []


@hosts.needs_fuse
def test_deactivated_image_is_refused_with_the_reason_and_served_again_when_it_is_back(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    data, later = uploads.some_bytes(seed=42), uploads.some_bytes(seed=43)
    in_use, idle = glance.upload(data), glance.upload(later)
    for image_id in (in_use, idle):
        glance.wait_state(image_id)
    nothing = local.ImageFolder(tmp_path / "nothing")
    with with_glance(glance, tmp_path / "host", nothing) as agent:
        agent.wait_ready()
        ensure(agent, in_use)
        with agent.image_path(in_use).open("rb", buffering=0) as guest:
            assert guest.read(10) == data[:10]
            for image_id in (in_use, idle):
                glance.admin.deactivate_image(image_id)
            with pytest.raises(errors.Unusable, match=r"deactivated, not active"):
                ensure(agent, idle)
            with pytest.raises(OSError):
                agent.image_path(idle).read_bytes()
            guest.seek(10 * uploads.CHUNK)
            assert guest.read(10) == data[10 * uploads.CHUNK :][:10]  # a guest that runs goes on
        uploads.manage(listener, "reconcile")  # and its artefacts stay
        for image_id in (in_use, idle):
            assert len(glance.artefacts_of(image_id)) == 1
            glance.admin.reactivate_image(image_id)
        ensure(agent, idle)
        assert agent.image_path(idle).read_bytes() == later
    glance.check_chunk_map(idle, later)
