# SPDX-License-Identifier: Apache-2.0
"""The cache-first policy: a server waits for its cached image, or Nova downloads the image."""

import os
import time
import types

import pytest

from acstor_common.wire import control_wire
from acstor_nova import cache_first
from tests.fakes import nova_backend
from tests.fakes import scripted_agent

IMAGE, DOWNLOADED = nova_backend.IMAGE, nova_backend.DOWNLOADED
URGENT, NORMAL = control_wire.FillMode.URGENT, control_wire.FillMode.NORMAL
LIMIT_S = 30
OTHER = "0b2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"


@pytest.fixture
def nova(tmp_path):
    found = nova_backend.Nova(tmp_path)
    found.limit(fill_poll_s=0.01)
    return found


@pytest.fixture
def agent(nova):
    with scripted_agent.running(nova.socket, nova.answers) as running:
        yield running


def fills(agent, *states, **fields):
    """Let the agent report these fill states in turn, then the last one forever."""
    left = list(states)

    def next_fill():
        return {"state": left.pop(0) if len(left) > 1 else left[0], **fields}

    agent.answers[control_wire.SetFillMode] = scripted_agent.done({})
    agent.answers[control_wire.Status] = lambda request: scripted_agent.done(
        {"images": {IMAGE: {"fill": next_fill()}}}
    )(request)


def patient(nova, limit_s=LIMIT_S):
    made = nova.disk()
    made._instance.flavor = types.SimpleNamespace(
        extra_specs={cache_first.EXTRA_SPEC: str(limit_s)}
    )
    return made


def modes(agent):
    return [
        (one.mode, one.deadline_s)
        for one in agent.asked
        if isinstance(one, control_wire.SetFillMode)
    ]


def test_disk_is_made_when_the_image_is_fully_cached(nova, agent):
    fills(agent, "queued", "queued", "filling", "fully_cached")
    nova.cached(patient(nova))
    assert os.readlink(nova.base) == str(nova.mirror)
    assert modes(agent) == [(URGENT, LIMIT_S), (NORMAL, 0)]
    assert sum(isinstance(one, control_wire.Status) for one in agent.asked) == 4
    assert not nova.host.fallbacks.counts_by_reason


@pytest.mark.expect_log("not-cached")
@pytest.mark.parametrize("state", ["filling", "failing", None])
def test_image_is_downloaded_after_the_time_limit(nova, agent, state):
    fills(agent, state, why="the source is down", cached_share=0.25)
    began_s = time.monotonic()
    nova.cached(patient(nova, 1))
    assert 1 <= time.monotonic() - began_s < 15
    assert nova.base.read_bytes() == DOWNLOADED
    assert modes(agent)[-1] == (NORMAL, 0)


@pytest.mark.expect_log("not-cached")
@pytest.mark.parametrize("state", ["no_space", "paused"])
def test_image_that_cannot_be_cached_is_downloaded_at_once(nova, agent, state):
    fills(agent, state)
    nova.cached(patient(nova))
    assert nova.base.read_bytes() == DOWNLOADED


@pytest.mark.expect_log("not-cached")
def test_image_is_downloaded_when_the_agent_refuses(nova, agent):
    agent.answers[control_wire.SetFillMode] = scripted_agent.failed("Unusable", "keep_images")
    nova.cached(patient(nova))
    assert nova.base.read_bytes() == DOWNLOADED


def test_mirror_used_by_other_servers_is_kept_and_the_build_fails(nova, agent):
    other = nova.cached(nova.disk(instance_id=OTHER))
    fills(agent, "no_space")
    made = patient(nova)
    with pytest.raises(nova_backend.CannotStartError, match="Other servers of this host"):
        nova.cached(made)
    assert os.readlink(nova.base) == str(nova.mirror)
    assert os.path.lexists(other.path) and not os.path.lexists(made.path)


def test_existing_or_migrating_disk_does_not_wait(nova, agent):
    nova.spawn()
    nova.cached(patient(nova))  # the disk exists: a start, not a build
    arriving = nova.disk(instance_id=OTHER)
    arriving._instance.task_state = "migrating"
    arriving._instance.system_metadata = {f"image_{cache_first.IMAGE_PROPERTY}": "600"}
    nova.cached(arriving)
    assert modes(agent) == []


def test_limit_of_the_flavor_precedes_that_of_the_image():
    image_s = {f"image_{cache_first.IMAGE_PROPERTY}": "20"}
    flavor = types.SimpleNamespace(extra_specs={cache_first.EXTRA_SPEC: "30"})
    policy_of = cache_first.policy_of
    assert policy_of(types.SimpleNamespace(system_metadata=image_s)) == (20, NORMAL)
    assert policy_of(types.SimpleNamespace(system_metadata=image_s, flavor=flavor)) == (30, URGENT)
    assert policy_of(types.SimpleNamespace(system_metadata={}, flavor=None)) is None


def test_limit_of_an_image_is_bounded_and_gives_no_urgency(nova, agent):
    fills(agent, "queued", "filling", "fully_cached")
    made = nova.disk()
    made._instance.system_metadata = {f"image_{cache_first.IMAGE_PROPERTY}": "300"}
    nova.cached(made)
    assert modes(agent) == [(NORMAL, 0)]
    longer = nova.disk(instance_id=OTHER)
    longer._instance.system_metadata = {f"image_{cache_first.IMAGE_PROPERTY}": "301"}
    with pytest.raises(nova_backend.CannotStartError, match="whole seconds from 1 to 300"):
        nova.cached(longer)


@pytest.mark.expect_log("not-cached")
@pytest.mark.parametrize(("state", "mode"), [("paused", "paused"), ("filling", "urgent")])
def test_fill_mode_set_by_the_operator_is_not_changed(nova, agent, state, mode):
    fills(agent, state, mode=mode)
    nova.cached(patient(nova, 1))
    assert modes(agent) == []
    assert nova.base.read_bytes() == DOWNLOADED


@pytest.mark.parametrize("text", ["", "0", "-1", "3601", "10m", "1e3", "٣", "9" * 5000])
def test_invalid_limit_fails_the_build(nova, agent, text):
    with pytest.raises(nova_backend.CannotStartError, match="whole seconds from 1 to 3600"):
        nova.cached(patient(nova, text))
