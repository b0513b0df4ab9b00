# SPDX-License-Identifier: Apache-2.0
"""Images are deactivated and reactivated, on a real Glance and a real agent."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from acstor_common import errors
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]


def from_glance(glance: uploads.Images) -> dict[str, Any]:
    """Return options of an agent whose only source is Glance."""
    user = api.credentials(glance.lab.keystone.auth_url, "acstor")
    return {"sources": "glance", "sections": {"source_glance": user}}


def with_glance(
    glance: uploads.Images,
    folder: pathlib.Path,
    nothing: local.ImageFolder,
    **options: Any,
) -> Any:
    """Run an agent whose only source is Glance."""
    return local.agent(folder, nothing, **from_glance(glance), **options)


def ensure(agent: agents.Agent, image_id: str) -> Any:
    return agents.request(agent.control_socket, "attach-image", image_id=image_id)


@hosts.needs_fuse
def test_deactivated_image_is_refused_until_it_is_reactivated(
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
            assert guest.read(10) == data[10 * uploads.CHUNK :][:10]  # a running guest reads on
        uploads.manage(listener, "reconcile")  # the artefacts stay
        for image_id in (in_use, idle):
            assert len(glance.artefacts_of(image_id)) == 1
            glance.admin.reactivate_image(image_id)
        ensure(agent, idle)
        assert agent.image_path(idle).read_bytes() == later
    glance.check_chunk_map(idle, later)


@hosts.needs_fuse
def test_home_serves_a_deactivated_image_to_running_guests_of_another_host(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listen()
    data = uploads.some_bytes(chunks=400, seed=44)  # the other host is the home of a part of it
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    nothing = local.ImageFolder(tmp_path / "nothing")
    with hosts.cloud(tmp_path, nothing, ("h1", "h2"), **from_glance(glance)) as cloud:
        ensure(cloud["h1"], image_id)
        glance.admin.deactivate_image(image_id)
        with pytest.raises(errors.Unusable, match=r"deactivated, not active"):
            ensure(cloud["h2"], image_id)
        assert cloud["h1"].image_path(image_id).read_bytes() == data
        home = cloud["h2"].status()
        assert image_id not in home["images"]
        assert home["exchange"]["source_bytes"] >= home["exchange"]["served_bytes"] > 0
