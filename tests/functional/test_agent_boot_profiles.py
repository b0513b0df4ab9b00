# SPDX-License-Identifier: Apache-2.0
"""Boot profiles in a real agent: boots are recorded by profile, and read what theirs has."""

import msgspec
import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_nova import agent_client
from acstor_nova import boot_profile
from tests.fakes import hosts
from tests.functional import test_agent_timeline
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

CHUNKS = test_agent_timeline.CHUNKS
BOOT = boot_profile.ProfiledBoot(test_agent_timeline.SERVER, "database")


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(local.random_bytes(CHUNKS * geometry.DEFAULT_CHUNK_BYTES, seed=5))


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / BOOT.instance_id / "disk"
    path.parent.mkdir()
    path.write_bytes(b"")
    return path


def attach(agent: agents.Agent, image_id: ids.ImageId, boot: boot_profile.ProfiledBoot) -> None:
    agent_client.AgentClient(str(agent.control_socket), 30.0).attach_image(image_id, boot=boot)


def test_boot_is_recorded_with_the_profile_of_its_instance(image_id, start, disk):
    agent = start(constants={tuned.RECORD_IDLE_S: 3})
    attach(agent, image_id, BOOT)
    traces = agent.folder / "state/traces"
    with test_agent_timeline.reader(agent, image_id, disk) as booting:
        try:
            assert booting.stdout.readline()
            hosts.wait_until(lambda: list(traces.glob("*.actrace")), "the trace")
        finally:
            booting.communicate()
    [path] = traces.glob("*.actrace")
    recorded = msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace)
    assert recorded.profile_key == ids.profile_key_of(BOOT.profile)
    assert set(recorded.trace) == set(range(CHUNKS))


def test_boot_of_a_profile_reads_its_chunks_from_memory(images, image_id, start, disk):
    common, own = range(CHUNKS // 2), range(CHUNKS // 2, CHUNKS)
    images.add_boot_image(image_id, common, of_profiles={BOOT.profile: own})

    def wait_chunks(count: int) -> None:
        shown = lambda: agent.status()["images"][image_id]["boot_image"]  # noqa: E731
        expected = {"state": "ready", "chunks_in_memory": count}
        hosts.wait_until(lambda: expected.items() <= shown().items(), f"{count} chunks")

    agent = start()
    attach(agent, image_id, boot_profile.ProfiledBoot(BOOT.instance_id, "other"))
    wait_chunks(CHUNKS // 2)
    attach(agent, image_id, BOOT)
    wait_chunks(CHUNKS)
    images.path(image_id).unlink()  # from here on no read can come from the source
    with test_agent_timeline.reader(agent, image_id, disk) as booting:
        assert booting.stdout.readline()
        booting.communicate()
    assert agent.status()["read"]["boot"]["bytes"] == CHUNKS * geometry.DEFAULT_CHUNK_BYTES
