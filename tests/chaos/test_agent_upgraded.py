# SPDX-License-Identifier: Apache-2.0
"""An agent replaced by another version under its guests, before or after Nova's part.

The other version is a copy of this one with a distinct log line; the service manager, the mount,
the guests and Nova's client are real.
"""

import signal

import pytest

from acstor_common import errors
from acstor_common.wire import control_wire
from acstor_nova import agent_client
from tests.fakes import hosts
from tests.fakes import managed_agent
from tests.fakes import next_version

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

CLIENT_S = 30.0


class NextEnsure(control_wire.ControlRequest, frozen=True, tag="attach-image"):
    """The next version's request of Nova's part, with one field more."""

    image_id: str
    is_urgent: bool = False


@pytest.fixture
def next_tree(tmp_path):
    """Return a folder with the next version."""
    return next_version.make(tmp_path / "next")


@pytest.fixture
def managed(tmp_path):
    with managed_agent.started(tmp_path) as made:
        yield made


def client_of(managed):
    return agent_client.AgentClient(str(managed.folder / "control.sock"), CLIENT_S)


def test_guests_see_no_error_during_an_upgrade_and_a_downgrade(managed, next_tree):
    client = client_of(managed)
    with managed.reading() as readers:
        for tree in (next_tree, None):
            managed.end(signal.SIGTERM)
            managed.start(tree)
            assert client.attach_image(managed.image_id).size_bytes == managed_agent.IMAGE_BYTES
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert managed.log().count(next_version.NEXT_SAYS) == 1
    assert managed.log().count("taking over the mount") == 2


def test_newer_nova_client_is_served_except_for_its_new_field(managed):
    """The new field is refused by name: Nova then falls back."""
    client = client_of(managed)
    assert client._ask(NextEnsure(managed.image_id))["size_bytes"] == managed_agent.IMAGE_BYTES
    with pytest.raises(errors.AgentRefused, match="is_urgent") as refused:
        client._ask(NextEnsure(managed.image_id, is_urgent=True))
    assert refused.value.kind == errors.RemoteProtocolError.__name__
    assert client.attach_image(managed.image_id).size_bytes == managed_agent.IMAGE_BYTES
